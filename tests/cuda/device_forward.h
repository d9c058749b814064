// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_CUDA_DEVICE_FORWARD_H_
#define QKV_TESTS_CUDA_DEVICE_FORWARD_H_

#include <string>

#include <qkv/attention.h>

namespace qkv::test {

// Why device_attention() cannot run here: no device, or none that is new enough. Empty if it can.
std::string why_no_device_attention();

// attention() of arrays on the host by cuda::attention() on the first device that is new enough.
// The arrays are copied there with their strides, alignment and gaps, and the results back, all
// bytes from the lowest to the highest element. Runs `runs` times and throws std::runtime_error if
// one gives other bits than the first, or if a byte around an array on the device was written.
void device_attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                      int runs = 1);

// attention_backward() there, by cuda::attention_backward(), of gradients of q, k and v.
void device_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                     const OutputGradients& sources, const InputGradients& gradients, int runs = 1);

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_DEVICE_FORWARD_H_
