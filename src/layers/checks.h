// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_CHECKS_H_
#define QKV_LAYERS_CHECKS_H_

#include <initializer_list>
#include <string_view>

#include <qkv/attention.h>
#include <qkv/view.h>

// The checks that layers make before they compute anything. A failed check throws Error with
// `function` and the name of the argument.
namespace qkv::layers {

struct NamedView {
  std::string_view name;
  ConstView view;
};

// Checks a size given to a constructor: it must be at least 1.
void check_size(std::string_view function, std::string_view argument, Index size);

// Checks that a tensor that a constructor will allocate takes at most 2^63 - 1 bytes. `sizes` names
// the arguments that determine its shape.
void check_tensor(std::string_view function, std::string_view sizes, DType dtype,
                  const Dims& shape);

// Checks a dropout probability, which must be in [0,1), and returns it.
double checked_dropout(std::string_view function, double p);

// Checks the dtype of a layer with parameters: it must be float32 or float64.
void check_dtype(std::string_view function, DType dtype);

// Checks that an array is given, and has this dtype, rank 2 to kMaxRank - 1, and this size of the
// last axis.
void check_rows(std::string_view function, const NamedView& array, DType dtype, Index width,
                std::string_view width_name = "width");

// Checks that an array has as many channels as the layer's `width_name`. Absent arrays and scalars
// are left to attention().
void check_channels(std::string_view function, const NamedView& array, Index width,
                    std::string_view width_name);

// Checks that `dtype`, the layer's, is the accumulator of the array's dtype. Absent arrays and
// arrays without a real type are left to attention().
void check_computed_in(std::string_view function, const NamedView& array, DType dtype);

// Checks that an array is given and is float32 or float64.
void check_float(std::string_view function, const NamedView& array);

// Checks that an array is given and has this dtype and shape.
void check_same(std::string_view function, const NamedView& array, DType dtype, const Dims& shape);

// Checks that a result buffer overlaps neither itself nor any of `others`.
void check_apart(std::string_view function, const NamedView& target,
                 std::initializer_list<NamedView> others);

// Checks a result that may be computed in place: it may be the array `other` itself, but may not
// overlap that array in another way.
void check_apart_or_same(std::string_view function, const NamedView& target,
                         const NamedView& other);

// Checks that no requested output overlaps `inputs`, and that none but `out` overlaps `out`.
// (attention() checks everything else: shapes, types, and overlaps between two other outputs.)
void check_outputs(std::string_view function, const Outputs& outputs,
                   std::initializer_list<NamedView> inputs);

}  // namespace qkv::layers

#endif  // QKV_LAYERS_CHECKS_H_
