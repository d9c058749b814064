// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <utility>

#include <qkv/cuda.h>

#include "areas.h"
#include "attention.h"
#include "backward.h"
#include "errors.h"
#include "gil.h"
#include "torch_tensor.h"

// Attention of arrays on a GPU, which Python gives by their addresses (array_on_device() in
// arrays.h) with the stream of their device. qkv.torch reads them from tensors.
namespace qkv::python {
namespace {

constexpr const char* kCudaAttention = "attention";
constexpr const char* kCudaBackward = "attention_backward";

cuda::Stream stream_of(int device, std::uintptr_t address) {
  return {device, reinterpret_cast<void*>(address)};  // NOLINT(performance-no-int-to-ptr)
}

// Calls f() without the GIL; its errors name `function` and are thrown as by in_layout().
template <class F>
void run_on_device(const char* function, const CallArguments& call, const F& f) {
  in_layout(call, [&] {
    try {
      const WithoutGil no_gil;
      f();
    } catch (const Error& error) {
      throw of_function(error, function);
    }
  });
}

// `make` makes results (ResultMaker::on_device()); `stream` is a CUstream as a number.
nb::object cuda_attention(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& options,
                          const nb::tuple& wanted, nb::object make, int device,
                          std::uintptr_t stream) {
  const CallArguments call = call_arguments(kCudaAttention, q, k, v, options, true);
  const auto run = [&](double, const Outputs& outputs) {
    run_on_device(kCudaAttention, call, [&] {
      cuda::attention(call.inputs, call.options, outputs, stream_of(device, stream));
    });
  };
  return attend_on_device(kCudaAttention, call, std::move(make), wanted, run);
}

// `outputs` is as in differentiate().
nb::tuple cuda_attention_backward(nb::handle q, nb::handle k, nb::handle v,
                                  const nb::tuple& outputs, const nb::tuple& options,
                                  nb::object make, int device, std::uintptr_t stream) {
  CallArguments call = call_arguments(kCudaBackward, q, k, v, options, true);
  const auto run = [&](double, const Saved& saved, const OutputGradients& from,
                       const InputGradients& to) {
    run_on_device(kCudaBackward, call, [&] {
      cuda::attention_backward(call.inputs, call.options, saved, from, to,
                               stream_of(device, stream));
    });
  };
  return differentiate({kCudaBackward}, call, ResultMaker::on_device(std::move(make)), outputs,
                       run);
}

// Throws TypeError for a tensor whose memory is not its whole value.
void check_tensor(nb::handle tensor, const char* argument) {
  check_plain_tensor(tensor_class_of(tensor), tensor, {kCudaAttention, argument});
}

}  // namespace

void bind_cuda_attention(nb::module_& module) {
  module.def("cuda_attention", cuda_attention, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg());
  module.def("cuda_attention_backward", cuda_attention_backward, nb::arg(), nb::arg(),
             nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
  module.def("check_tensor", check_tensor);
}

}  // namespace qkv::python
