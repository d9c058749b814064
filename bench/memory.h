// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_MEMORY_H_
#define QKV_BENCH_MEMORY_H_

#include <cstddef>
#include <memory>

#include <qkv/view.h>

namespace qkv::bench {

// Zeroed memory of whole pages. They are huge pages if the system provides them, so that benchmarks
// measure reads and not page table walks.
class Memory {
 public:
  explicit Memory(std::size_t bytes);
  void* data() const noexcept { return data_.get(); }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(void* data) const noexcept;
  };
  std::unique_ptr<void, Unmap> data_;
};

}  // namespace qkv::bench

#endif  // QKV_BENCH_MEMORY_H_
