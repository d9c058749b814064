// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PAGE_MAP_CODE_H_
#define QKV_PAGE_MAP_CODE_H_

#include <span>
#include <string>

#include <qkv/view.h>

// The numbers of a map as bytes. app/page/decode.js has the inverse.
namespace qkv::app::page {

// The form of a map's numbers in bytes: exact numbers, as planes of bytes (first the lowest byte of
// every number, then the next byte of every number), or codes of multiples of a step.
enum class NumberForm { kFloat32, kFloat64, kSteps };

struct MapCode {
  NumberForm form = NumberForm::kFloat32;
  double step = 0;     // for kSteps
  double most = 0;     // for kSteps: the largest magnitude of all numbers that are not masked
  bool signs = false;  // for kSteps: whether there are negative numbers that are not masked

  // The largest absolute error of a number below the largest magnitude; 0 if numbers are exact.
  double error() const { return form == NumberForm::kSteps ? step / 2 : 0; }
};

// The codes of kSteps; those below kCodeFirst are special. kCodeSmall stands for any number that
// would round to 0 but is not 0. Masked numbers beyond `most`, and masked negative ones without
// `signs`, have the codes of infinity, and the page says that it lacks them.
enum StepCode : unsigned {
  kCodeZero,
  kCodeSmall,
  kCodeNan,
  kCodeInfinity,
  kCodeMinusInfinity,
  // The code of n steps, n >= 1: without `signs` kCodeFirst + n - 1; with `signs`
  // kCodeFirst + 2 (n - 1), and 1 more for -n steps.
  kCodeFirst,
};
// Codes below kOneByte take one byte, those below kTwoBytes two, all others four: the byte 255,
// then code - kTwoBytes in 24 bits, the highest byte first.
inline constexpr unsigned kOneByte = 192;
inline constexpr unsigned kTwoBytes = kOneByte + 63 * 256;

// Codes the numbers of a map, row by row.
std::string coded(std::span<const double> numbers, const MapCode& code);

// Codes booleans as bits, eight in a byte, the first in its lowest bit.
std::string coded_bits(std::span<const bool> bits);

}  // namespace qkv::app::page

#endif  // QKV_PAGE_MAP_CODE_H_
