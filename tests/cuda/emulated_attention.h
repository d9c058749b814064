// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_CUDA_EMULATED_ATTENTION_H_
#define QKV_TESTS_CUDA_EMULATED_ATTENTION_H_

#include <cstdint>
#include <string>

#include <qkv/attention.h>

namespace qkv::test {

// Returns why the forward kernels do not support a call, or an empty string.
std::string emulated_unsupported(const Inputs& inputs, const Options& options,
                                 const Outputs& outputs);

// Computes attention() in the emulator, by the kernels that would run on a GPU. Arrays are in
// memory of the host. `seed` chooses the order of threads and copies.
void emulated_attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                        std::uint32_t seed = 1);

// Returns why the gradient kernels do not support a call, or an empty string.
std::string emulated_unsupported(const Inputs& inputs, const Options& options, const Saved& saved,
                                 const OutputGradients& sources, const InputGradients& gradients);

// Computes attention_backward() in the emulator, by the gradient kernels. Arrays are in memory of
// the host. `seed` chooses the order of threads and copies.
void emulated_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                       const OutputGradients& sources, const InputGradients& gradients,
                       std::uint32_t seed = 1);

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_EMULATED_ATTENTION_H_
