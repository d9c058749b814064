// SPDX-License-Identifier: Apache-2.0
#include "page/map_code.h"

#include <array>
#include <bit>
#include <cmath>

namespace qkv::app::page {
namespace {

// Returns the bytes as planes: the lowest byte of every number, then the next byte of every number,
// and so on. Planes of like bytes compress better than numbers.
template <class Number>
std::string planes_of(std::span<const double> numbers) {
  constexpr std::size_t kBytes = sizeof(Number);
  std::string planes(numbers.size() * kBytes, '\0');
  for (std::size_t n = 0; n < numbers.size(); ++n) {
    const auto bytes = std::bit_cast<std::array<char, kBytes>>(static_cast<Number>(numbers[n]));
    for (std::size_t byte = 0; byte < kBytes; ++byte) {
      planes[byte * numbers.size() + n] = bytes[byte];
    }
  }
  return planes;
}

unsigned code_of(double number, const MapCode& code) {
  if (number == 0) return kCodeZero;
  if (std::isnan(number)) return kCodeNan;
  if (std::isinf(number) || std::abs(number) > code.most || (number < 0 && !code.signs)) {
    return number > 0 ? kCodeInfinity : kCodeMinusInfinity;
  }
  const auto steps = static_cast<unsigned>(std::lround(std::abs(number) / code.step));
  if (steps == 0) return kCodeSmall;
  if (!code.signs) return kCodeFirst + steps - 1;
  return kCodeFirst + 2 * (steps - 1) + (number < 0 ? 1U : 0U);
}

void append(unsigned code, std::string& bytes) {
  const auto add = [&bytes](unsigned byte) { bytes += static_cast<char>(byte & 255U); };
  if (code < kOneByte) return add(code);
  if (code < kTwoBytes) {
    add(kOneByte + (code - kOneByte) / 256);
    return add(code - kOneByte);
  }
  add(255);
  for (const unsigned shift : {16U, 8U, 0U}) add((code - kTwoBytes) >> shift);
}

}  // namespace

std::string coded(std::span<const double> numbers, const MapCode& code) {
  if (code.form == NumberForm::kFloat32) return planes_of<float>(numbers);
  if (code.form == NumberForm::kFloat64) return planes_of<double>(numbers);
  std::string bytes;
  bytes.reserve(numbers.size());
  for (const double number : numbers) append(code_of(number, code), bytes);
  return bytes;
}

std::string coded_bits(std::span<const bool> bits) {
  std::string bytes((bits.size() + 7) / 8, '\0');
  for (std::size_t n = 0; n < bits.size(); ++n) {
    if (!bits[n]) continue;
    char& byte = bytes[n / 8];
    byte = static_cast<char>(static_cast<unsigned char>(byte) | 1U << (n % 8));
  }
  return bytes;
}

}  // namespace qkv::app::page
