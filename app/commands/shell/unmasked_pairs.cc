// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/unmasked_pairs.h"

#include <algorithm>
#include <limits>
#include <span>

namespace {

template <class T>
qkv::Tensor not_minus_infinity(const qkv::ConstView& scores) {
  qkv::Tensor unmasked(qkv::DType::kBool, scores.shape());
  const std::span<const T> values(scores.as<T>(), static_cast<std::size_t>(scores.element_count()));
  std::ranges::transform(values, unmasked.values<bool>().begin(),
                         [](T s) { return s != -std::numeric_limits<T>::infinity(); });
  return unmasked;
}

}  // namespace

qkv::Tensor unmasked_pairs(const qkv::ConstView& masked_scores) {
  return masked_scores.dtype() == qkv::DType::kFloat64 ? not_minus_infinity<double>(masked_scores)
                                                       : not_minus_infinity<float>(masked_scores);
}
