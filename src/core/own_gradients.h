// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_OWN_GRADIENTS_H_
#define QKV_CORE_OWN_GRADIENTS_H_

#include <algorithm>
#include <array>

#include "core/arena.h"
#include "core/problem.h"
#include "core/results.h"
#include "core/stop.h"

namespace qkv::core {

// Gradient accumulators: for each target a C-ordered array of T in the shape of the user's buffer,
// which is the buffer itself if it has that layout and is overwritten.
template <class T>
class OwnGradients {
 public:
  OwnGradients(const Problem& p, const GradientResults& to) : p_(p), to_(to) {}

  // Memory for the targets for which needs(target).
  template <class AnyArena, class Needs>
  void take(AnyArena& arena, const Needs& needs) {
    const auto targets = to_.all();
    for (std::size_t n = 0; n < targets.size(); ++n) {
      const GradientTarget& target = *targets[n];
      own_[n] = nullptr;
      if (!target.given() || !needs(target)) continue;
      own_[n] = is_in_place(target) ? static_cast<T*>(target.buffer.data())
                                    : arena.template take<T>(target.buffer.element_count()).data();
    }
  }
  // Sets to 0 all that have memory and for which is_summed(target).
  template <class IsSummed>
  void clear(const StopPoint& stop, const IsSummed& is_summed) const {
    const auto targets = to_.all();
    for (std::size_t n = 0; n < targets.size(); ++n) {
      if (own_[n] == nullptr || !is_summed(*targets[n])) continue;
      const Index count = targets[n]->buffer.element_count();
      for (Index x = 0; x < count; x += kElementsBetweenStops) {
        stop();
        std::fill_n(own_[n] + x, std::min(count - x, kElementsBetweenStops), T(0));
      }
    }
  }
  T* at(const GradientTarget& target, Index b, Index h, Index row, Index col) const {
    return of(target) + offset_of(target.own, batch_offset(target.own, p_.batch, b), h, row, col);
  }
  // Writes to the users' buffers, rounded once.
  void deliver(const StopPoint& stop) const {
    for (const GradientTarget* target : to_.all()) {
      if (of(*target) != nullptr && !is_in_place(*target)) deliver(*target, stop);
    }
  }

 private:
  static constexpr Index kElementsBetweenStops = 1 << 16;

  bool is_in_place(const GradientTarget& target) const {
    return !target.accumulate && target.buffer.dtype() == dtype_of<T> &&
           target.buffer.is_contiguous();
  }
  T* of(const GradientTarget& target) const {
    const auto targets = to_.all();
    const auto at = std::find(targets.begin(), targets.end(), &target) - targets.begin();
    return own_[static_cast<std::size_t>(at)];
  }
  void deliver(const GradientTarget& target, const StopPoint& stop) const {
    const View& buffer = target.buffer;
    const T* from = of(target);
    const Index count = buffer.element_count();
    for (Index n = 0; n < count; ++n) {
      if (n % kElementsBetweenStops == 0) stop();
      Index offset = 0;
      Index rest = n;
      for (int axis = buffer.rank() - 1; axis >= 0; --axis) {
        offset += rest % buffer.shape()[axis] * buffer.strides()[axis];
        rest /= buffer.shape()[axis];
      }
      T value = from[n];
      if (target.accumulate) value += load<T>(buffer.dtype(), buffer.data(), offset);
      store(buffer.dtype(), buffer.data(), offset, value);
    }
  }

  const Problem& p_;
  const GradientResults& to_;
  std::array<T*, GradientResults::kCount> own_{};
};

}  // namespace qkv::core

#endif  // QKV_CORE_OWN_GRADIENTS_H_
