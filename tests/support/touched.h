// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_TOUCHED_H_
#define QKV_TESTS_SUPPORT_TOUCHED_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <qkv/dtype.h>
#include <qkv/view.h>

// Memory that shows how far a call has progressed.
namespace qkv::test {

// An array in C order whose elements are 0, in pages of its own. Memory that is only read is never
// committed, however large it is. While the array is watched, the second half of its pages is
// inaccessible: the first access to each page faults, and the handler sets a flag, counts the page
// and makes it accessible. Only one array can be watched at a time.
class TouchedArray {
 public:
  TouchedArray(DType dtype, const Dims& shape)
      : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
        touched_((bytes_of(dtype, shape) + page_ - 1) / page_) {
    void* memory = ::mmap(nullptr, touched_.size() * page_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(memory);
    view_ = View(memory_, dtype, shape, contiguous_strides(shape));
  }
  ~TouchedArray() { ::munmap(memory_, touched_.size() * page_); }
  TouchedArray(const TouchedArray&) = delete;
  TouchedArray& operator=(const TouchedArray&) = delete;

  const View& view() const { return view_; }
  operator View() const { return view_; }       // NOLINT(google-explicit-constructor)
  operator ConstView() const { return view_; }  // NOLINT(google-explicit-constructor)

  // The number of watched pages, and of those that were accessed during the last watch.
  Index watched() const { return static_cast<Index>(touched_.size() - touched_.size() / 2); }
  Index touched() const {
    Index count = 0;
    for (const auto& page : touched_) count += page.load() ? 1 : 0;
    return count;
  }

  // Watches the array for its lifetime; `flag` is set at the first access.
  class Watch {
   public:
    Watch(TouchedArray& array, std::atomic<bool>& flag) : array_(array) {
      for (auto& page : array.touched_) page = false;
      array.flag_ = &flag;
      watched_array = &array;
      struct sigaction action {};
      action.sa_sigaction = &handle;
      action.sa_flags = SA_SIGINFO;
      ::sigaction(SIGSEGV, &action, &before_);
      const std::size_t open = array.touched_.size() / 2;
      ::mprotect(array.memory_ + open * array.page_, (array.touched_.size() - open) * array.page_,
                 PROT_NONE);
    }
    ~Watch() {
      ::mprotect(array_.memory_, array_.touched_.size() * array_.page_, PROT_READ | PROT_WRITE);
      ::sigaction(SIGSEGV, &before_, nullptr);
      watched_array = nullptr;
    }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    TouchedArray& array_;
    struct sigaction before_ {};
  };

 private:
  // The access is retried after the handler returns. A fault elsewhere recurs, and ends the test.
  static void handle(int number, siginfo_t* info, void*) {
    TouchedArray& array = *watched_array;
    const auto offset = reinterpret_cast<std::uintptr_t>(info->si_addr) -
                        reinterpret_cast<std::uintptr_t>(array.memory_);
    const std::size_t page = offset / array.page_;
    if (page >= array.touched_.size()) {
      ::signal(number, SIG_DFL);
      return;
    }
    *array.flag_ = true;
    array.touched_[page] = true;
    ::mprotect(array.memory_ + page * array.page_, array.page_, PROT_READ | PROT_WRITE);
  }

  static std::size_t bytes_of(DType dtype, const Dims& shape) {
    std::size_t bytes = size_of(dtype);
    for (int axis = 0; axis < shape.rank(); ++axis) bytes *= static_cast<std::size_t>(shape[axis]);
    return bytes;
  }

  static inline std::atomic<TouchedArray*> watched_array = nullptr;

  std::size_t page_;
  std::vector<std::atomic<bool>> touched_;
  std::byte* memory_ = nullptr;
  View view_;
  std::atomic<bool>* flag_ = nullptr;
};

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_TOUCHED_H_
