// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_QUANTIZE_Q8_H_
#define QKV_CORE_QUANTIZE_Q8_H_

#include <string_view>

#include <qkv/view.h>

namespace qkv::core {

// What a call to qkv::quantize_q8 does once its arguments are checked. Throws Error, naming
// `function` and `name`, for numbers that no block can hold.
void quantize_q8(std::string_view function, const char* name, const ConstView& x, const View& to);

}  // namespace qkv::core

#endif  // QKV_CORE_QUANTIZE_Q8_H_
