// SPDX-License-Identifier: Apache-2.0
// The part of the fake driver that computes: memory of device 0 is memory of the host, and kernels
// run in the emulator when they are launched.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>

#include "tests/cuda/emulated_kernels.h"

namespace {

constexpr int kInvalid = 1;

std::mutex mutex;
std::mutex launch_mutex;  // the emulator runs one kernel at a time
// Ranges of memory of device 0: the address of the first byte, and that after the last.
std::map<std::uint64_t, std::uint64_t> memory;
std::uint64_t last_stream = 0;

// Ranges may be nested: an allocation may lie in a range that a test has declared.
bool is_device_memory(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  return std::any_of(memory.begin(), memory.upper_bound(address),
                     [&](const auto& range) { return address < range.second; });
}

}  // namespace

extern "C" {

// Declares a range of the host's memory to be memory of device 0.
void fake_device_memory(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex);
  memory[address] = address + bytes;
}
// Undoes fake_device_memory() for the range that begins at this address.
void fake_host_memory(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  memory.erase(address);
}

int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  void* const allocated = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  *address = reinterpret_cast<std::uintptr_t>(allocated);
  fake_device_memory(*address, bytes);
  return 0;
}
int cuMemFree_v2(std::uint64_t address) {
  fake_host_memory(address);
  std::free(reinterpret_cast<void*>(address));  // NOLINT(performance-no-int-to-ptr)
  return 0;
}
int cuMemAllocAsync(std::uint64_t* address, std::size_t bytes, void*) {
  return cuMemAlloc_v2(address, bytes);
}
int cuMemFreeAsync(std::uint64_t address, void*) { return cuMemFree_v2(address); }
int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void*) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);  // NOLINT(performance-no-int-to-ptr)
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void*) {
  std::memcpy(to, reinterpret_cast<void*>(from), bytes);  // NOLINT(performance-no-int-to-ptr)
  return 0;
}
int cuMemsetD8Async(std::uint64_t to, unsigned char value, std::size_t bytes, void*) {
  std::memset(reinterpret_cast<void*>(to), value, bytes);  // NOLINT(performance-no-int-to-ptr)
  return 0;
}
int cuStreamSynchronize(void*) { return 0; }

int cuPointerGetAttributes(unsigned count, const int* attributes, void** values,
                           std::uint64_t address) {
  // Attribute 2 is the type of memory (2: of a device, 0: other). Attribute 9 is the device's
  // number (-2: none).
  const bool device = is_device_memory(address);
  for (unsigned n = 0; n < count; ++n) {
    const int value = attributes[n] == 2              ? (device ? 2 : 0)
                      : attributes[n] == 9 && !device ? -2
                                                      : 0;
    std::memcpy(values[n], &value, sizeof value);
  }
  return 0;
}

// Returns the handle of the last launch's stream.
std::uint64_t fake_last_stream() {
  const std::lock_guard lock(mutex);
  return last_stream;
}

int cuLaunchKernel(void* name, unsigned grid, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned shared_bytes, void* stream, void** values, void**) {
  try {
    {
      const std::lock_guard lock(mutex);
      last_stream = reinterpret_cast<std::uintptr_t>(stream);
    }
    const std::lock_guard lock(launch_mutex);
    qkv::test::emulate_kernel(static_cast<const char*>(name), grid, static_cast<int>(threads),
                              shared_bytes, values[0]);
  } catch (const std::exception&) {
    return kInvalid;
  }
  return 0;
}

}  // extern "C"
