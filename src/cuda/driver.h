// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DRIVER_H_
#define QKV_CUDA_DRIVER_H_

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <qkv/cuda.h>

#include "cuda/functions.h"
#include "cuda/images.h"

namespace qkv::cuda {

// A kernel that is loaded on a device.
struct Kernel {
  FunctionHandle handle = nullptr;
  std::string name{};
  int device = 0;
  // The dynamic shared memory, in bytes, that the driver allows a block of this kernel.
  unsigned shared_bytes = 48U << 10U;
};

struct Extent {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// The kind of memory at an address. kHost: host memory that the driver has pinned or registered.
// kUnknown: memory that the driver does not know, such as all other host memory.
enum class MemoryKind { kUnknown, kHost, kDevice, kManaged };
struct Memory {
  MemoryKind kind = MemoryKind::kUnknown;
  int device = -1;  // -1 for kUnknown and kHost
};

// The CUDA driver: a library that is opened by name and stays open until the process ends. Any
// number of threads may use an object. Functions throw DriverError if the driver reports an error.
class Driver {
 public:
  // Opens and starts a driver, for kernels that were compiled with version `least_version` of CUDA
  // (12080 is CUDA 12.8). Does not throw: without a device, why_no_device() says why.
  Driver(const char* library, int least_version);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  const std::vector<Device>& devices() const { return devices_; }
  const std::string& why_no_device() const { return why_; }

  // The functions of the driver's library, which may be called only if there is a device.
  const Functions& functions() const { return functions_; }
  // Throws DriverError "action: NAME (description)" unless `status` is success.
  void check(Status status, std::string_view action) const;

  // Throws Error if `function` was given a stream of a device that the kernels cannot run on.
  void check_device(std::string_view function, int device) const;

  // Returns kernel `name` of an image, which is loaded on first use and then stays loaded.
  Kernel& kernel(int device, const Image& image, const std::string& name);
  // Launches a kernel once, in a stream of its device, whose context must be current. `arguments`
  // must have the types of the kernel's parameters.
  template <class... Arguments>
  void launch(Kernel& kernel, Extent grid, Extent block, unsigned shared_bytes, StreamHandle stream,
              const Arguments&... arguments) {
    void* pointers[] = {const_cast<Arguments*>(&arguments)..., nullptr};
    launch_pointers(kernel, grid, block, shared_bytes, stream, pointers);
  }

  // The context of some device must be current.
  Memory memory_of(const void* pointer) const;

 private:
  friend class CurrentContext;

  void open(const char* library);
  void start(int least_version);
  Device describe(int number) const;
  void launch_pointers(Kernel& kernel, Extent grid, Extent block, unsigned shared_bytes,
                       StreamHandle stream, void** arguments);
  ContextHandle primary_context(int device);

  Functions functions_{};
  std::vector<Device> devices_{};
  std::string why_{};

  std::mutex mutex_{};  // guards all members below
  std::map<int, ContextHandle> contexts_{};
  std::map<std::pair<int, const std::byte*>, ModuleHandle> modules_{};
  std::map<std::tuple<int, const std::byte*, std::string>, Kernel> kernels_{};
};

// The process's driver, opened on first use.
Driver& driver();

// Makes a device's primary context, which CUDA's runtime and PyTorch also use, the current context
// of this thread until the object is destroyed. Throws Error as Driver::check_device() does.
class CurrentContext {
 public:
  CurrentContext(Driver& driver, std::string_view function, int device);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  Driver& driver_;
};

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DRIVER_H_
