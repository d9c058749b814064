// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_FROZEN_HASH_H_
#define QKV_TESTS_ATTENTION_FROZEN_HASH_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <qkv/tensor.h>

#include "core/storage.h"

namespace qkv::test::frozen {

// FNV-1a, 64 bits, of the bytes of results in C order. All NaNs hash alike: which of two NaNs
// results is up to the compiler.
class Hash {
 public:
  void add(const ConstView& x) {
    Tensor copy = contiguous(x);
    if (is_real(x.dtype())) {
      for (Index n = 0; n < copy.element_count(); ++n) make_one_nan(copy, n);
    }
    const auto* bytes = static_cast<const unsigned char*>(copy.view().data());
    const std::size_t count = static_cast<std::size_t>(copy.element_count()) * size_of(x.dtype());
    for (std::size_t n = 0; n < count; ++n) value_ = (value_ ^ bytes[n]) * 0x100000001B3;
  }
  std::uint64_t value() const { return value_; }

 private:
  static void make_one_nan(Tensor& x, Index n) {
    void* const data = x.view().data();
    const double value = core::load<double>(x.dtype(), data, n);
    if (std::isnan(value)) {
      core::store(x.dtype(), data, n, std::numeric_limits<double>::quiet_NaN());
    }
  }

  std::uint64_t value_ = 0xCBF29CE484222325;
};

}  // namespace qkv::test::frozen

#endif  // QKV_TESTS_ATTENTION_FROZEN_HASH_H_
