// SPDX-License-Identifier: Apache-2.0
#include <qkv/dtype.h>

#include "core/half_floats.h"

namespace qkv {

BFloat16::BFloat16(float value) noexcept : bits(core::to_bfloat16_bits(value)) {}

BFloat16::operator float() const noexcept { return core::from_bfloat16_bits(bits); }

Float16::Float16(float value) noexcept : bits(core::to_float16_bits(value)) {}

Float16::operator float() const noexcept { return core::from_float16_bits(bits); }

}  // namespace qkv
