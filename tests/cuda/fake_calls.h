// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_CUDA_FAKE_CALLS_H_
#define QKV_TESTS_CUDA_FAKE_CALLS_H_

#include <string>

#include <dlfcn.h>

// Access to the fake drivers, which tests/cuda/CMakeLists.txt makes from fake_driver.cc.
namespace qkv::test {

// Returns the path of a fake driver's library.
inline std::string path_of(const std::string& driver) {
  return std::string(QKV_FAKE_DRIVERS) + "/" + driver + "/libcuda.so.1";
}

// Returns the calls of a fake driver, one a line, since this function was last called for it.
inline std::string fake_calls(const std::string& driver) {
  void* const library = ::dlopen(path_of(driver).c_str(), RTLD_NOW);
  const auto taken = reinterpret_cast<const char* (*)()>(::dlsym(library, "fake_calls"));
  std::string text = taken();
  ::dlclose(library);
  return text;
}

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_FAKE_CALLS_H_
