// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulated_kernels.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "cuda/device/forward.h"
#include "cuda/device/inspection.h"
#include "tests/cuda/emulator.h"

namespace qkv::test {
namespace {

void run_kernel(const char* name, const cuda::ForwardArguments& arguments) {
#define QKV_KERNEL(NAME, SHAPE, TILES, EVERY)                  \
  if (std::strcmp(name, "qkv_forward_" #NAME) == 0) {          \
    cuda::forward<cuda::SHAPE, cuda::TILES, EVERY>(arguments); \
    return;                                                    \
  }
  QKV_FOR_EACH_FORWARD(QKV_KERNEL)
#undef QKV_KERNEL
#define QKV_KERNELS(NAME, SHAPE, TILES)                      \
  if (std::strcmp(name, "qkv_sum_columns_" #NAME) == 0) {    \
    cuda::sum_columns<cuda::SHAPE, cuda::TILES>(arguments);  \
    return;                                                  \
  }                                                          \
  if (std::strcmp(name, "qkv_inspect_rows_" #NAME) == 0) {   \
    cuda::inspect_rows<cuda::SHAPE, cuda::TILES>(arguments); \
    return;                                                  \
  }
  QKV_FOR_EACH_INSPECTION(QKV_KERNELS)
#undef QKV_KERNELS
  throw std::logic_error(std::string("no kernel ") + name);
}

}  // namespace

void emulate_kernel(const char* name, std::int64_t blocks, int threads, std::size_t shared_bytes,
                    const void* arguments, std::uint32_t seed) {
  emulate({blocks, threads, shared_bytes, seed},
          [&] { run_kernel(name, *static_cast<const cuda::ForwardArguments*>(arguments)); });
}

}  // namespace qkv::test
