// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_HOLD_OUT_H_
#define QKV_TEXT_HOLD_OUT_H_

#include <cstdint>
#include <span>
#include <vector>

#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

// What a pair is used for.
enum class Part : std::uint8_t {
  kTrain,
  kValid,
  kTest,
  kDropped,  // nothing: its target is also one of a test or validation pair
};

struct HoldOut {
  Index test = 0;   // sources, with all their pairs
  Index valid = 0;  // likewise
  std::uint64_t seed = 0;
};

// The source and the target of a pair as numbers: equal ones for the same text.
struct PairOfTexts {
  std::uint32_t source = 0;
  std::uint32_t target = 0;
};

struct Parts {
  std::vector<Part> of_pairs{};
  Index test = 0;  // sources: as many as were asked for, or all there were
  Index valid = 0;
};

// Divides pairs so that no two parts except kDropped have a source or a target in common. Test and
// validation pairs are those of sources drawn at random by the seed, the same on every machine: a
// smaller test set is part of a larger one. Sources that share a target with a test pair are passed
// over when those of validation are drawn, so that each source has all its pairs. Sources are
// numbered from 0 without gaps, in the order of their first pairs.
QKV_API Parts divided(std::span<const PairOfTexts> pairs, const HoldOut& wanted);

}  // namespace qkv::app

#endif  // QKV_TEXT_HOLD_OUT_H_
