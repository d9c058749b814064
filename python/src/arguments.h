// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_ARGUMENTS_H_
#define QKV_PYTHON_SRC_ARGUMENTS_H_

#include <cstdint>
#include <initializer_list>

#include "arrays.h"

// Reads arguments that are not arrays. For an invalid one each function throws Error (TypeError or
// ValueError in Python) with the argument, the rule and the value.
namespace qkv::python {

// Reads a real number; rejects True and False.
double number_of(nb::handle object, const Name& name);
// Reads a 64-bit integer; rejects True and False.
Index index_of(nb::handle object, const Name& name);
// Reads an integer from 0 to 2^64-1.
std::uint64_t seed_of(nb::handle object, const Name& name);
// Reads True or False, of Python or NumPy.
bool flag_of(nb::handle object, const Name& name);
bool is_flag(nb::handle object);
// Reads a word and returns its position in `words`. `others` lists, for the message, further values
// that the argument may have, such as "False, True".
int word_of(nb::handle object, const Name& name, std::span<const std::string_view> words,
            const char* others = "");
inline int word_of(nb::handle object, const Name& name,
                   std::initializer_list<std::string_view> words, const char* others = "") {
  return word_of(object, name, std::span(words.begin(), words.size()), others);
}

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_ARGUMENTS_H_
