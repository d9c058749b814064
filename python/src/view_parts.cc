// SPDX-License-Identifier: Apache-2.0
#include "view_parts.h"

#include <array>
#include <bit>
#include <cstdint>

namespace qkv::python {

DType signed_integer(std::size_t bytes) {
  constexpr std::array kTypes = {DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64};
  return bytes == 0 || bytes > 8 || !std::has_single_bit(bytes)
             ? DType::kNone
             : kTypes[static_cast<std::size_t>(std::countr_zero(bytes))];
}

DType unsigned_integer(std::size_t bytes) {
  constexpr std::array kTypes = {DType::kUInt8, DType::kUInt16, DType::kUInt32, DType::kUInt64};
  return bytes == 0 || bytes > 8 || !std::has_single_bit(bytes)
             ? DType::kNone
             : kTypes[static_cast<std::size_t>(std::countr_zero(bytes))];
}

std::string text_of(nb::handle object) {
  const nb::object text = nb::str(object);
  const char* const utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), nullptr);
  if (utf8 != nullptr) return utf8;
  PyErr_Clear();
  return nb::cast<std::string>(nb::steal(PyObject_ASCII(text.ptr())));
}

void refuse_dtype(const Name& name, nb::handle object) {
  std::string dtype = "an unknown dtype";
  if (nb::hasattr(object, "dtype")) dtype = text_of(object.attr("dtype"));
  std::string shape;
  if (nb::hasattr(object, "shape")) {
    for (nb::handle size : nb::tuple(object.attr("shape"))) {
      shape += (shape.empty() ? "" : ",") + text_of(size);
    }
  }
  throw_type_error(name,
                   "must be " + std::string(name.types) + ", got " + dtype + " [" + shape + "]");
}

void check_rank(const Name& name, int rank) {
  if (rank <= kMaxRank) return;
  throw_value_error(
      name, "must have at most " + std::to_string(kMaxRank) + " axes, got " + std::to_string(rank));
}

bool is_aligned(const void* data, DType dtype) {
  const std::size_t unit = dtype == DType::kComplex128 ? 8
                           : dtype == DType::kQ8       ? alignof(BlockQ8)
                                                       : size_of(dtype);
  return reinterpret_cast<std::uintptr_t>(data) % unit == 0;
}

}  // namespace qkv::python
