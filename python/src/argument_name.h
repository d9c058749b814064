// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_ARGUMENT_NAME_H_
#define QKV_PYTHON_SRC_ARGUMENT_NAME_H_

#include <string>

namespace qkv::python {

// The words with which error messages refer to an argument: its function, its name and its types.
struct Name {
  const char* function;  // "attention"
  const char* argument;  // "q"
  const char* types = "float64, float32, bfloat16 or float16";

  Name with_types(const char* other) const { return {function, argument, other}; }
};
inline constexpr const char* kIntegers = "an integer type";
inline constexpr const char* kFlags = "bool or an integer type";
inline constexpr const char* kRealsOrQ8 = "float64, float32, bfloat16, float16 or q8";
inline constexpr const char* kLayerReals = "float32 or float64";  // the types that layers take

// Throws Error for a wrong argument, such as "attention: q must be ..., got ...".
[[noreturn]] void throw_type_error(const Name& name, const std::string& detail);
[[noreturn]] void throw_value_error(const Name& name, const std::string& detail);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_ARGUMENT_NAME_H_
