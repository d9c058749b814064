// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulated_kernels.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cuda/device/additive.h"
#include "cuda/device/additive_gradients.h"
#include "cuda/device/additive_products.h"
#include "cuda/device/bias_gradients.h"
#include "cuda/device/float_forward.h"
#include "cuda/device/float_gradients.h"
#include "cuda/device/forward.h"
#include "cuda/device/gradients.h"
#include "cuda/device/head_gradients.h"
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
#define QKV_KERNEL(NAME, SHAPE)                             \
  if (std::strcmp(name, "qkv_float_forward_" #NAME) == 0) { \
    cuda::float_forward<cuda::SHAPE>(arguments);            \
    return;                                                 \
  }
  QKV_FOR_EACH_FLOAT_FORWARD(QKV_KERNEL)
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

void run_kernel(const char* name, const cuda::AdditiveArguments& arguments) {
  if (std::strcmp(name, "qkv_additive_project") == 0) {
    cuda::project(arguments);
    return;
  }
#define QKV_KERNEL(NAME, SHAPE, BLOCKS)                \
  if (std::strcmp(name, "qkv_additive_" #NAME) == 0) { \
    cuda::additive<cuda::SHAPE>(arguments);            \
    return;                                            \
  }
  QKV_FOR_EACH_ADDITIVE(QKV_KERNEL)
#undef QKV_KERNEL
  throw std::logic_error(std::string("no kernel ") + name);
}

void run_kernel(const char* name, const cuda::AdditiveGradientArguments& arguments) {
#define QKV_KERNEL(NAME, SHAPE, BLOCKS)                          \
  if (std::strcmp(name, "qkv_additive_gradients_" #NAME) == 0) { \
    cuda::additive_gradients_##NAME(arguments);                  \
    return;                                                      \
  }
  QKV_FOR_EACH_ADDITIVE_GRADIENT(QKV_KERNEL)
#undef QKV_KERNEL
  throw std::logic_error(std::string("no kernel ") + name);
}

void run_kernel(const char* name, const cuda::FloatGradientArguments& arguments) {
#define QKV_KERNEL(NAME)                                      \
  if (std::strcmp(name, "qkv_float_gradients_" #NAME) == 0) { \
    cuda::float_gradients_##NAME(arguments);                  \
    return;                                                   \
  }
  QKV_FOR_EACH_FLOAT_GRADIENT(QKV_KERNEL)
#undef QKV_KERNEL
  throw std::logic_error(std::string("no kernel ") + name);
}

void run_kernel(const char* name, const cuda::GradientArguments& arguments) {
  using cuda::HeadGradient;
  if (std::strcmp(name, "qkv_head_gradients_slopes") == 0) {
    cuda::head_gradients<HeadGradient::kSlopes>(arguments);
    return;
  }
  if (std::strcmp(name, "qkv_head_gradients_sinks") == 0) {
    cuda::head_gradients<HeadGradient::kSinks>(arguments);
    return;
  }
#define QKV_KERNELS(NAME, SHAPE, TILES)                            \
  if (std::strcmp(name, "qkv_prepare_gradients_" #NAME) == 0) {    \
    cuda::prepare_gradients<cuda::SHAPE, cuda::TILES>(arguments);  \
    return;                                                        \
  }                                                                \
  if (std::strcmp(name, "qkv_query_gradients_" #NAME) == 0) {      \
    cuda::query_gradients<cuda::SHAPE, cuda::TILES>(arguments);    \
    return;                                                        \
  }                                                                \
  if (std::strcmp(name, "qkv_key_gradients_" #NAME) == 0) {        \
    cuda::key_gradients<cuda::SHAPE, cuda::TILES>(arguments);      \
    return;                                                        \
  }                                                                \
  if (std::strcmp(name, "qkv_bias_gradients_" #NAME) == 0) {       \
    cuda::bias_gradients<cuda::SHAPE, cuda::TILES>(arguments);     \
    return;                                                        \
  }                                                                \
  if (std::strcmp(name, "qkv_distance_gradients_" #NAME) == 0) {   \
    cuda::distance_gradients<cuda::SHAPE, cuda::TILES>(arguments); \
    return;                                                        \
  }
  QKV_FOR_EACH_GRADIENT(QKV_KERNELS)
#undef QKV_KERNELS
  throw std::logic_error(std::string("no kernel ") + name);
}

}  // namespace

void emulate_kernel(const char* name, std::int64_t blocks, int threads, std::size_t shared_bytes,
                    const void* arguments, std::uint32_t seed) {
  const EmulatedLaunch launch{blocks, threads, shared_bytes, seed};
  const std::string_view text = name;
  const auto run = [&]<class Arguments>(const Arguments*) {
    emulate(launch, [&] { run_kernel(name, *static_cast<const Arguments*>(arguments)); });
  };
  if (text.starts_with("qkv_additive_gradients_")) {
    run(static_cast<const cuda::AdditiveGradientArguments*>(nullptr));
  } else if (text.starts_with("qkv_float_gradients_")) {
    run(static_cast<const cuda::FloatGradientArguments*>(nullptr));
  } else if (text.starts_with("qkv_additive_")) {
    run(static_cast<const cuda::AdditiveArguments*>(nullptr));
  } else if (text.find("_gradients_") != std::string_view::npos) {
    run(static_cast<const cuda::GradientArguments*>(nullptr));
  } else {
    run(static_cast<const cuda::ForwardArguments*>(nullptr));
  }
}

}  // namespace qkv::test
