// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_FROZEN_ARRAYS_H_
#define QKV_TESTS_ATTENTION_FROZEN_ARRAYS_H_

#include <deque>
#include <set>
#include <string>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/frozen/draw.h"

// The arrays of frozen calls.
namespace qkv::test::frozen {

// The memory layout of an array.
enum class Order { kC, kSwapped, kEverySecond, kBackwards };

// C order half of the time.
Order draw_order(Draw& draw);

// The same array in another memory layout; what lies between elements is NaN, or -1. The memory
// joins `tensors`, what is unusual about it `features`.
View lay_out(Tensor values, Order order, std::deque<Tensor>& tensors,
             std::set<std::string>& features);

// Whole numbers from low to high.
Tensor whole_numbers(Draw& draw, DType dtype, const Dims& shape, Index low, Index high);

void fill(const View& x, double value);

// Their dtypes and shapes: "float32/bfloat16 q[1,5,64] k[1,9,64] v[1,9,64]".
std::string described(const Inputs& inputs);

}  // namespace qkv::test::frozen

#endif  // QKV_TESTS_ATTENTION_FROZEN_ARRAYS_H_
