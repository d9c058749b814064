// SPDX-License-Identifier: Apache-2.0
#include "layer_pass.h"

#include "errors.h"

namespace qkv::python {

Integers integers_of(nb::handle object, const Name& name) {
  Integers result{array_or_sequence(object, name.with_types(kIntegers), DType::kNone), {}, {}};
  result.view = result.array.view;
  const DType dtype = result.view.dtype();
  if (!result.view.given() || dtype == DType::kInt32 || dtype == DType::kInt64) return result;
  if (!is_integer(dtype)) {
    throw_type_error(name, "must be integers, got " + qkv::describe(result.view));
  }
  try {
    result.converted = convert(result.view, DType::kInt64);
  } catch (const Error& error) {  // a uint64 that does not fit in int64
    throw with_names(error, name.function, {{"source", name.argument}});
  }
  result.view = result.converted;
  return result;
}

}  // namespace qkv::python
