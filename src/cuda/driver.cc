// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <cstdint>
#include <iterator>

#include <dlfcn.h>

#include <qkv/error.h>

#include "core/message.h"
#include "core/one_line.h"

namespace qkv::cuda {
namespace {

// 12080 as "12.8".
std::string shown_version(int version) {
  return core::text(version / 1000, ".", version % 1000 / 10);
}

// The first release of the driver for CUDA's major version, as the end of a sentence; empty if this
// function does not know the release.
std::string release_for(int version) {
  if (version / 1000 == 12) return " (driver 525)";
  if (version / 1000 == 13) return " (driver 580)";
  return "";
}

std::string shown_device(const Device& device) {
  return core::text("device ", device.number, " (", device.name, ")");
}

}  // namespace

Driver::Driver(const char* library, int least_version) {
  try {
    open(library);
    if (why_.empty()) start(least_version);
  } catch (const DriverError& error) {
    devices_.clear();
    why_ = core::on_one_line(error.what());
  }
}

// The library stays open: the driver's threads and exit handlers may run until the process ends.
void Driver::open(const char* library) {
  void* const opened = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* const said = ::dlerror();
    const std::string reason = said == nullptr ? "" : said;
    const bool is_absent =
        reason.starts_with(std::string(library) + ": cannot open shared object") &&
        reason.ends_with("No such file or directory");
    why_ = is_absent ? core::text("no CUDA driver on this machine (", library, ")")
                     : core::text("the CUDA driver cannot be opened: ", core::on_one_line(reason));
    return;
  }
#define QKV_FIND(name, symbol, ...)                                                          \
  functions_.name = reinterpret_cast<Status (*)(__VA_ARGS__)>(::dlsym(opened, symbol));      \
  if (functions_.name == nullptr) {                                                          \
    why_ = core::text("the CUDA driver is too old: ", library, " has no function ", symbol); \
    return;                                                                                  \
  }
  QKV_CUDA_FUNCTIONS(QKV_FIND)
#undef QKV_FIND
}

void Driver::start(int least_version) {
  const Status started = functions_.init(0);
  if (started == kNoDevice) {
    why_ = "the CUDA driver finds no device";
    return;
  }
  check(started, "starting the CUDA driver");
  int version = 0;
  check(functions_.driver_version(&version), "asking the CUDA driver for its version");
  // A driver runs the code of every compiler with its major number.
  if (version / 1000 < least_version / 1000) {
    why_ = core::text("the CUDA driver is for CUDA ", shown_version(version),
                      ", but the kernels of this build are for CUDA ", shown_version(least_version),
                      release_for(least_version));
    return;
  }
  int count = 0;
  check(functions_.device_count(&count), "counting CUDA devices");
  for (int number = 0; number < count; ++number) devices_.push_back(describe(number));
  if (devices_.empty()) why_ = "the CUDA driver finds no device";
}

Device Driver::describe(int number) const {
  const std::string action = core::text("asking about CUDA device ", number);
  DeviceHandle handle = 0;
  check(functions_.device(&handle, number), action);
  Device device{.number = number};
  char name[256] = "";
  check(functions_.device_name(name, static_cast<int>(std::size(name)) - 1, handle), action);
  device.name = core::on_one_line(name);
  check(functions_.device_memory(&device.memory_bytes, handle), action);
  check(functions_.device_attribute(&device.major, kMajor, handle), action);
  check(functions_.device_attribute(&device.minor, kMinor, handle), action);
  check(functions_.device_attribute(&device.multiprocessors, kMultiprocessors, handle), action);
  return device;
}

void Driver::check(Status status, std::string_view action) const {
  if (status == kSuccess) return;
  const char* name = nullptr;
  const char* description = nullptr;
  if (functions_.error_name(status, &name) != kSuccess || name == nullptr ||
      functions_.error_text(status, &description) != kSuccess || description == nullptr) {
    throw DriverError(core::text(action, ": CUDA error ", status), status);
  }
  throw DriverError(core::text(action, ": ", name, " (", description, ")"), status);
}

void Driver::check_device(std::string_view function, int device) const {
  if (devices_.empty()) throw Error(function, "", core::text("needs a CUDA device: ", why_));
  const int count = static_cast<int>(devices_.size());
  if (device < 0 || device >= count) {
    throw Error(function, "stream",
                core::text("has device ", device, ", but there ",
                           count == 1 ? "is only device 0"
                                      : core::text("are only devices 0 to ", count - 1)));
  }
  const Device& chosen = devices_[static_cast<std::size_t>(device)];
  if (chosen.major < kLeastMajor) {
    throw Error(function, "stream",
                core::text("has ", shown_device(chosen), ", of compute capability ", chosen.major,
                           ".", chosen.minor, ", but the kernels need ", kLeastMajor, ".0"));
  }
}

ContextHandle Driver::primary_context(int device) {
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = contexts_.try_emplace(device);
  if (!is_new) return place->second;
  try {
    DeviceHandle handle = 0;
    const std::string action = core::text("using CUDA device ", device);
    check(functions_.device(&handle, device), action);
    check(functions_.retain_primary_context(&place->second, handle), action);
  } catch (...) {
    contexts_.erase(place);
    throw;
  }
  return place->second;
}

Kernel& Driver::kernel(int device, const Image& image, const std::string& name) {
  const CurrentContext current(*this, "kernel", device);
  const std::lock_guard lock(mutex_);
  const std::byte* const bytes = image.bytes.data();
  const auto found = kernels_.find({device, bytes, name});
  if (found != kernels_.end()) return found->second;
  const std::string action = core::text("loading ", name, " on CUDA device ", device);
  auto module = modules_.find({device, bytes});
  if (module == modules_.end()) {
    ModuleHandle loaded = nullptr;
    check(functions_.load_module(&loaded, bytes), action);
    module = modules_.emplace(std::pair(device, bytes), loaded).first;
  }
  Kernel kernel{.name = name, .device = device};
  check(functions_.module_function(&kernel.handle, module->second, name.c_str()), action);
  return kernels_.emplace(std::tuple(device, bytes, name), std::move(kernel)).first->second;
}

void Driver::launch_pointers(Kernel& kernel, Extent grid, Extent block, unsigned shared_bytes,
                             StreamHandle stream, void** arguments) {
  const auto action = [&] {
    return core::text("starting ", kernel.name, " on CUDA device ", kernel.device);
  };
  {
    // The limit is never lowered: another thread may be about to launch with more shared memory.
    const std::lock_guard lock(mutex_);
    if (shared_bytes > kernel.shared_bytes) {
      const Status status = functions_.set_function_attribute(
          kernel.handle, kMostDynamicSharedBytes, static_cast<int>(shared_bytes));
      if (status != kSuccess) check(status, action());
      kernel.shared_bytes = shared_bytes;
    }
  }
  const Status status =
      functions_.launch_kernel(kernel.handle, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                               shared_bytes, stream, arguments, nullptr);
  if (status != kSuccess) check(status, action());
}

Memory Driver::memory_of(const void* pointer) const {
  unsigned type = 0;
  unsigned is_managed = 0;
  int device = -1;
  PointerAttribute attributes[] = {kMemoryType, kIsManaged, kDeviceOrdinal};
  void* values[] = {&type, &is_managed, &device};
  // For an address that the driver does not know, cuPointerGetAttributes succeeds and gives zeros.
  check(functions_.pointer_attributes(static_cast<unsigned>(std::size(values)), attributes, values,
                                      reinterpret_cast<std::uintptr_t>(pointer)),
        "asking the CUDA driver about an address");
  if ((is_managed & 0xFFU) != 0) return {MemoryKind::kManaged, device};
  if (type == kDeviceMemory) return {MemoryKind::kDevice, device};
  if (type == kHostMemory) return {MemoryKind::kHost, -1};
  return {};
}

Driver& driver() {
  // Never destroyed: other threads may use it while the process ends.
  static Driver* const opened = new Driver("libcuda.so.1", toolkit_version());
  return *opened;
}

CurrentContext::CurrentContext(Driver& driver, std::string_view function, int device)
    : driver_(driver) {
  driver.check_device(function, device);
  driver.check(driver.functions().push_context(driver.primary_context(device)),
               "making a CUDA context current");
}

CurrentContext::~CurrentContext() {
  ContextHandle popped = nullptr;
  driver_.functions().pop_context(&popped);
}

}  // namespace qkv::cuda
