// SPDX-License-Identifier: Apache-2.0
#include "page/map_facts.h"

#include <algorithm>
#include <cmath>

#include <qkv/tensor.h>

namespace qkv::app::page {
namespace {

// Bytes of thumbnail cells that have no place on the bar, and the byte of the bar's first place.
constexpr unsigned kMasked = 0;
constexpr unsigned kZero = 1;
constexpr unsigned kNotFinite = 2;
constexpr unsigned kFirst = 3;
constexpr double kLevels = 252;

// Adds a row to the sums that become the means in the facts. Masked numbers count as well: a
// note warns if a mask hides weights.
void add_row(std::span<const double> row, MapFacts& facts) {
  double sum = 0;
  double entropy = 0;
  for (const double w : row) {
    sum += w;
    if (w > 0) entropy -= w * std::log(w);
  }
  if (!std::isfinite(sum) || sum == 0) return;
  facts.entropy += entropy;
  facts.first += row[0];
  ++facts.rows;
}

unsigned level_of(double number, double magnitude, bool signs) {
  const double root = magnitude > 0 ? std::sqrt(std::min(std::abs(number) / magnitude, 1.0)) : 0;
  const double place = signs ? 0.5 + std::copysign(root / 2, number) : root;
  return kFirst + static_cast<unsigned>(std::lround(kLevels * place));
}

}  // namespace

Map::Map(const ConstView& numbers, const ConstView& allowed)
    : queries_(numbers.size(0)),
      keys_(numbers.size(1)),
      numbers_(static_cast<std::size_t>(numbers.element_count())) {
  qkv::copy(numbers, View(numbers_.data(), numbers.shape()));
  if (!allowed.given()) return;
  allowed_ = std::make_unique<bool[]>(numbers_.size());
  qkv::copy(allowed, View(allowed_.get(), numbers.shape()));
}

void Map::subtract(const Map& other) {
  for (std::size_t n = 0; n < numbers_.size(); ++n) {
    if (allowed_) allowed_[n] = allowed_[n] || other.is_allowed(n);
    numbers_[n] -= other.numbers_[n];
  }
}

MapFacts facts_of(const Map& map) {
  MapFacts facts;
  const std::span<const double> numbers = map.numbers();
  for (std::size_t n = 0; n < numbers.size(); ++n) {
    const double number = numbers[n];
    if (!std::isfinite(number) || !map.is_allowed(n)) continue;
    facts.magnitude = std::max(facts.magnitude, std::abs(number));
    facts.has_negative = facts.has_negative || number < 0;
    facts.lowest = std::min(facts.lowest, number);
    facts.highest = std::max(facts.highest, number);
  }
  const auto keys = static_cast<std::size_t>(map.keys());
  for (std::size_t row = 0; row < numbers.size(); row += keys) {
    add_row(numbers.subspan(row, keys), facts);
  }
  if (facts.rows > 0) {
    facts.entropy /= static_cast<double>(facts.rows);
    facts.first /= static_cast<double>(facts.rows);
  }
  return facts;
}

std::string thumbnail(const Map& map, double magnitude, bool signs) {
  const Index height = std::min(map.queries(), kThumbnailSide);
  const Index width = std::min(map.keys(), kThumbnailSide);
  std::string bytes;
  for (Index a = 0; a < height; ++a) {
    for (Index b = 0; b < width; ++b) {
      double most = 0;
      bool any = false;
      bool finite = true;
      for (Index i = a * map.queries() / height; i < (a + 1) * map.queries() / height; ++i) {
        for (Index j = b * map.keys() / width; j < (b + 1) * map.keys() / width; ++j) {
          const auto cell = static_cast<std::size_t>(i * map.keys() + j);
          if (!map.is_allowed(cell)) continue;
          const double number = map.numbers()[cell];
          any = true;
          finite = finite && std::isfinite(number);
          if (std::abs(number) > std::abs(most)) most = number;
        }
      }
      bytes += static_cast<char>(!any        ? kMasked
                                 : !finite   ? kNotFinite
                                 : most == 0 ? kZero
                                             : level_of(most, magnitude, signs));
    }
  }
  return bytes;
}

}  // namespace qkv::app::page
