// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_CUDA_DEVICE_FORWARD_H_
#define QKV_TESTS_CUDA_DEVICE_FORWARD_H_

#include <string>

#include <qkv/attention.h>

namespace qkv::test {

// Returns why device_attention() cannot run here (no device, or none that is new enough), or an
// empty string.
std::string why_no_device_attention();

// Computes attention() of arrays on the host by cuda::attention() on the first device that is new
// enough. Copies to the device all bytes from the lowest to the highest element of each array,
// which keeps strides, alignment and gaps, and copies the results back. Runs the call `runs` times.
// Throws std::runtime_error if a run gives other bits than the first, or writes a byte around a
// result or in an array that is only read.
void device_attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                      int runs = 1);

// Computes attention_backward() by cuda::attention_backward(), with the device, copies and checks
// of device_attention(). The gradients may be those of q, k, v, bias, slopes, sinks and parameters
// of the additive score.
void device_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                     const OutputGradients& sources, const InputGradients& gradients, int runs = 1);

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_DEVICE_FORWARD_H_
