// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_CHECKS_H_
#define QKV_LAYERS_CHECKS_H_

#include <initializer_list>
#include <string_view>

#include <qkv/attention.h>
#include <qkv/view.h>

// The layers' checks before they compute anything. Each throws Error naming
// `function`, the argument and its value.
namespace qkv::layers {

struct NamedView {
  std::string_view name;
  ConstView view;
};

// A size given to a constructor: at least 1.
void check_size(std::string_view function, std::string_view argument, Index size);

// The shape of a tensor that a constructor will allocate; `sizes` names the arguments in it.
void check_tensor(std::string_view function, std::string_view sizes, DType dtype,
                  const Dims& shape);

// A probability of dropout: in [0,1).
double checked_dropout(std::string_view function, double p);

// The dtype of a layer with parameters: float32 or float64.
void check_dtype(std::string_view function, DType dtype);

// Given, of this dtype, rank 2 or more, and this size along the last axis.
void check_rows(std::string_view function, const NamedView& array, DType dtype, Index width,
                std::string_view width_name = "width");

// As many channels as the layer's `width_name`. Absent arrays and scalars are left to attention().
void check_channels(std::string_view function, const NamedView& array, Index width,
                    std::string_view width_name);

// A dtype that attention() computes in this one, the layer's. Absent arrays and those without a
// real type are left to attention().
void check_computed_in(std::string_view function, const NamedView& array, DType dtype);

// Given, and float32 or float64.
void check_float(std::string_view function, const NamedView& array);

// Given, and of this dtype and shape.
void check_same(std::string_view function, const NamedView& array, DType dtype, const Dims& shape);

// A result buffer: overlaps neither itself nor any of `others`.
void check_apart(std::string_view function, const NamedView& target,
                 std::initializer_list<NamedView> others);

// The same, except for one other that may be the very same array: an in-place result.
void check_apart_or_same(std::string_view function, const NamedView& target,
                         const NamedView& other);

// No buffer that `outputs` names overlaps `inputs`, nor do the others overlap `out`.
// (attention() checks the rest: shapes, types, and overlaps among the others.)
void check_outputs(std::string_view function, const Outputs& outputs,
                   std::initializer_list<NamedView> inputs);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_CHECKS_H_
