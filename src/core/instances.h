// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_INSTANCES_H_
#define QKV_CORE_INSTANCES_H_

#include <span>
#include <type_traits>

#include <qkv/mods.h>

// The compiled instances of a user function, and the choice between them.
namespace qkv::core {

// Returns the best instance whose target is at most `wanted`. Tables are sorted by target and begin
// with the baseline.
template <class Instance>
const Instance& instance_for(std::span<const Instance> table, detail::InstanceTarget wanted) {
  std::size_t best = 0;
  while (best + 1 < table.size() && table[best + 1].target <= wanted) ++best;
  return table[best];
}

inline const detail::ScoreInstance& instance_for(const ScoreMod& mod,
                                                 detail::InstanceTarget wanted) {
  return instance_for(std::span(mod.instances, static_cast<std::size_t>(mod.instance_count)),
                      wanted);
}

inline const detail::MaskInstance& instance_for(const MaskMod& mod, detail::InstanceTarget wanted) {
  return instance_for(std::span(mod.instances, static_cast<std::size_t>(mod.instance_count)),
                      wanted);
}

// Applies the instance's loop for T, float or double.
template <class T>
void apply_instance(const detail::ScoreInstance& instance, const void* callable,
                    const detail::ScoreTile<T>& tile) {
  if constexpr (std::is_same_v<T, double>) {
    instance.f64(callable, tile);
  } else {
    instance.f32(callable, tile);
  }
}

// The best instance target that this CPU supports.
detail::InstanceTarget best_instance_target() noexcept;

}  // namespace qkv::core

#endif  // QKV_CORE_INSTANCES_H_
