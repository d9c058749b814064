// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_STREAM_MEMORY_H_
#define QKV_CUDA_STREAM_MEMORY_H_

#include <cstddef>

#include "core/message.h"
#include "cuda/driver.h"

namespace qkv::cuda {

// Memory of the current device for the work of one call, allocated and freed in the order of a
// stream, so that the host does not wait for the device. The driver's pool keeps freed memory for
// later calls until the host synchronizes.
class StreamMemory {
 public:
  // Allocates nothing if `bytes` is 0.
  StreamMemory(const Driver& driver, StreamHandle stream, std::size_t bytes)
      : driver_(driver), stream_(stream) {
    if (bytes == 0) return;
    driver.check(driver.functions().allocate_async(&address_, bytes, stream),
                 core::text("allocating ", bytes, " bytes for a call"));
  }
  ~StreamMemory() {
    if (address_ != 0) driver_.functions().free_async(address_, stream_);
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(address_);  // NOLINT(performance-no-int-to-ptr)
  }

 private:
  const Driver& driver_;
  StreamHandle stream_;
  Address address_ = 0;
};

}  // namespace qkv::cuda

#endif  // QKV_CUDA_STREAM_MEMORY_H_
