// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DENSE_ARRAY_ARGUMENTS_H_
#define QKV_DENSE_ARRAY_ARGUMENTS_H_

#include <string>
#include <string_view>

#include <qkv/dtype.h>
#include <qkv/error.h>
#include <qkv/tensor.h>
#include <qkv/view.h>

#include "core/overlap.h"
#include "core/shapes.h"
#include "core/storage.h"

// The checks that softmax, masked_softmax and batch_dot make on their arrays.
namespace qkv::dense {

inline void require_given(std::string_view function, std::string_view argument,
                          const ConstView& view) {
  if (!view.given()) throw Error(function, argument, "is absent");
}

inline void require_real(std::string_view function, std::string_view argument,
                         const ConstView& view) {
  if (is_real(view.dtype())) return;
  throw Error(function, argument,
              "must be float64, float32, bfloat16 or float16, got " + describe(view),
              ErrorKind::kType);
}

inline void require_dtype(std::string_view function, std::string_view argument,
                          const ConstView& view, std::string_view model_name,
                          const ConstView& model) {
  if (view.dtype() == model.dtype()) return;
  throw Error(function, argument,
              "must have the dtype of " + std::string(model_name) + ", got " + describe(view) +
                  " for " + describe(model),
              ErrorKind::kType);
}

inline void require_shape(std::string_view function, const ConstView& out, const Dims& shape) {
  if (out.shape() == shape) return;
  throw Error(function, "out",
              "must have the shape " + to_string(shape) + ", got " + describe(out));
}

inline void require_apart(std::string_view function, const ConstView& out,
                          std::string_view input_name, const ConstView& input) {
  if (!core::may_overlap(out, input)) return;
  throw Error(function, "out",
              "must not share memory with " + std::string(input_name) + " (out " + describe(out) +
                  ", " + std::string(input_name) + " " + describe(input) + ")");
}

inline void require_distinct_elements(std::string_view function, const ConstView& out) {
  if (!core::self_overlaps(out)) return;
  throw Error(function, "out",
              "must not overlap itself, got " + describe(out) + " with strides " +
                  to_string(out.strides()));
}

// Calls f with a null pointer to the storage type of `dtype`, which must be a type of real numbers.
template <class F>
void visit_real(DType dtype, const F& f) {
  core::visit_dtype(dtype, [&]<class Stored>(Stored*) {
    if constexpr (is_real(dtype_of<Stored>)) f(static_cast<Stored*>(nullptr));
  });
}

// Returns sizes or strides without those of the last `dropped` axes.
inline Dims leading(const Dims& dims, int dropped) {
  return core::sub_dims(dims, 0, dims.rank() - dropped);
}

}  // namespace qkv::dense

#endif  // QKV_DENSE_ARRAY_ARGUMENTS_H_
