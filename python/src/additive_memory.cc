// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>

#include <qkv/additive_memory.h>

#include "areas.h"
#include "attention.h"
#include "backward.h"
#include "call.h"
#include "errors.h"

namespace qkv::python {
namespace {

constexpr const char* kMemory = "AdditiveMemory";
constexpr const char* kMemoryAttention = "AdditiveMemory.attention";
constexpr const char* kMemoryBackward = "AdditiveMemory.attention_backward";

// Owns the memory, references to the arrays that it reads, and the context that it is bound to.
class BoundMemory {
 public:
  // `options` is the tuple of qkv.attention's options, with only score and params set.
  BoundMemory(nb::handle k, const nb::tuple& options, nb::handle threads)
      : call_(call_arguments(kMemory, nb::none(), k, nb::none(), options)),
        like_(nb::borrow(k)),
        context_(make_context(threads_of(kMemory, threads))) {
    if (!call_.inputs.k.given()) throw_value_error({kMemory, "k"}, "must be given, got None");
    const auto& score = std::get<Additive>(call_.options.score);
    const double work = static_cast<double>(call_.inputs.k.element_count()) *
                        static_cast<double>(score.v.given() ? score.v.size(-1) : 1);
    run_on(context_, work, [&](Context& context) {
      in_words(kMemory, call_, [&] { memory_.emplace(call_.inputs.k, score, context); });
    });
  }

  nb::object attention(nb::handle q, nb::handle v, const nb::tuple& options,
                       const nb::tuple& wanted) {
    const CallArguments call = with_memory(kMemoryAttention, q, v, options);
    return attend(kMemoryAttention, call, q, wanted, [&](double work, const Outputs& outputs) {
      run_on(context_, work, [&](Context&) {
        in_words(kMemoryAttention, call,
                 [&] { memory_->attention(call.inputs, call.options, outputs); });
      });
    });
  }

  nb::tuple attention_backward(nb::handle q, nb::handle v, const nb::tuple& outputs,
                               const nb::tuple& options) {
    CallArguments call = with_memory(kMemoryBackward, q, v, options);
    return differentiate({kMemoryBackward, true}, call, ResultMaker(q), outputs,
                         [&](double work, const Saved& saved, const OutputGradients& from,
                             const InputGradients& to) {
                           run_on(context_, work, [&](Context&) {
                             in_words(kMemoryBackward, call, [&] {
                               memory_->attention_backward(call.inputs, call.options, saved, from,
                                                           to);
                             });
                           });
                         });
  }

  // Returns (dk, dWk), summed over the backward passes since the last call of key_gradients().
  nb::tuple key_gradients() {
    const ResultMaker maker(like_);
    const auto& score = std::get<Additive>(call_.options.score);
    View dk, dwk;
    const nb::object of_k = maker.make(call_.inputs.k.dtype(), call_.inputs.k.shape(), dk);
    const nb::object of_wk = maker.make(score.wk.dtype(), score.wk.shape(), dwk);
    run_on(context_, 0, [&](Context&) { memory_->key_gradients(dk, dwk); });
    return nb::make_tuple(maker.finish(of_k), maker.finish(of_wk));
  }

  std::string_view path() const { return memory_->path(); }

 private:
  // Calls f(); its errors are thrown with the name of the Python method.
  template <class F>
  static void in_words(const char* function, const CallArguments& call, const F& f) {
    try {
      f();
    } catch (const Error& error) {
      throw of_function(with_advice(error, call), function);
    }
  }

  // The arguments of a call, with the keys and the score of the memory.
  CallArguments with_memory(const char* function, nb::handle q, nb::handle v,
                            const nb::tuple& options) const {
    CallArguments call = call_arguments(function, q, nb::none(), v, options);
    call.inputs.k = call_.inputs.k;
    call.arrays[1] = call_.arrays[1];
    call.options.score = call_.options.score;
    return call;
  }

  CallArguments call_;
  nb::object like_;
  Context context_;
  std::optional<AdditiveMemory> memory_;
};

}  // namespace

void bind_additive_memory(nb::module_& module) {
  const auto any = [] { return nb::arg().none(); };
  nb::class_<BoundMemory>(module, kMemory)
      .def(nb::init<nb::handle, const nb::tuple&, nb::handle>(), any(), nb::arg(), any())
      .def("attention", &BoundMemory::attention, any(), any(), nb::arg(), nb::arg())
      .def("attention_backward", &BoundMemory::attention_backward, any(), any(), nb::arg(),
           nb::arg())
      .def("key_gradients", &BoundMemory::key_gradients)
      .def_prop_ro("path", [](const BoundMemory& self) { return std::string(self.path()); });
}

}  // namespace qkv::python
