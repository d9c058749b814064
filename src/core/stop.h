// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_STOP_H_
#define QKV_CORE_STOP_H_

#include <atomic>
#include <string_view>

#include <qkv/error.h>
#include <qkv/view.h>

// Cancellation of long loops.
namespace qkv::core {

// The number of steps of a plain loop (elements, multiply-adds) between two reads of the stop flag.
// That many steps take at most a millisecond, even if every step misses the cache.
inline constexpr Index kStepsBetweenStops = Index{1} << 13;

// A point at which a long task can be cancelled: calling it throws Cancelled if the call's stop
// flag is set, and costs one read. Every task that takes more than a few milliseconds calls it.
class StopPoint {
 public:
  StopPoint() = default;  // never throws
  // The flag may be null; the flag and the name outlive the call.
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
