// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_CUDA_DEVICE_FORWARD_H_
#define QKV_TESTS_CUDA_DEVICE_FORWARD_H_

#include <string>

#include <qkv/attention.h>

namespace qkv::test {

// Why device_attention() cannot run here: no device, or none that is new enough. Empty if it can.
std::string why_no_device_attention();

// Computes attention() of arrays on the host by cuda::attention() on the first device that is new
// enough. Copies all bytes from the lowest to the highest element of each array there, so that
// strides, alignment and gaps stay, and the results back. Runs the call `runs` times and throws
// std::runtime_error if a run gives other bits than the first, or writes a byte around a result or
// of an array that is only read.
void device_attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                      int runs = 1);

// Computes attention_backward() by cuda::attention_backward() on that device, as device_attention()
// does, for the gradients of q, k, v, bias, slopes and sinks, and of additive parameters.
void device_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                     const OutputGradients& sources, const InputGradients& gradients, int runs = 1);

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_DEVICE_FORWARD_H_
