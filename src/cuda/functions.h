// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_FUNCTIONS_H_
#define QKV_CUDA_FUNCTIONS_H_

#include <cstddef>
#include <cstdint>

// The functions of the CUDA driver that qkv calls, declared here so that no CUDA header is needed.
// Names, types and numbers are those of the driver's binary interface, which no version changes: a
// function with another signature gets another symbol (_v2).
namespace qkv::cuda {

using Status = int;             // CUresult
using DeviceHandle = int;       // CUdevice
using ContextHandle = void*;    // CUcontext
using ModuleHandle = void*;     // CUmodule
using FunctionHandle = void*;   // CUfunction
using StreamHandle = void*;     // CUstream
using EventHandle = void*;      // CUevent
using Address = std::uint64_t;  // CUdeviceptr, equal to the pointer of the same array

constexpr Status kSuccess = 0;     // CUDA_SUCCESS
constexpr Status kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE

// CUdevice_attribute, CUpointer_attribute, CUmemorytype, CUfunction_attribute
enum DeviceAttribute : int { kMultiprocessors = 16, kMajor = 75, kMinor = 76 };
enum PointerAttribute : int { kMemoryType = 2, kIsManaged = 8, kDeviceOrdinal = 9 };
enum MemoryType : unsigned { kHostMemory = 1, kDeviceMemory = 2 };
enum FunctionAttribute : int { kMostDynamicSharedBytes = 8 };

// X(name in Functions, symbol in the driver's library, types of the parameters)
#define QKV_CUDA_FUNCTIONS(X)                                                                   \
  X(init, "cuInit", unsigned)                                                                   \
  X(driver_version, "cuDriverGetVersion", int*)                                                 \
  X(error_name, "cuGetErrorName", Status, const char**)                                         \
  X(error_text, "cuGetErrorString", Status, const char**)                                       \
  X(device_count, "cuDeviceGetCount", int*)                                                     \
  X(device, "cuDeviceGet", DeviceHandle*, int)                                                  \
  X(device_name, "cuDeviceGetName", char*, int, DeviceHandle)                                   \
  X(device_memory, "cuDeviceTotalMem_v2", std::size_t*, DeviceHandle)                           \
  X(device_attribute, "cuDeviceGetAttribute", int*, DeviceAttribute, DeviceHandle)              \
  X(retain_primary_context, "cuDevicePrimaryCtxRetain", ContextHandle*, DeviceHandle)           \
  X(push_context, "cuCtxPushCurrent_v2", ContextHandle)                                         \
  X(pop_context, "cuCtxPopCurrent_v2", ContextHandle*)                                          \
  X(load_module, "cuModuleLoadData", ModuleHandle*, const void*)                                \
  X(module_function, "cuModuleGetFunction", FunctionHandle*, ModuleHandle, const char*)         \
  X(set_function_attribute, "cuFuncSetAttribute", FunctionHandle, FunctionAttribute, int)       \
  X(launch_kernel, "cuLaunchKernel", FunctionHandle, unsigned, unsigned, unsigned, unsigned,    \
    unsigned, unsigned, unsigned, StreamHandle, void**, void**)                                 \
  X(pointer_attributes, "cuPointerGetAttributes", unsigned, PointerAttribute*, void**, Address) \
  X(allocate, "cuMemAlloc_v2", Address*, std::size_t)                                           \
  X(free, "cuMemFree_v2", Address)                                                              \
  X(allocate_async, "cuMemAllocAsync", Address*, std::size_t, StreamHandle)                     \
  X(free_async, "cuMemFreeAsync", Address, StreamHandle)                                        \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2", Address, const void*, std::size_t, StreamHandle)    \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2", void*, Address, std::size_t, StreamHandle)            \
  X(set_bytes, "cuMemsetD8Async", Address, unsigned char, std::size_t, StreamHandle)            \
  X(create_stream, "cuStreamCreate", StreamHandle*, unsigned)                                   \
  X(destroy_stream, "cuStreamDestroy_v2", StreamHandle)                                         \
  X(synchronize, "cuStreamSynchronize", StreamHandle)                                           \
  X(is_capturing, "cuStreamIsCapturing", StreamHandle, int*)                                    \
  X(create_event, "cuEventCreate", EventHandle*, unsigned)                                      \
  X(record_event, "cuEventRecord", EventHandle, StreamHandle)                                   \
  X(synchronize_event, "cuEventSynchronize", EventHandle)                                       \
  X(elapsed_milliseconds, "cuEventElapsedTime", float*, EventHandle, EventHandle)               \
  X(destroy_event, "cuEventDestroy_v2", EventHandle)

// Pointers to the functions of an opened driver.
struct Functions {
#define QKV_POINTER(name, symbol, ...) Status (*name)(__VA_ARGS__) = nullptr;
  QKV_CUDA_FUNCTIONS(QKV_POINTER)
#undef QKV_POINTER
};

}  // namespace qkv::cuda

#endif  // QKV_CUDA_FUNCTIONS_H_
