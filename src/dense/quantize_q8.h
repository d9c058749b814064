// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DENSE_QUANTIZE_Q8_H_
#define QKV_DENSE_QUANTIZE_Q8_H_

#include <string_view>

#include <qkv/view.h>

#include "core/stop.h"

namespace qkv::dense {

// Converts as qkv::quantize_q8 does, without checking the arguments. Throws Error, with `function`
// and `name` in the text, for numbers that no block can hold, and Cancelled if `stop` does.
void quantize_q8(std::string_view function, const char* name, const ConstView& x,
                 const core::StopPoint& stop, const View& to);

}  // namespace qkv::dense

#endif  // QKV_DENSE_QUANTIZE_Q8_H_
