// SPDX-License-Identifier: Apache-2.0
#include "row.h"

#include <fmt/format.h>

namespace qkv::bench {
namespace {

std::string percent(double value) { return fmt::format("{:.1f} %", 100 * value); }
std::string times(double value) { return fmt::format("{:.2f}x", value); }
std::string plain(double value) { return fmt::format("{:.3f}", value); }
std::string billions(double value) { return fmt::format("{:.2f} G/s", value * 1e-9); }

}  // namespace

std::string seconds_text(double seconds) {
  if (seconds < 1e-6) return fmt::format("{:.0f} ns", seconds * 1e9);
  if (seconds < 1e-3) return fmt::format("{:.2f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

Form form_of(Figure figure) {
  using enum Aim;
  switch (figure) {
    case Figure::kPeakShare:
      return {"share_of_peak", "of the peak", percent, kAtLeast};
    case Figure::kReadShare:
      return {"share_of_read", "of a plain read", percent, kAtLeast, "GB/s"};
    case Figure::kThreadShare:
      return {"share_of_thread_peaks", "of the peaks' ratio", plain, kAtLeast};
    case Figure::kPerMultiply:
      return {"rate_per_multiply", "the rate of the other width", times, kAtLeast};
    case Figure::kPlainRatio:
      return {"ratio_to_plain", "the plain time", times, kAtMost};
    case Figure::kHarmlessRatio:
      return {"ratio_to_harmless", "that of scores close together", times, kAtMost};
    case Figure::kUnitRate:
      return {"units_per_second", "of (i,j,u)", billions, kAtLeast, "G/s"};
    case Figure::kRateShare:
      return {"share_of_rate", "of the large call's rate", percent, kAtLeast, "G/s"};
    case Figure::kSeconds:
      break;
  }
  return {"seconds", "a call", seconds_text, kAtMost};
}

Verdict verdict_of(const Row& row) {
  if (!row.fault.empty()) return Verdict::kWrong;
  if (!row.value) return row.base.n > 0 ? Verdict::kNoisy : Verdict::kNone;
  if (!row.target) return Verdict::kNone;
  const bool met = form_of(row.figure).aim == Aim::kAtLeast ? *row.value >= *row.target
                                                            : *row.value <= *row.target;
  return met ? Verdict::kMet : Verdict::kMissed;
}

}  // namespace qkv::bench
