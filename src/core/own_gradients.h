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

inline constexpr Index kElementsBetweenStops = 1 << 16;

// Writes or adds one row to the buffer, along its last axis.
template <class T>
void deliver_row(const T* from, Index count, const View& buffer, bool accumulate, Index offset) {
  const Index stride = buffer.rank() == 0 ? 1 : buffer.stride(-1);
  if (buffer.dtype() == dtype_of<T> && stride == 1) {  // the usual case, vectorised
    T* const to = static_cast<T*>(buffer.data()) + offset;
    if (!accumulate) {
      std::copy_n(from, count, to);
      return;
    }
    for (Index n = 0; n < count; ++n) to[n] = from[n] + to[n];
    return;
  }
  if (stride == 1 && !accumulate) {
    visit_dtype(buffer.dtype(), [&]<class Stored>(Stored*) {
      Stored* const to = static_cast<Stored*>(buffer.data()) + offset;
      for (Index n = 0; n < count; ++n) to[n] = from_accumulator<Stored>(from[n]);
    });
    return;
  }
  for (Index n = 0; n < count; ++n, offset += stride) {
    T value = from[n];
    if (accumulate) value += load<T>(buffer.dtype(), buffer.data(), offset);
    store(buffer.dtype(), buffer.data(), offset, value);
  }
}

// Writes an array of sums, in C order, to the buffer, or adds it in T; the result is then rounded
// to the buffer's dtype.
template <class T>
void deliver_array(const T* from, const View& buffer, bool accumulate, const StopPoint& stop) {
  const Index width = buffer.rank() == 0 ? 1 : buffer.size(-1);
  if (width == 0) return;
  const Index rows_between_stops = std::max<Index>(1, kElementsBetweenStops / width);
  for (Index row = 0; row < buffer.element_count() / width; ++row, from += width) {
    if (row % rows_between_stops == 0) stop();
    Index offset = 0;
    Index rest = row;
    for (int axis = buffer.rank() - 2; axis >= 0; --axis) {
      offset += rest % buffer.shape()[axis] * buffer.strides()[axis];
      rest /= buffer.shape()[axis];
    }
    deliver_row(from, width, buffer, accumulate, offset);
  }
}

// The accumulators of gradients. Each target has a C-ordered array of T in the shape of the user's
// buffer. The array is the buffer itself if the buffer has this type and layout and is overwritten,
// not added to.
template <class T>
class OwnGradients {
 public:
  OwnGradients(const Problem& p, const GradientResults& to) : p_(p), to_(to) {}

  // Takes memory for the targets for which needs(target) is true.
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
  // Sets to 0 all accumulators that have memory and for which is_summed(target) is true.
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
  // Writes the accumulators to the users' buffers, or adds them in T if the target accumulates; the
  // result is then rounded to the buffer's dtype.
  void deliver(const StopPoint& stop) const {
    for (const GradientTarget* target : to_.all()) {
      if (of(*target) != nullptr && !is_in_place(*target)) deliver(*target, stop);
    }
  }

 private:
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
    deliver_array(of(target), target.buffer, target.accumulate, stop);
  }

  const Problem& p_;
  const GradientResults& to_;
  std::array<T*, kGradientTargets> own_{};
};

}  // namespace qkv::core

#endif  // QKV_CORE_OWN_GRADIENTS_H_
