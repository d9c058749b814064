// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_HOLD_OUT_H_
#define QKV_TEXT_HOLD_OUT_H_

#include <cstdint>
#include <span>
#include <vector>

#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

// The use of a sentence pair.
enum class Part : std::uint8_t {
  kTrain,
  kValid,
  kTest,
  kDropped,  // not used: a test or validation pair has the same target
};

// The requested sizes of the test and validation sets.
struct HoldOut {
  Index test = 0;   // number of sources in the test set, each with all its pairs
  Index valid = 0;  // number of sources in the validation set, each with all its pairs
  std::uint64_t seed = 0;
};

// The source and the target of a sentence pair as numbers; equal texts have equal numbers.
struct PairOfTexts {
  std::uint32_t source = 0;
  std::uint32_t target = 0;
};

struct Parts {
  std::vector<Part> of_pairs{};
  Index test = 0;   // sources in the test set: the requested number, or as many as there were
  Index valid = 0;  // sources in the validation set
};

// Divides sentence pairs so that no two parts except kDropped have a source or a target in common.
// Test and validation pairs are those of sources drawn at random by the seed, the same on every
// machine; a smaller test set is part of a larger one. A source that shares a target with a test
// pair is not drawn for validation, so that each drawn source keeps all its pairs. Sources must be
// numbered from 0 without gaps, in the order of their first pairs.
QKV_API Parts divided(std::span<const PairOfTexts> pairs, const HoldOut& wanted);

}  // namespace qkv::app

#endif  // QKV_TEXT_HOLD_OUT_H_
