// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PAGE_MAP_CODE_H_
#define QKV_PAGE_MAP_CODE_H_

#include <span>
#include <string>

#include <qkv/view.h>

// The numbers of a map as bytes. app/page/decode.js has the inverse.
namespace qkv::app::page {

// The form of the numbers: exact ones as planes of bytes (first the lowest byte of every number),
// or multiples of a step.
enum class NumberForm { kFloat32, kFloat64, kSteps };

struct MapCode {
  NumberForm form = NumberForm::kFloat32;
  double step = 0;     // of kSteps
  double most = 0;     // of kSteps: the largest magnitude of all numbers that are not masked
  bool signs = false;  // of kSteps: whether there are negative numbers that are not masked

  // The largest absolute error of a number below the largest magnitude; 0 if numbers are exact.
  double error() const { return form == NumberForm::kSteps ? step / 2 : 0; }
};

// The codes of kSteps; those below kCodeFirst are special. A small number is one that would round
// to 0: its own code tells it from an exact zero. Masked numbers beyond `most`, and masked
// negative ones without `signs`, have the codes of infinity, and the page says that it lacks them.
enum StepCode : unsigned {
  kCodeZero,
  kCodeSmall,
  kCodeNan,
  kCodeInfinity,
  kCodeMinusInfinity,
  // n steps: kCodeFirst + n - 1 without signs; with them kCodeFirst + 2 (n - 1), and 1 more for -n.
  kCodeFirst,
};
// Codes below kOneByte take one byte, those below kTwoBytes two, all others four: the byte 255,
// then 24 bits, the highest first.
inline constexpr unsigned kOneByte = 192;
inline constexpr unsigned kTwoBytes = kOneByte + 63 * 256;

// Codes the numbers of a map, row by row.
std::string coded(std::span<const double> numbers, const MapCode& code);

// Codes booleans as bits, eight in a byte, the first in its lowest bit.
std::string coded_bits(std::span<const bool> bits);

}  // namespace qkv::app::page

#endif  // QKV_PAGE_MAP_CODE_H_
