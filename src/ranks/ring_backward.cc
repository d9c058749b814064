// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include <qkv/error.h>
#include <qkv/ring.h>

#include "core/message.h"
#include "core/order.h"
#include "core/storage.h"
#include "ranks/collective.h"
#include "ranks/ring.h"
#include "ranks/unordered_sums.h"

namespace qkv {
namespace {

using ranks::Channel;
using ranks::Part;
using ranks::Ring;

constexpr std::string_view kBackward = "ring_attention_backward";
constexpr std::string_view kCaptured = "input_gradients.captured of ";  // before a name
constexpr DType kWidest = DType::kFloat64;

// The arguments of the call.
struct Call {
  const Inputs& inputs;
  const Options& options;
  const Saved& saved;
  const OutputGradients& outputs;
  const InputGradients& wanted;
  Context& context;

  DType wide() const { return accumulator_of(inputs.q.dtype()); }
  Tensor zeros_like(const ConstView& x) const { return {wide(), x.shape()}; }
};

// Calls f(name, buffer, source) for each gradient that all queries share, except the gradient of
// bias. `source` is the array whose gradient it is.
template <class F>
void for_each_shared(InputGradients& wanted, const Options& options, const F& f) {
  const QkNorm norm = options.qk_norm.value_or(QkNorm{});
  f("qk_norm.q", wanted.qk_norm.q, norm.q);
  f("qk_norm.k", wanted.qk_norm.k, norm.k);
  f("alibi", wanted.alibi, options.alibi);
  f("sinks", wanted.sinks, options.sinks);
  std::visit(
      [&]<class S>(const S& score) {
        S::for_each_parameter([&](const char* name, auto parameter, auto gradient) {
          auto* const all = std::get_if<typename S::Gradient>(&wanted.score);
          if constexpr (!std::is_same_v<typename S::Gradient, std::monostate>) {
            if (all != nullptr) f(name, all->*gradient, score.*parameter);
          }
        });
      },
      options.score);
  for (CapturedGradient& gradient : wanted.captured) {
    const std::string name = core::text(kCaptured, gradient.of.name());
    f(name, gradient.to, gradient.of.view());
  }
}

bool is_dot(const Score& score) {
  struct Visit {
    bool operator()(const ScaledDot&) const { return true; }
    bool operator()(const Dot&) const { return true; }
    bool operator()(const Cosine&) const { return false; }
    bool operator()(const Bilinear&) const { return false; }
    bool operator()(const Additive&) const { return false; }
  };
  return std::visit(Visit{}, score);
}

// Whether the gradients of q, k and v are sums that attention_backward_step() continues.
bool continues_sums(const Call& call) {
  const Options& o = call.options;
  return is_dot(o.score) && !o.qk_norm && !o.rotary;
}

// Which gradients are requested.
struct Requested {
  std::vector<Index> numbers{};  // which ones, and shapes of shared ones; equal on all ranks
  bool rows = false;             // whether any gradient of q, k and v
  bool others = false;           // whether any other gradient

  Requested(InputGradients wanted, const Options& options) {
    numbers.push_back(0);
    for (const View* view : {&wanted.q, &wanted.k, &wanted.v}) {
      numbers.push_back(view->given() ? 1 : 0);
      rows = rows || view->given();
    }
    const auto add = [&](const ConstView& buffer, int axes) {
      numbers.push_back(buffer.given() ? buffer.rank() : -1);
      if (!buffer.given()) return;
      others = true;
      for (int axis = 0; axis < axes; ++axis) numbers.push_back(buffer.size(axis));
    };
    add(wanted.bias, std::max(wanted.bias.rank() - 2, 0));
    for_each_shared(wanted, options, [&](std::string_view, const View& buffer, const ConstView&) {
      add(buffer, buffer.rank());
    });
    numbers[0] = std::ssize(numbers);
  }
};

// ---- sums of terms --------------------------------------------------------------------------

// Returns the blocks of a part: at most kShardKeys rows from multiples of kShardKeys on. Each term
// of a gradient comes from one block of queries and one block of keys, and so does not depend on
// how the sequence is divided.
std::vector<Part> blocks_of(const Part& part) {
  std::vector<Part> blocks;
  for (Index begin = part.begin; begin < part.end; begin += kShardKeys) {
    blocks.push_back({begin, std::min(begin + kShardKeys, part.end), part.rank,
                      part.local + begin - part.begin});
  }
  return blocks;
}

// Arrays converted to the accumulators' dtype.
class WideArrays {
 public:
  explicit WideArrays(DType wide) : wide_(wide) {}

  ConstView of(const ConstView& x) {
    if (!x.given() || x.dtype() == wide_) return x;
    return copies_.emplace_back(convert(x, wide_)).view();
  }
  Options of(Options options) {
    for (ConstView* array : {&options.bias, &options.alibi, &options.sinks}) *array = of(*array);
    const auto widen = [&]<class S>(S& with_parameters) {
      S::for_each_parameter([&](const char*, auto parameter, auto) {
        with_parameters.*parameter = of(with_parameters.*parameter);
      });
    };
    if (options.qk_norm) widen(*options.qk_norm);
    std::visit(widen, options.score);
    return options;
  }

 private:
  DType wide_;
  std::deque<Tensor> copies_{};
};

// A gradient that all queries share: the terms of one block, and the sum over blocks and ranks.
struct SharedSum {
  View to;
  Tensor term;
  ranks::UnorderedSums sum;

  SharedSum(const View& gradient, DType dtype, const Dims& shape)
      : to(gradient), term(dtype, shape), sum(term.element_count()) {}

  // Collective.
  void finish(Ranks& ranks) {
    sum.add_ranks(ranks);
    if (to.element_count() == 0) return;  // bias of a rank without rows
    Tensor total(DType::kFloat64, to.shape());
    const std::span<double> values = total.values<double>();
    for (Index n = 0; n < sum.count(); ++n) values[static_cast<std::size_t>(n)] = sum[n];
    copy(total, to);
  }
};

// The sums of the gradients of some queries, and of some keys and values.
struct RowSums {
  View q;
  View k;
  View v;
};

// Adds gradients of blocks so that bits do not depend on the ranks: the gradient of a query in
// ascending order of keys, the gradients of a key in ascending order of queries, and gradients that
// ranks share in any order (UnorderedSums).
class BlockGradients {
 public:
  // `others`: whether to compute gradients other than those of q, k and v. `bias_has_rows`: whether
  // the bias has one row for each query, rather than one row for all.
  BlockGradients(const Ring& ring, const Call& call, bool others, bool bias_has_rows)
      : ring_(ring), call_(call) {
    if (!others) return;
    terms_ = call.wanted;
    terms_.q = terms_.k = terms_.v = View();
    terms_.bias = terms_.sinks = View();
    for_each_shared(terms_, call.options, [&](std::string_view, View& buffer, const ConstView&) {
      if (!buffer.given()) return;
      const bool is_captured = std::ranges::any_of(
          terms_.captured,
          [&](const CapturedGradient& gradient) { return &gradient.to == &buffer; });
      const DType dtype = is_captured ? DType::kFloat64 : call.wide();
      buffer = shared_.emplace_back(buffer, dtype, buffer.shape()).term.view();
    });
    const View& sinks = call.wanted.sinks;
    if (sinks.given()) sinks_.emplace(sinks, call.wide(), sinks.shape());
    const View& bias = call.wanted.bias;
    if (!bias.given()) return;
    if (bias_has_rows) {
      bias_ = Tensor(DType::kFloat64, bias.shape());
      return;
    }
    Dims shape = bias.shape();
    if (bias.rank() >= 2) shape[bias.rank() - 2] = 1;  // a rank without queries may pass no row
    shared_bias_.emplace(bias, call.wide(), shape);
    numbers_ = Tensor(DType::kInt64, shape);
    const std::span<Index> numbers = numbers_.values<Index>();
    std::iota(numbers.begin(), numbers.end(), Index{0});
  }

  // Whether gradients other than those of q, k and v need the keys of other parts.
  bool need_all_keys() const { return !shared_.empty() || call_.wanted.bias.given(); }

  // Adds the terms of a part of the queries and a part of the keys. The terms of q, k and v are
  // added to `rows`, unless it is null.
  void add(const Part& queries, const Part& keys, const ConstView& k, const ConstView& v,
           const RowSums* rows) {
    for (const Part& query_block : blocks_of(queries)) {
      const auto of_queries = [&](const View& x) {
        return slice(x, 2, query_block.begin - queries.begin, query_block.end - queries.begin);
      };
      for (const Part& key_block : blocks_of(keys)) {
        const auto of_keys = [&](const auto& x) {
          return slice(x, 2, key_block.begin - keys.begin, key_block.end - keys.begin);
        };
        if (!ring_.meets(query_block, key_block)) continue;
        if (rows == nullptr) {
          add_block(query_block, key_block, of_keys(k), of_keys(v), nullptr);
          continue;
        }
        const RowSums of_block{of_queries(rows->q), of_keys(rows->k), of_keys(rows->v)};
        add_block(query_block, key_block, of_keys(k), of_keys(v), &of_block);
      }
    }
  }

  // Writes the gradients other than those of q, k and v. Collective.
  void finish() {
    for (SharedSum& shared : shared_) shared.finish(ring_.ranks());
    if (sinks_) sinks_->finish(ring_.ranks());
    if (shared_bias_) shared_bias_->finish(ring_.ranks());
    if (bias_.given()) copy(bias_, call_.wanted.bias);
  }

 private:
  void add_block(const Part& queries, const Part& keys, const ConstView& k, const ConstView& v,
                 const RowSums* rows) {
    WideArrays wide(call_.wide());
    const auto of_rows = [&](const ConstView& x) { return wide.of(ranks::rows(x, queries)); };
    // Any keys give the complete gradient of the sinks, so only one call for these queries adds it.
    const bool takes_sinks = sinks_ && keys.begin == queries.begin;
    const bool takes_bias = bias_.given() || shared_bias_;
    if (rows == nullptr && shared_.empty() && !takes_sinks && !takes_bias) return;
    Inputs inputs = ring_.inputs(queries, wide.of(k), wide.of(v), keys);
    inputs.q = wide.of(inputs.q);
    const Options options = wide.of(ring_.options(queries, keys));
    InputGradients terms = terms_;
    Tensor q_terms;
    Tensor k_terms;
    Tensor v_terms;
    Tensor bias_terms;
    if (rows != nullptr) {
      terms.q = q_terms = Tensor(call_.wide(), rows->q.shape());
      terms.k = k_terms = Tensor(call_.wide(), rows->k.shape());
      if (call_.outputs.out.given()) terms.v = v_terms = Tensor(call_.wide(), rows->v.shape());
    }
    if (takes_sinks) terms.sinks = sinks_->term;
    if (takes_bias) terms.bias = bias_terms = Tensor(call_.wide(), options.bias.shape());
    attention_backward(inputs, options, {of_rows(call_.saved.out), of_rows(call_.saved.lse)},
                       {of_rows(call_.outputs.out), of_rows(call_.outputs.lse), {}}, terms,
                       call_.context);
    if (rows != nullptr) {
      ranks::add(rows->q, q_terms);
      ranks::add(rows->k, k_terms);
      if (v_terms.given()) ranks::add(rows->v, v_terms);
    }
    for (SharedSum& shared : shared_) shared.sum.add(shared.term);
    if (takes_sinks) sinks_->sum.add(sinks_->term);
    if (bias_.given()) ranks::add(ring_.pairs(bias_.view(), queries, keys), bias_terms);
    if (!shared_bias_) return;
    const Tensor numbers = contiguous(ring_.pairs(ConstView(numbers_.view()), queries, keys));
    shared_bias_->sum.add(numbers.values<Index>(), bias_terms);
  }

  const Ring& ring_;
  const Call& call_;
  InputGradients terms_{};
  std::deque<SharedSum> shared_{};  // except sinks and bias
  std::optional<SharedSum> sinks_{};
  Tensor bias_{};  // float64: the gradient of a bias with one row for each query
  std::optional<SharedSum> shared_bias_{};  // of a bias with one row for all queries
  Tensor numbers_{};                        // the elements of shared_bias_, numbered from 0
};

// ---- gradients of rows ------------------------------------------------------------------------

// The largest number of keys of a piece. Pieces go from rank to rank.
constexpr Index kPiece = 2 * kShardKeys;
static_assert(kPiece % kShardKeys == 0);

// A station that pieces of the keys visit: the queries of a part in every R-th query head from
// `first_head` on, where R is Pipeline's ratio_.
struct Station {
  std::size_t number = 0;
  Index first_head = 0;
  Part queries;
};

// One piece of the keys at one station. `before` and `after` are the neighbouring stations on the
// piece's path, or null.
struct Task {
  std::size_t piece = 0;
  const Station* station = nullptr;
  const Station* before = nullptr;
  const Station* after = nullptr;
};

// Moves pieces from station to station: keys, values and the sums of their gradients. A piece
// visits the queries that it meets in ascending order; queries take the pieces in ascending order.
class Pipeline {
 public:
  // If `blocks` is null, attention_backward_step() continues the sums from call to call.
  Pipeline(Ring& ring, const Call& call, BlockGradients* blocks)
      : ring_(ring),
        call_(call),
        blocks_(blocks),
        me_(ring.ranks().rank()),
        heads_(call.inputs.q.size(1)),
        ratio_(blocks == nullptr ? heads_ / call.inputs.k.size(1) : 1) {
    for (const Part& part : ring.parts()) {
      for (Index begin = part.begin; begin < part.end; begin += kPiece) {
        pieces_.push_back({begin, std::min(begin + kPiece, part.end), part.rank,
                           part.local + begin - part.begin});
      }
    }
    for (Index head = 0; head < ratio_; ++head) {
      for (const Part& part : ring.parts()) stations_.push_back({stations_.size(), head, part});
    }
    for (int rank = 0; rank < ring.ranks().count(); ++rank) tasks_.push_back(tasks_of(rank));
  }

  void run() {
    const Inputs& in = call_.inputs;
    dq_ = call_.zeros_like(in.q);
    dk_ = call_.zeros_like(in.k);
    dv_ = call_.zeros_like(in.v);
    if (blocks_ == nullptr) find_weight_sums();
    send_first_keys();
    begin_last_sums();
    std::deque<Coming> coming;
    const std::vector<Task>& tasks = tasks_[static_cast<std::size_t>(me_)];
    for (std::size_t n = 0; n <= tasks.size(); ++n) {
      if (n < tasks.size()) coming.push_back(receive(tasks[n]));
      if (n == 0) continue;
      compute(tasks[n - 1], std::move(coming.front()));
      coming.pop_front();
      ring_.forget_sent();
    }
    for (Last& last : last_) {
      ranks::wait_for(last.transfers);
      store_sums(last.piece, last.rows);
    }
    ring_.finish();
    const InputGradients& to = call_.wanted;
    if (to.q.given()) copy(dq_, to.q);
    if (to.k.given()) copy(dk_, to.k);
    if (to.v.given()) copy(dv_, to.v);
  }

 private:
  // The tensors of a piece, and the messages that bring them.
  struct Coming {
    std::optional<ranks::KeyRows> rows{};  // none if the piece is already on this rank
    std::vector<std::unique_ptr<Transfer>> transfers{};
  };
  // A piece of this rank's keys, whose sums come from the last station.
  struct Last {
    Part piece;
    ranks::KeyRows rows;
    std::vector<std::unique_ptr<Transfer>> transfers{};
  };

  // Returns the stations that a piece visits, in this order.
  std::vector<const Station*> path(const Part& piece) const {
    std::vector<const Station*> path;
    for (const Station& station : stations_) {
      if (ring_.meets(station.queries, piece)) path.push_back(&station);
    }
    return path;
  }

  // Returns a rank's tasks in an order without deadlock: by the sum of the numbers of piece and
  // station. A task waits for two kinds of tasks, whose sums are smaller: tasks of the same piece
  // at earlier stations, and tasks of earlier pieces at the same station.
  std::vector<Task> tasks_of(int rank) const {
    std::vector<Task> tasks;
    for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
      const std::vector<const Station*> all = path(pieces_[piece]);
      for (std::size_t n = 0; n < all.size(); ++n) {
        if (all[n]->queries.rank != rank) continue;
        tasks.push_back({piece, all[n], n == 0 ? nullptr : all[n - 1],
                         n + 1 == all.size() ? nullptr : all[n + 1]});
      }
    }
    std::ranges::sort(tasks, {}, [](const Task& task) {
      return std::tuple(task.piece + task.station->number, task.piece);
    });
    return tasks;
  }

  ranks::KeyRows room(const Part& piece) const {
    const auto some = [&](const ConstView& like, DType dtype) {
      return Tensor(dtype, {like.size(0), like.size(1), piece.size(), like.size(3)});
    };
    const ConstView& k = call_.inputs.k;
    const ConstView& v = call_.inputs.v;
    return {some(k, k.dtype()), some(v, v.dtype()), some(k, call_.wide()), some(v, call_.wide())};
  }
  ranks::KeyRows own_rows(const Part& piece) const {
    ranks::KeyRows copies = room(piece);
    copy(rows(call_.inputs.k, piece), copies.k.view());
    copy(rows(call_.inputs.v, piece), copies.v.view());
    return copies;
  }
  void store_sums(const Part& piece, const ranks::KeyRows& sums) {
    copy(sums.dk, ranks::rows(dk_.view(), piece));
    copy(sums.dv, ranks::rows(dv_.view(), piece));
  }
  void send(Tensor tensor, int to, Channel channel) {
    ring_.send(std::make_shared<const Tensor>(std::move(tensor)), to, channel);
  }

  // Sends each piece of this rank's keys to its first station.
  void send_first_keys() {
    for (const Part& piece : pieces_) {
      const int first = path(piece).front()->queries.rank;
      if (piece.rank != me_ || first == me_) continue;
      ranks::KeyRows keys = own_rows(piece);
      send(std::move(keys.k), first, Channel::kKeys);
      send(std::move(keys.v), first, Channel::kKeys);
    }
  }

  // Begins to receive the sums of this rank's keys from the ranks of the pieces' last stations, in
  // the order in which those ranks send the sums.
  void begin_last_sums() {
    for (int rank = 0; rank < std::ssize(tasks_); ++rank) {
      for (const Task& task : tasks_[static_cast<std::size_t>(rank)]) {
        const Part& piece = pieces_[task.piece];
        if (task.after != nullptr || piece.rank != me_ || rank == me_) continue;
        Last& last = last_.emplace_back(Last{piece, room(piece)});
        last.transfers.push_back(ring_.receive(last.rows.dk, rank, Channel::kSums));
        last.transfers.push_back(ring_.receive(last.rows.dv, rank, Channel::kSums));
      }
    }
  }

  // Begins to receive the piece of a task, unless it is on this rank.
  Coming receive(const Task& task) {
    const Part& piece = pieces_[task.piece];
    const int source = task.before == nullptr ? piece.rank : task.before->queries.rank;
    if (source == me_) return {};
    if (task.before == nullptr) {
      Coming coming{room(piece)};
      coming.transfers.push_back(ring_.receive(coming.rows->k, source, Channel::kKeys));
      coming.transfers.push_back(ring_.receive(coming.rows->v, source, Channel::kKeys));
      return coming;
    }
    // The pieces come in the order of the tasks at their source, which may differ from the order
    // of the tasks here.
    auto& early = early_[source];
    const bool is_new = !order_.contains(source);
    auto& order = order_[source];
    if (is_new) order = pieces_from(source);
    const std::pair wanted(task.piece, task.station->number);
    while (!early.contains(wanted)) {
      const auto next = order.front();
      order.pop_front();
      Coming coming{room(pieces_[next.first])};
      ranks::KeyRows& rows = *coming.rows;
      for (Tensor* tensor : {&rows.k, &rows.v, &rows.dk, &rows.dv}) {
        coming.transfers.push_back(ring_.receive(*tensor, source, Channel::kPieces));
      }
      early.emplace(next, std::move(coming));
    }
    return std::move(early.extract(wanted).mapped());
  }
  // Returns the pieces that rank `source` sends to this rank, in the order of sending, each with
  // its next station.
  std::deque<std::pair<std::size_t, std::size_t>> pieces_from(int source) const {
    std::deque<std::pair<std::size_t, std::size_t>> pieces;
    for (const Task& task : tasks_[static_cast<std::size_t>(source)]) {
      if (task.after != nullptr && task.after->queries.rank == me_) {
        pieces.emplace_back(task.piece, task.after->number);
      }
    }
    return pieces;
  }

  void compute(const Task& task, Coming coming) {
    const Part& piece = pieces_[task.piece];
    ranks::wait_for(coming.transfers);
    ranks::KeyRows keys;
    if (coming.rows) {
      keys = std::move(*coming.rows);
    } else if (task.before == nullptr) {
      keys = own_rows(piece);
    } else {
      keys = std::move(held_.extract(task.piece).mapped());
    }
    const Part& queries = task.station->queries;
    ring_.attempt([&] {
      if (blocks_ == nullptr) return continue_sums(*task.station, piece, keys);
      const RowSums sums{ranks::rows(dq_.view(), queries), keys.dk, keys.dv};
      blocks_->add(queries, piece, keys.k, keys.v, &sums);
    });
    if (task.after == nullptr && piece.rank == me_) {
      store_sums(piece, keys);
    } else if (task.after == nullptr) {
      send(std::move(keys.dk), piece.rank, Channel::kSums);
      send(std::move(keys.dv), piece.rank, Channel::kSums);
    } else if (task.after->queries.rank == me_) {
      held_.emplace(task.piece, std::move(keys));
    } else {
      for (Tensor* tensor : {&keys.k, &keys.v, &keys.dk, &keys.dv}) {
        send(std::move(*tensor), task.after->queries.rank, Channel::kPieces);
      }
    }
  }

  void continue_sums(const Station& station, const Part& piece, ranks::KeyRows& keys) {
    const Part& queries = station.queries;
    const auto some = [&](const auto& view) {
      const auto part = ranks::rows(view, queries);
      return part.given() ? slice(part, 1, station.first_head, heads_, ratio_) : part;
    };
    Inputs inputs = ring_.inputs(queries, keys.k, keys.v, piece);
    Options options = ring_.options(queries, piece);
    ring_.take_heads(inputs, options, station.first_head, ratio_);
    attention_backward_step(
        inputs, options,
        {some(call_.saved.out), some(call_.saved.lse), some(ConstView(weight_sums_.view()))},
        {some(call_.outputs.out), some(call_.outputs.lse), {}},
        {some(dq_.view()), keys.dk.view(), keys.dv.view()}, call_.context);
  }

  // Computes weight_sums_, which correct the rounding of large lse, if any rank has a large lse.
  void find_weight_sums() {
    const ConstView& lse = call_.saved.lse;
    weight_sums_ = Tensor(DType::kFloat64, lse.shape());
    bool is_large = false;
    core::dispatch(lse.dtype(), [&]<class T>() {
      const Tensor all = contiguous(lse);
      is_large = std::ranges::any_of(
          all.values<T>(), [](T x) { return std::isfinite(x) && std::abs(x) > core::kLargeLse; });
    });
    if (!ranks::any(ring_.ranks(), is_large)) return;
    ring_.for_each_keys(
        call_.inputs.k, {}, [&](const Part& keys, const ConstView& k, const ConstView& v) {
          for (const Part& queries : ring_.own_parts()) {
            if (!ring_.meets(queries, keys)) continue;
            add_weight_sums(ring_.inputs(queries, k, v, keys), ring_.options(queries, keys),
                            ranks::rows(lse, queries), ranks::rows(weight_sums_.view(), queries),
                            call_.context);
            ring_.forget_sent();
          }
        });
    ring_.finish();
  }

  Ring& ring_;
  const Call& call_;
  BlockGradients* blocks_;
  int me_;
  Index heads_;
  Index ratio_;
  std::vector<Part> pieces_{};
  std::vector<Station> stations_{};
  std::vector<std::vector<Task>> tasks_{};  // of each rank
  Tensor dq_{}, dk_{}, dv_{}, weight_sums_{};
  std::map<std::size_t, ranks::KeyRows> held_{};  // pieces whose next station is on this rank
  // By source, for pairs of piece and station: the pieces that are being received but not yet used,
  // and the pieces still to be received, in the order of sending.
  std::map<int, std::map<std::pair<std::size_t, std::size_t>, Coming>> early_{};
  std::map<int, std::deque<std::pair<std::size_t, std::size_t>>> order_{};
  std::deque<Last> last_{};
};

// Tries the gradients of captured arrays with one query and one key of this rank, so that errors
// are found here, not by the first call, while other ranks wait for this rank.
void try_captured(const Ring& ring, const Call& call) {
  if (call.wanted.captured.empty() || ring.own_parts().empty()) return;
  Part first = ring.own_parts().front();
  first.end = first.begin + 1;
  const auto row = [&](const ConstView& x) { return ranks::rows(x, first); };
  try {
    attention_backward(ring.inputs(first, row(call.inputs.k), row(call.inputs.v), first),
                       ring.options(first, first), {row(call.saved.out), row(call.saved.lse)},
                       {row(call.outputs.out), row(call.outputs.lse), {}},
                       {.captured = call.wanted.captured}, call.context);
  } catch (const Error& error) {
    throw ranks::of_function(error, kBackward);
  }
}

void check(const Call& call) {
  const auto check_like = [](const char* name, const ConstView& x, DType dtype, const Dims& shape) {
    if (x.given() && (x.dtype() != dtype || x.shape() != shape)) {
      throw Error(
          kBackward, name,
          core::text("must be ", name_of(dtype), " ", to_string(shape), ", got ", describe(x)));
    }
  };
  const Inputs& in = call.inputs;
  const Dims rows{in.q.size(0), in.q.size(1), in.q.size(2)};
  const Dims out{rows[0], rows[1], rows[2], in.v.size(3)};
  if (!call.saved.lse.given()) throw Error(kBackward, "saved.lse", "must be given");
  if (call.outputs.out.given() && !call.saved.out.given()) {
    throw Error(kBackward, "saved.out", "must be given with the gradient of out");
  }
  check_like("saved.lse", call.saved.lse, call.wide(), rows);
  check_like("saved.out", call.saved.out, in.q.dtype(), out);
  check_like("output_gradients.out", call.outputs.out, in.q.dtype(), out);
  check_like("output_gradients.lse", call.outputs.lse, call.wide(), rows);
  if (!call.outputs.out.given() && !call.outputs.lse.given()) {
    throw Error(kBackward, "output_gradients", "must have out or lse");
  }
  if (call.outputs.weights.matrix.given()) {
    throw Error(kBackward, "output_gradients.weights", "must be absent with several ranks");
  }
  check_like("input_gradients.q", call.wanted.q, in.q.dtype(), in.q.shape());
  check_like("input_gradients.k", call.wanted.k, in.k.dtype(), in.k.shape());
  check_like("input_gradients.v", call.wanted.v, in.v.dtype(), in.v.shape());
  check_like("input_gradients.bias", call.wanted.bias, call.options.bias.dtype(),
             call.options.bias.shape());
  InputGradients wanted = call.wanted;
  for_each_shared(wanted, call.options,
                  [&](std::string_view name, const View& buffer, const ConstView& source) {
                    if (!buffer.given()) return;
                    if (!source.given()) {
                      throw Error(kBackward, name, "has no gradient, because it is absent");
                    }
                    const bool is_wide = name.starts_with(kCaptured) && buffer.dtype() == kWidest;
                    check_like(std::string(name).c_str(), buffer,
                               is_wide ? kWidest : source.dtype(), source.shape());
                  });
  const bool is_of_score = std::visit(
      [&]<class S>(const S&) {
        return std::holds_alternative<std::monostate>(call.wanted.score) ||
               std::holds_alternative<typename S::Gradient>(call.wanted.score);
      },
      call.options.score);
  if (!is_of_score) {
    throw Error(kBackward, "input_gradients.score", "must be those of the call's score");
  }
  if (call.wanted.write != Write::kOverwrite) {
    throw Error(kBackward, "input_gradients.write", "must be kOverwrite");
  }
}

}  // namespace

void ring_attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                             const OutputGradients& output_gradients,
                             const InputGradients& input_gradients, Ranks& ranks,
                             Sharding sharding) {
  Context context;
  ring_attention_backward(inputs, options, saved, output_gradients, input_gradients, ranks,
                          sharding, context);
}

void ring_attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                             const OutputGradients& output_gradients,
                             const InputGradients& input_gradients, Ranks& ranks, Sharding sharding,
                             Context& context) {
  Requested requested(input_gradients, options);
  requested.numbers.push_back(output_gradients.out.given() ? 1 : 0);
  requested.numbers.push_back(output_gradients.lse.given() ? 1 : 0);
  Ring ring(kBackward, inputs, options, ranks, sharding, requested.numbers, context);
  const Call call{inputs, options, saved, output_gradients, input_gradients, context};
  ranks::agreed(ranks, [&] {
    check(call);
    try_captured(ring, call);
  });
  const View& bias = input_gradients.bias;
  const bool bias_has_rows =
      ranks::any(ranks, bias.given() && bias.rank() >= 2 && bias.size(bias.rank() - 2) > 1);
  const bool has_heads = inputs.q.size(1) > 0 && inputs.k.size(1) > 0;
  const bool in_steps = has_heads && requested.rows && continues_sums(call);
  std::optional<BlockGradients> memory;
  ranks::agreed(ranks, [&] { memory.emplace(ring, call, requested.others, bias_has_rows); });
  BlockGradients& blocks = *memory;
  if (in_steps) Pipeline(ring, call, nullptr).run();
  if (in_steps && !requested.others) return;
  if (requested.rows && !in_steps) {
    Pipeline(ring, call, &blocks).run();
  } else if (blocks.need_all_keys()) {
    ring.for_each_keys(inputs.k, inputs.v,
                       [&](const Part& keys, const ConstView& k, const ConstView& v) {
                         for (const Part& queries : ring.own_parts()) {
                           blocks.add(queries, keys, k, v, nullptr);
                         }
                         ring.forget_sent();
                       });
    ring.finish();
  } else {
    ring.attempt([&] {
      for (const Part& part : ring.own_parts()) {
        blocks.add(part, part, rows(inputs.k, part), rows(inputs.v, part), nullptr);
      }
    });
    ring.finish();
  }
  blocks.finish();
}

}  // namespace qkv
