// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_STOP_H_
#define QKV_CORE_STOP_H_

#include <atomic>
#include <string_view>

#include <qkv/error.h>
#include <qkv/view.h>

// Where a long loop may end early.
namespace qkv::core {

// Steps of a plain loop (elements, multiply-adds) between two looks at the flag: a millisecond at
// most, also where each step misses the cache.
inline constexpr Index kStepsBetweenStops = Index{1} << 13;

// Called in a task that takes more than some milliseconds: throws Cancelled when the call's stop
// flag is set. It costs one read.
class StopPoint {
 public:
  StopPoint() = default;  // never throws
  // The flag may be null; both outlive the call.
  StopPoint(const std::atomic<bool>* flag, std::string_view function)
      : flag_(flag), function_(function) {}
  bool stopped() const noexcept {
    return flag_ != nullptr && flag_->load(std::memory_order_relaxed);
  }
  void operator()() const {
    if (stopped()) throw Cancelled(function_);
  }

 private:
  const std::atomic<bool>* flag_ = nullptr;
  std::string_view function_;
};

}  // namespace qkv::core

#endif  // QKV_CORE_STOP_H_
