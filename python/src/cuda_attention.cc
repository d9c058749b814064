// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <utility>

#include <qkv/cuda.h>

#include "areas.h"
#include "attention.h"
#include "errors.h"
#include "gil.h"
#include "torch_tensor.h"

// Attention of arrays on a GPU, which Python gives by their addresses (array_on_device() in
// arrays.h) with the stream of their device. qkv.torch reads them from tensors.
namespace qkv::python {
namespace {

constexpr const char* kCudaAttention = "attention";

// `make` makes results (ResultMaker::on_device()); `stream` is the address of a CUstream.
nb::object cuda_attention(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& options,
                          const nb::tuple& wanted, nb::object make, int device,
                          std::uintptr_t stream) {
  const CallArguments call = call_arguments(kCudaAttention, q, k, v, options, true);
  const cuda::Stream queue{device,
                           reinterpret_cast<void*>(stream)};  // NOLINT(performance-no-int-to-ptr)
  const auto run = [&](double, const Outputs& outputs) {
    in_layout(call, [&] {
      try {
        const WithoutGil no_gil;
        cuda::attention(call.inputs, call.options, outputs, queue);
      } catch (const Error& error) {
        throw of_function(error, kCudaAttention);
      }
    });
  };
  return attend_on_device(kCudaAttention, call, std::move(make), wanted, run);
}

// Throws TypeError for a tensor whose memory is not its whole value.
void check_tensor(nb::handle tensor, const char* argument) {
  check_plain_tensor(tensor_class_of(tensor), tensor, {kCudaAttention, argument});
}

}  // namespace

void bind_cuda_attention(nb::module_& module) {
  module.def("cuda_attention", cuda_attention, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg());
  module.def("check_tensor", check_tensor);
}

}  // namespace qkv::python
