// SPDX-License-Identifier: Apache-2.0
#include "row.h"

namespace qkv::bench {

Aim aim_of(Figure figure) {
  switch (figure) {
    case Figure::kPeakShare:
    case Figure::kReadShare:
    case Figure::kThreadShare:
    case Figure::kPerMultiply:
    case Figure::kUnitRate:
    case Figure::kRateShare:
      return Aim::kAtLeast;
    case Figure::kPlainRatio:
    case Figure::kSeconds:
      return Aim::kAtMost;
  }
  return Aim::kAtLeast;
}

Verdict verdict_of(const Row& row) {
  if (!row.fault.empty()) return Verdict::kWrong;
  if (!row.value) return row.base.n > 0 ? Verdict::kNoisy : Verdict::kNone;
  if (!row.target) return Verdict::kNone;
  const bool met =
      aim_of(row.figure) == Aim::kAtLeast ? *row.value >= *row.target : *row.value <= *row.target;
  return met ? Verdict::kMet : Verdict::kMissed;
}

}  // namespace qkv::bench
