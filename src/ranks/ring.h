// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RANKS_RING_H_
#define QKV_RANKS_RING_H_

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <qkv/error.h>
#include <qkv/ring.h>
#include <qkv/tensor.h>

// A sequence that is divided among ranks: its parts, the calls on parts, and the messages.
namespace qkv::ranks {

// Rows begin .. end - 1 of the sequence, all on one rank. Row `begin` is row `local` of that rank's
// arrays.
struct Part {
  Index begin = 0;
  Index end = 0;
  int rank = 0;
  Index local = 0;

  Index size() const { return end - begin; }
};

enum class Channel : int { kAgreement = 0, kKeys = 1, kPieces = 2, kSums = 3 };

// Returns the rows of a part, from an array [B,heads,T,channels] or [B,heads,T] of the part's rank.
template <class AnyView>
auto rows(const AnyView& view, const Part& part) {
  return view.given() ? slice(view, 2, part.local, part.local + part.size()) : view;
}

// Keys and values of a part with the sums of their gradients so far, as ranks pass them on.
struct KeyRows {
  Tensor k{};
  Tensor v{};
  Tensor dk{};
  Tensor dv{};
};

class Ring {
 public:
  // Collective: throws on every rank if one rank's arguments are wrong, or if arguments differ that
  // must be equal on all ranks. The numbers in `more` must be equal. All arguments must outlive the
  // object.
  Ring(std::string_view function, const Inputs& inputs, const Options& options, Ranks& ranks,
       Sharding sharding, const std::vector<Index>& more, Context& context);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  Ranks& ranks() const { return ranks_; }
  const std::vector<Part>& parts() const { return parts_; }
  std::vector<Part> own_parts() const;  // of this rank
  Index total() const { return total_; }

  // Whether causal masks and windows let a query of one part attend to a key of the other. Always
  // true for keys that lie within the rows of the queries.
  bool meets(const Part& queries, const Part& keys) const;
  // The ranks with queries that meet these keys, in ascending order.
  std::vector<int> ranks_of(const Part& keys) const;
  // The inputs and options of a call for some queries and some keys: parts, or rows of parts.
  Inputs inputs(const Part& queries, const ConstView& k, const ConstView& v,
                const Part& keys) const;
  Options options(const Part& queries, const Part& keys) const;
  // Restricts a call to every `step`-th query head from `first` on.
  void take_heads(Inputs& inputs, Options& options, Index first, Index step) const;
  // Returns the pairs of two parts, from an array whose last two axes are queries and keys, each of
  // which may be broadcast.
  template <class AnyView>
  AnyView pairs(const AnyView& view, const Part& queries, const Part& keys) const;

  // Calls f, unless an earlier attempt has thrown. The error is stored until finish(), since the
  // other ranks wait for this rank's messages.
  template <class F>
  void attempt(const F& f) {
    if (error_ != nullptr) return;
    try {
      f();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  // Calls f(part, k, v), by attempt(), for the parts of the keys that meet a query of this rank, in
  // ascending order. Meanwhile the next part is received. `v` may be absent.
  void for_each_keys(const ConstView& k, const ConstView& v,
                     const std::function<void(const Part&, const ConstView&, const ConstView&)>& f);

  // Sends a tensor, which lives until it has been sent. An empty tensor is not sent, and receive()
  // of an empty tensor returns null.
  void send(std::shared_ptr<const Tensor> tensor, int to, Channel channel);
  std::unique_ptr<Transfer> receive(Tensor& tensor, int from, Channel channel);
  // Frees the tensors that have been sent by now.
  void forget_sent();
  // Waits until everything has been sent. Collective: throws on every rank if one has an error.
  void finish();

 private:
  void check(const Inputs& inputs) const;
  void check_sizes() const;
  void try_call(const Part& queries, const Part& keys) const;
  void divide(const std::vector<Index>& lengths, Sharding sharding);

  std::string_view function_;
  const Inputs& inputs_;
  const Options& options_;
  Ranks& ranks_;
  Context& context_;
  std::vector<Part> parts_{};
  Index total_ = 0;
  // Query i may attend to no key before i - before_ or after i + after_.
  std::optional<Index> before_{};
  std::optional<Index> after_{};
  struct Sent {
    std::shared_ptr<const Tensor> tensor;
    std::unique_ptr<Transfer> transfer;
  };
  std::vector<Sent> sent_{};
  std::exception_ptr error_{};
};

// Waits for messages. A null pointer stands for an empty tensor, which is not sent.
inline void wait_for(std::span<const std::unique_ptr<Transfer>> transfers) {
  for (const auto& transfer : transfers) {
    if (transfer != nullptr) transfer->wait();
  }
}

// Returns the error of a call on parts with the name of the public function.
Error of_function(const Error& error, std::string_view function);

// Adds `terms`, of any real type, to `sums`, of the same shape and the accumulator's type.
void add(const View& sums, const ConstView& terms);

}  // namespace qkv::ranks

#endif  // QKV_RANKS_RING_H_
