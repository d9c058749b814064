// SPDX-License-Identifier: Apache-2.0
#include "expressions/captured_gradients.h"

#include <algorithm>

#include "core/instances.h"
#include "core/own_gradients.h"
#include "expressions/instances.h"

namespace qkv::expressions {
namespace {

using detail::InstanceTarget;

bool reads(const ScoreMod& mod, std::span<const core::CapturedTarget> targets) {
  if (mod.program == nullptr) return false;
  const auto& steps = mod.program->program.steps();
  return std::any_of(steps.begin(), steps.end(), [&](const Step& step) {
    return std::any_of(targets.begin(), targets.end(),
                       [&](const auto& target) { return target.array.get() == step.array; });
  });
}

}  // namespace

CapturedGradients::CapturedGradients(std::span<const ScoreMod> mods,
                                     std::span<const core::CapturedTarget> targets)
    : mods_(mods) {
  if (targets.empty()) return;
  while (first_ < mods.size() && !reads(mods[first_], targets)) ++first_;
  for (std::size_t n = first_; n < mods.size(); ++n) {
    if (mods[n].program != nullptr) ranges_.emplace_back("", "", mods[n].program->program);
  }
  for (const core::CapturedTarget& target : targets) sums_.emplace_back(*target.array);
}

void CapturedGradients::start() {
  for (CapturedSums& sums : sums_) sums.start_with_all();
}

void CapturedGradients::start(const Pairs& pairs) {
  for (Ranges& ranges : ranges_) ranges.find(pairs);
  for (CapturedSums& sums : sums_) {
    const Dims& shape = sums.array()->view.shape();
    Dims begin = shape;
    Dims size = shape;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      // The range of the indices at which steps read the array, as far as it is within the axis.
      std::int64_t low = shape[axis];
      std::int64_t high = -1;
      for (const Ranges& ranges : ranges_) {
        for (const Step& step : ranges.program().steps()) {
          if (step.array != sums.array()) continue;
          const Range& range = ranges[step.operands[static_cast<std::size_t>(axis)]];
          low = std::min(low, std::max(range.low, std::int64_t{0}));
          high = std::max(high, std::min(range.high, std::int64_t{shape[axis] - 1}));
        }
      }
      begin[axis] = std::min(low, high + 1);
      size[axis] = high + 1 - begin[axis];
    }
    sums.start(begin, size);
  }
}

template <class T>
void CapturedGradients::add(InstanceTarget target, const RowPlace& place, Index n, const T* scores,
                            const T* ds) {
  for (Index c = 0; c < n; c += kPiece) {
    add_piece(target, place.shifted(0, c), std::min(kPiece, n - c), scores + c, ds + c);
  }
}

template <class T>
void CapturedGradients::add_piece(InstanceTarget target, const RowPlace& place, Index n,
                                  const T* scores, const T* ds) {
  // Parts of kPiece numbers: the scores before each mod except the first; gradients; and the scores
  // and slopes of a mod that is not an expression.
  thread_local std::vector<T> memory;
  memory.resize((mods_.size() + 2) * static_cast<std::size_t>(kPiece));
  const auto part = [&](std::size_t number) { return memory.data() + number * kPiece; };
  const auto before = [&](std::size_t mod) { return mod == 0 ? scores : part(mod - 1); };
  T* const own = part(mods_.size() - 1);
  T* const changed = part(mods_.size());
  T* const slopes = part(mods_.size() + 1);
  const auto cols = static_cast<std::int32_t>(n);
  const auto apply = [&](std::size_t mod, T* s, T* with) {
    core::apply_instance<T>(core::instance_for(mods_[mod], target), mods_[mod].callable.get(),
                            {place.at, place.lengths, 1, cols, n, s, with});
  };
  for (std::size_t mod = 0; mod + 1 < mods_.size(); ++mod) {
    std::copy_n(before(mod), n, part(mod));
    apply(mod, part(mod), nullptr);
  }
  const T* gradients = ds;
  for (std::size_t mod = mods_.size(); mod-- > first_;) {
    if (mods_[mod].program != nullptr) {
      const Instance<T>& instance = instance_for<T>(target);
      Evaluation<T>& evaluation = evaluation_of<T>(mods_[mod].program->program);
      instance.run(evaluation, place, n, before(mod), nullptr);
      evaluation.begin_back(gradients, mod > first_, true);
      instance.go_back(evaluation, n);
      evaluation.add_captured(n, sums_);
      const T* const of_scores = evaluation.score_gradients();
      if (of_scores == nullptr) return;
      if (of_scores != own) std::copy_n(of_scores, n, own);
    } else {
      std::copy_n(before(mod), n, changed);
      std::fill_n(slopes, n, T(1));
      apply(mod, changed, slopes);
      // A masked pair has no gradient, whatever its slope is.
      for (Index c = 0; c < n; ++c) own[c] = gradients[c] == 0 ? T(0) : gradients[c] * slopes[c];
    }
    gradients = own;
  }
}

template void CapturedGradients::add(InstanceTarget, const RowPlace&, Index, const float*,
                                     const float*);
template void CapturedGradients::add(InstanceTarget, const RowPlace&, Index, const double*,
                                     const double*);

void CapturedGradients::add_to(CapturedGradients& all) const {
  for (std::size_t n = 0; n < sums_.size(); ++n) sums_[n].add_to(all.sums_[n]);
}

void CapturedGradients::deliver(std::span<const core::CapturedTarget> targets,
                                const core::StopPoint& stop) const {
  for (std::size_t n = 0; n < sums_.size(); ++n) {
    core::deliver_array(sums_[n].sums(), targets[n].buffer, targets[n].accumulate, stop);
  }
}

}  // namespace qkv::expressions
