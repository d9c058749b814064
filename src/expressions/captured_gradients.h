// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_CAPTURED_GRADIENTS_H_
#define QKV_EXPRESSIONS_CAPTURED_GRADIENTS_H_

#include <span>
#include <vector>

#include "core/results.h"
#include "core/stop.h"
#include "expressions/captured_sums.h"
#include "expressions/ranges.h"

namespace qkv::expressions {

// The gradients of captured arrays: reverse differentiation of a call's mods, over rows of pairs.
// Sums are kept in float64. A copy sums the pairs of one task; the sums of tasks are then added in
// the order of the tasks.
class CapturedGradients {
 public:
  CapturedGradients() = default;
  // `mods` must outlive this object.
  CapturedGradients(std::span<const ScoreMod> mods, std::span<const core::CapturedTarget> targets);

  bool given() const noexcept { return !sums_.empty(); }
  // Sets the sums of all elements, or of those that some of `pairs` can read, to 0.
  void start();
  void start(const Pairs& pairs);
  // Adds the gradients of n pairs: a query with n keys, from `place` on. `scores` are the scores
  // before the first mod, `ds` the gradients of the scores after the last mod, 0 for masked pairs.
  template <class T>
  void add(detail::InstanceTarget target, const RowPlace& place, Index n, const T* scores,
           const T* ds);
  // Adds the sums to `all`, which has sums of all elements.
  void add_to(CapturedGradients& all) const;
  // Writes the sums of all elements to the targets' buffers, or adds them to what is there.
  void deliver(std::span<const core::CapturedTarget> targets, const core::StopPoint& stop) const;

 private:
  template <class T>
  void add_piece(detail::InstanceTarget target, const RowPlace& place, Index n, const T* scores,
                 const T* ds);

  std::span<const ScoreMod> mods_;
  std::size_t first_ = 0;       // the first mod that reads one of the arrays
  std::vector<Ranges> ranges_;  // of the programs from first_ on
  std::vector<CapturedSums> sums_;
};

}  // namespace qkv::expressions

#endif  // QKV_EXPRESSIONS_CAPTURED_GRADIENTS_H_
