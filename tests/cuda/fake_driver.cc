// SPDX-License-Identifier: Apache-2.0
// A CUDA driver without a GPU: the functions that qkv calls. tests/cuda/CMakeLists.txt makes
// several libraries of this file: `devices`, which has devices but runs no kernels; one for each
// thing that can be wrong with a driver; and with computing_driver.cc one that runs kernels. The
// driver keeps a list of calls, which tests read with fake_calls(). Numbers of attributes and
// memory types are those of src/cuda/functions.h.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#ifndef QKV_FAKE_INIT
#define QKV_FAKE_INIT 0  // what cuInit returns
#endif
#ifndef QKV_FAKE_VERSION
#define QKV_FAKE_VERSION 13000
#endif
#ifndef QKV_FAKE_COUNT
#define QKV_FAKE_COUNT 3
#endif

namespace {

constexpr int kInvalid = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNotFound = 500;
constexpr unsigned kMostSharedBytes = 227U << 10U;

struct Device {
  const char* name;
  std::size_t bytes;
  int major;
  int minor;
  int multiprocessors;
};
constexpr Device kDevices[] = {
    {"NVIDIA H100 80GB HBM3", std::size_t{81559} << 20U, 9, 0, 132},
    {"Tesla T4", std::size_t{15360} << 20U, 7, 5, 40},
    {"NVIDIA A100-SXM4-40GB", std::size_t{40960} << 20U, 8, 0, 108},
};

std::mutex mutex;
[[maybe_unused]] std::mutex names_mutex;
std::string calls;
int contexts[3];
unsigned shared_limit = 48U << 10U;

int called(const std::string& call) {
  const std::lock_guard lock(mutex);
  calls += call + "\n";
  return 0;
}

}  // namespace

extern "C" {

// Returns the driver's calls since the last fake_calls(), one a line.
const char* fake_calls() {
  static std::string taken;
  const std::lock_guard lock(mutex);
  taken.swap(calls);
  calls.clear();
  return taken.c_str();
}

int cuInit(unsigned) { return QKV_FAKE_INIT; }
int cuDriverGetVersion(int* version) {
  *version = QKV_FAKE_VERSION;
  return 0;
}
int cuGetErrorName(int status, const char** name) {
  *name = status == kInvalid       ? "CUDA_ERROR_INVALID_VALUE"
          : status == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY"
          : status == kNotFound    ? "CUDA_ERROR_NOT_FOUND"
          : status == 34           ? "CUDA_ERROR_STUB_LIBRARY"
                                   : nullptr;
  return *name == nullptr ? kInvalid : 0;
}
int cuGetErrorString(int status, const char** text) {
  *text = status == kInvalid       ? "invalid argument"
          : status == kOutOfMemory ? "out of memory"
          : status == kNotFound    ? "named symbol not found"
          : status == 34           ? "CUDA driver is a stub library"
                                   : nullptr;
  return *text == nullptr ? kInvalid : 0;
}
int cuDeviceGetCount(int* count) {
  *count = QKV_FAKE_COUNT;
  return 0;
}
int cuDeviceGet(int* device, int number) {
  *device = number + 100;
  return 0;
}
int cuDeviceGetName(char* name, int size, int device) {
  std::strncpy(name, kDevices[device - 100].name, static_cast<std::size_t>(size));
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  *bytes = kDevices[device - 100].bytes;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const Device& described = kDevices[device - 100];
  switch (attribute) {
    case 16:
      *value = described.multiprocessors;
      return 0;
    case 75:
      *value = described.major;
      return 0;
    case 76:
      *value = described.minor;
      return 0;
    default:
      return kInvalid;
  }
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &contexts[device - 100];
  return called("retain " + std::to_string(device - 100));
}
int cuCtxPushCurrent_v2(void* context) {
  return called("push " + std::to_string(static_cast<int*>(context) - contexts));
}
int cuCtxPopCurrent_v2(void**) { return called("pop"); }
int cuModuleLoadData(void** module, const void* image) {
  *module = const_cast<void*>(image);
  return called("load");
}
int cuModuleGetFunction(void** function, [[maybe_unused]] void* module, const char* name) {
  if (std::strcmp(name, "absent") == 0) return kNotFound;
#ifdef QKV_FAKE_COMPUTES
  // The handle of a function is its name, by which the emulator finds the kernel.
  static std::set<std::string> names;
  const std::lock_guard lock(names_mutex);
  *function = const_cast<char*>(names.insert(name).first->c_str());
#else
  *function = module;
#endif
  return called(std::string("function ") + name);
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  if (attribute != 8 || static_cast<unsigned>(value) > kMostSharedBytes) return kInvalid;
  shared_limit = static_cast<unsigned>(value);
  return called("shared " + std::to_string(value));
}
#if !defined(QKV_FAKE_WITHOUT_LAUNCH) && !defined(QKV_FAKE_COMPUTES)
// Kernels have the parameters (int, double), or one parameter of any type, which is not read.
int cuLaunchKernel(void*, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void* stream, void** values,
                   void**) {
  if (shared > shared_limit) return kInvalid;
  std::string call = "launch";
  for (const unsigned n : {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared}) {
    call += " " + std::to_string(n);
  }
  call += stream == nullptr ? " default " : " stream ";
  if (values[1] != nullptr) {
    call += std::to_string(*static_cast<int*>(values[0])) + " ";
    call += std::to_string(*static_cast<double*>(values[1]));
  }
  return called(call);
}
#endif
#ifndef QKV_FAKE_COMPUTES
// Address 1 is pinned host memory, 2 memory of device 2, 3 managed memory of device 0. The 2^60
// bytes from 2^60 on are memory of device 0, the next 2^60 bytes memory of device 2.
int cuPointerGetAttributes(unsigned count, const int* attributes, void** values,
                           std::uint64_t address) {
  const bool on_device_0 = address >> 60U == 1;
  const bool on_device_2 = address == 2 || address >> 60U == 2;
  for (unsigned n = 0; n < count; ++n) {
    int value = 0;
    switch (attributes[n]) {
      case 2:
        value = address == 1 ? 1 : on_device_2 || address == 3 || on_device_0 ? 2 : 0;
        break;
      case 8:
        value = address == 3 ? 1 : 0;
        break;
      case 9:
        value = on_device_2 ? 2 : address == 3 || on_device_0 ? 0 : -2;
        break;
      default:
        return kInvalid;
    }
    std::memcpy(values[n], &value, sizeof value);
  }
  return 0;
}
#endif

#ifndef QKV_FAKE_COMPUTES
// An allocation larger than the memory of device 0 fails; any other gets one address in it.
int cuMemAllocAsync(std::uint64_t* address, std::size_t bytes, void*) {
  if (bytes > kDevices[0].bytes) return kOutOfMemory;
  *address = (std::uint64_t{1} << 60U) + (std::uint64_t{1} << 40U);
  return called("allocate " + std::to_string(bytes));
}
int cuMemFreeAsync(std::uint64_t, void*) { return called("free"); }
#endif

// Functions that no test calls, and which fail.
#define QKV_UNUSED(name) \
  int name() { return 999; }
#ifndef QKV_FAKE_COMPUTES
QKV_UNUSED(cuMemAlloc_v2)
QKV_UNUSED(cuMemFree_v2)
QKV_UNUSED(cuMemcpyHtoDAsync_v2)
QKV_UNUSED(cuMemcpyDtoHAsync_v2)
QKV_UNUSED(cuMemsetD8Async)
QKV_UNUSED(cuStreamSynchronize)
#endif
QKV_UNUSED(cuStreamCreate)
QKV_UNUSED(cuStreamDestroy_v2)
QKV_UNUSED(cuStreamIsCapturing)
QKV_UNUSED(cuEventCreate)
QKV_UNUSED(cuEventRecord)
QKV_UNUSED(cuEventSynchronize)
QKV_UNUSED(cuEventElapsedTime)
QKV_UNUSED(cuEventDestroy_v2)

}  // extern "C"
