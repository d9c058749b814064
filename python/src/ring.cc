// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <nanobind/nanobind.h>

#include <qkv/ring.h>

#include "areas.h"
#include "arguments.h"
#include "call.h"
#include "options.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

constexpr const char* kRing = "ring_attention";
constexpr const char* kRingBackward = "ring_attention_backward";

// A message that Python sends or receives: an object with wait() and is_done(). It is used without
// the GIL.
class PythonTransfer final : public Transfer {
 public:
  explicit PythonTransfer(nb::object request) : request_(std::move(request)) {}
  ~PythonTransfer() override {
    const nb::gil_scoped_acquire gil;
    request_.reset();
  }

  void wait() override {
    const nb::gil_scoped_acquire gil;
    request_.attr("wait")();
  }
  bool is_done() override {
    const nb::gil_scoped_acquire gil;
    return nb::cast<bool>(request_.attr("is_done")());
  }

 private:
  nb::object request_;
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
    // Python has no memory that may only be read by all of its libraries: nobody writes to it.
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
  PythonRanks ranks;
  Sharding sharding;
  int threads;
  double work;

  RingCall(const char* function, nb::handle q, nb::handle k, nb::handle v, const nb::tuple& options,
           const nb::tuple& placed, nb::handle thread_count)
      : call(call_arguments(function, q, k, v, options)),
        ranks(nb::object(placed[0])),
        sharding{nb::cast<Index>(nb::object(placed[1]))},
        threads(threads_of(function, thread_count)),
        work(0) {
    const ResultShapes shapes = in_layout(call, [&] { return result_shapes(call.inputs); });
    work = work_of(call, shapes) * ranks.count();
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

// `outputs` is (out, lse), arrays to write to; `placed` is (transport, zigzags).
void ring_call(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& outputs,
               const nb::tuple& options, const nb::tuple& placed, nb::handle threads) {
  RingCall ring(kRing, q, k, v, options, placed, threads);
  const Outputs to{.out = ring.writable(outputs, 0, {kRing, "out"}),
                   .lse = ring.writable(outputs, 1, {kRing, "lse"})};
  run_call(ring.threads, ring.work, [&](Context& context) {
    in_layout(ring.call, [&] {
      ring_attention(ring.call.inputs, ring.call.options, to, ring.ranks, ring.sharding, context);
    });
  });
}

// `from` is (dout, out, lse, dlse), and `gradients` is (dq, dk, dv), arrays to write to.
void ring_backward_call(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& from,
                        const nb::tuple& gradients, const nb::tuple& options,
                        const nb::tuple& placed, nb::handle threads) {
  RingCall ring(kRingBackward, q, k, v, options, placed, threads);
  const auto view = [&](std::size_t n, const char* name) {
    return ring.view(nb::object(from[n]), {kRingBackward, name});
  };
  const Saved saved{view(1, "out"), view(2, "lse")};
  const OutputGradients sources{.out = view(0, "dout"), .lse = view(3, "dlse")};
  const InputGradients to{.q = ring.writable(gradients, 0, {kRingBackward, "dq"}),
                          .k = ring.writable(gradients, 1, {kRingBackward, "dk"}),
                          .v = ring.writable(gradients, 2, {kRingBackward, "dv"})};
  run_call(ring.threads, 3 * ring.work, [&](Context& context) {
    in_layout(ring.call, [&] {
      ring_attention_backward(ring.call.inputs, ring.call.options, saved, sources, to, ring.ranks,
                              ring.sharding, context);
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
