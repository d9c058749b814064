// SPDX-License-Identifier: Apache-2.0
#include <qkv/cuda.h>

#include "cuda/driver.h"
#include "cuda/images.h"

namespace qkv::cuda {

std::vector<Device> devices() {
  if (images().empty()) return {};
  return driver().devices();
}

std::string why_no_device() {
  if (images().empty()) return "this build has no CUDA kernels (QKV_CUDA)";
  return driver().why_no_device();
}

DriverError::DriverError(const std::string& message, int code)
    : std::runtime_error(message), code_(code) {}

// The destructor is out of line, so that the type's identity is in the library and crosses
// shared-library boundaries.
DriverError::~DriverError() = default;

}  // namespace qkv::cuda
