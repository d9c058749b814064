// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include <nanobind/nanobind.h>

#include <qkv/ring.h>

#include "areas.h"
#include "arguments.h"
#include "call.h"
#include "expressions.h"
#include "gil.h"
#include "options.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

constexpr const char* kRing = "ring_attention";
constexpr const char* kRingBackward = "ring_attention_backward";

// A message that Python sends or receives: an object with wait(), is_done() and give_up(). It is
// used without the GIL.
class PythonTransfer final : public Transfer {
 public:
  explicit PythonTransfer(nb::object request) : request_(std::move(request)) {}
  ~PythonTransfer() override {
    const nb::gil_scoped_acquire gil;
    if (!is_done_) {
      try {
        request_.attr("give_up")();
      } catch (const nb::python_error&) {
        // The message's own error is on its way.
      }
    }
    request_.reset();
  }

  void wait() override {
    const nb::gil_scoped_acquire gil;
    request_.attr("wait")();
    is_done_ = true;
  }
  bool is_done() override {
    const nb::gil_scoped_acquire gil;
    if (!is_done_) is_done_ = nb::cast<bool>(request_.attr("is_done")());
    return is_done_;
  }

 private:
  nb::object request_;
  bool is_done_ = false;
};

// Ranks whose messages Python sends: an object with rank, count, send(memoryview, to, channel) and
// receive(memoryview, from, channel). It is used without the GIL.
class PythonRanks final : public Ranks {
 public:
  explicit PythonRanks(nb::handle transport)
      : transport_(transport),
        rank_(nb::cast<int>(transport.attr("rank"))),
        count_(nb::cast<int>(transport.attr("count"))) {}

  int rank() const noexcept override { return rank_; }
  int count() const noexcept override { return count_; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> data, int to, int channel) override {
    // The memoryview is writable, since some libraries take no read-only memory, but no one writes.
    return begin("send", const_cast<std::byte*>(data.data()), data.size(), to, channel);
  }
  std::unique_ptr<Transfer> receive(std::span<std::byte> data, int from, int channel) override {
    return begin("receive", data.data(), data.size(), from, channel);
  }

 private:
  std::unique_ptr<Transfer> begin(const char* method, std::byte* data, std::size_t size, int other,
                                  int channel) {
    const nb::gil_scoped_acquire gil;
    const nb::object memory = nb::steal(PyMemoryView_FromMemory(
        reinterpret_cast<char*>(data), static_cast<Py_ssize_t>(size), PyBUF_WRITE));
    return std::make_unique<PythonTransfer>(transport_.attr(method)(memory, other, channel));
  }

  nb::handle transport_;
  int rank_;
  int count_;
};

// The arguments that both passes have.
struct RingCall {
  CallArguments call;
  int threads = 1;
  double work = 0;

  RingCall(const char* function, nb::handle q, nb::handle k, nb::handle v, const nb::tuple& options,
           nb::handle thread_count, int ranks)
      : call(call_arguments(function, q, k, v, options)),
        threads(threads_of(function, thread_count)) {
    const ResultShapes shapes = in_layout(call, [&] { return result_shapes(call.inputs); });
    work = work_of(call, shapes) * ranks;
  }
  ConstView view(nb::handle array, const Name& name) {
    return call.hold(array_of(array, name)).view;
  }
  View writable(const nb::tuple& arrays, std::size_t n, const Name& name) {
    const nb::object array(arrays[n]);
    if (array.is_none()) return {};
    return writable_view(call.hold(array_of(array, name)), array, name);
  }
};

// Calls read() to read this rank's arguments. If read() fails on one rank, all ranks throw an
// error.
template <class F>
void read_on_all(PythonRanks& ranks, const F& read) {
  std::exception_ptr error;
  try {
    read();
  } catch (...) {
    error = std::current_exception();
  }
  WithoutGil released;
  check_all(ranks, error);
}

// `outputs` is (out, lse), arrays to write to; `placed` is (transport, zigzags).
void ring_call(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& outputs,
               const nb::tuple& options, const nb::tuple& placed, nb::handle threads) {
  PythonRanks ranks{nb::object(placed[0])};
  const Sharding sharding{nb::cast<Index>(nb::object(placed[1]))};
  std::optional<RingCall> ring;
  Outputs to;
  read_on_all(ranks, [&] {
    ring.emplace(kRing, q, k, v, options, threads, ranks.count());
    to.out = ring->writable(outputs, 0, {kRing, "out"});
    to.lse = ring->writable(outputs, 1, {kRing, "lse"});
  });
  run_call(ring->threads, ring->work, [&](Context& context) {
    in_layout(ring->call, [&] {
      ring_attention(ring->call.inputs, ring->call.options, to, ranks, sharding, context);
    });
  });
}

// Sets in `to` the gradients of the score's and the norm's parameters: `arrays`, a dict by name of
// arrays to write to.
void add_parameters(RingCall& ring, const nb::dict& arrays, InputGradients& to) {
  if (nb::len(arrays) == 0) return;
  const auto view = [&](const std::string& name) -> View {
    const char* key = name.c_str();
    if (!arrays.contains(key)) return {};
    const nb::object array(arrays[key]);
    const std::string argument = "dparams." + name;
    const Name whole{kRingBackward, argument.c_str()};
    return writable_view(ring.call.hold(array_of(array, whole)), array, whole);
  };
  std::visit(
      [&]<class S>(const S&) {
        typename S::Gradient all;
        S::for_each_parameter([&](const char* name, auto, auto its) { all.*its = view(name); });
        to.score = all;
      },
      ring.call.options.score);
  if (!ring.call.options.qk_norm) return;
  QkNorm::for_each_parameter(
      [&](const char* side, auto, auto its) { to.qk_norm.*its = view(gain_name(side)); });
}

// Sets in `to` the gradients of the arrays that score_mod reads: `arrays`, a dict by name of arrays
// to write to.
void add_captured(RingCall& ring, const nb::dict& arrays, InputGradients& to) {
  captured_gradients(ring.call.captured, to.captured,
                     [&](const std::string& name, const ConstView&, View& view) -> nb::object {
                       if (!arrays.contains(name.c_str())) return nb::none();
                       const nb::object array(arrays[name.c_str()]);
                       const std::string argument = "dcaptured." + name;
                       const Name whole{kRingBackward, argument.c_str()};
                       view = writable_view(ring.call.hold(array_of(array, whole)), array, whole);
                       return array;
                     });
}

// `from` is (dout, out, lse, dlse). `gradients` has arrays to write to: (dq, dk, dv, dbias,
// dalibi_slopes, dsinks), each an array or None, then a dict of the gradients of the parameters and
// a dict of the gradients of the arrays that score_mod reads.
void ring_backward_call(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& from,
                        const nb::tuple& gradients, const nb::tuple& options,
                        const nb::tuple& placed, nb::handle threads) {
  PythonRanks ranks{nb::object(placed[0])};
  const Sharding sharding{nb::cast<Index>(nb::object(placed[1]))};
  std::optional<RingCall> ring;
  Saved saved;
  OutputGradients sources;
  InputGradients to;
  read_on_all(ranks, [&] {
    ring.emplace(kRingBackward, q, k, v, options, threads, ranks.count());
    const auto view = [&](std::size_t n, const char* name) {
      return ring->view(nb::object(from[n]), {kRingBackward, name});
    };
    saved = {view(1, "out"), view(2, "lse")};
    sources.out = view(0, "dout");
    sources.lse = view(3, "dlse");
    to.q = ring->writable(gradients, 0, {kRingBackward, "dq"});
    to.k = ring->writable(gradients, 1, {kRingBackward, "dk"});
    to.v = ring->writable(gradients, 2, {kRingBackward, "dv"});
    to.bias = ring->writable(gradients, 3, {kRingBackward, "dbias"});
    to.alibi = ring->writable(gradients, 4, {kRingBackward, "dalibi_slopes"});
    to.sinks = ring->writable(gradients, 5, {kRingBackward, "dsinks"});
    add_parameters(*ring, nb::cast<nb::dict>(nb::object(gradients[6])), to);
    add_captured(*ring, nb::cast<nb::dict>(nb::object(gradients[7])), to);
  });
  run_call(ring->threads, 3 * ring->work, [&](Context& context) {
    in_layout(ring->call, [&] {
      ring_attention_backward(ring->call.inputs, ring->call.options, saved, sources, to, ranks,
                              sharding, context);
    });
  });
}

}  // namespace

void bind_ring(nb::module_& module) {
  module.def("ring_attention", ring_call, nb::arg().none(), nb::arg().none(), nb::arg().none(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
  module.def("ring_attention_backward", ring_backward_call, nb::arg().none(), nb::arg().none(),
             nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace qkv::python
