// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_CUDA_EMULATED_KERNELS_H_
#define QKV_TESTS_CUDA_EMULATED_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace qkv::test {

// Runs a kernel of src/cuda/device in the emulator. As in a call of the CUDA driver, the kernel is
// chosen by name and gets one pointer: `arguments` points to the struct that this kernel takes,
// such as ForwardArguments. Throws std::logic_error for an unknown name.
void emulate_kernel(const char* name, std::int64_t blocks, int threads, std::size_t shared_bytes,
                    const void* arguments, std::uint32_t seed = 1);

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_EMULATED_KERNELS_H_
