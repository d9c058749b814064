// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_ARGUMENTS_H_
#define QKV_PYTHON_SRC_ARGUMENTS_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "arrays.h"

// Arguments other than arrays. Each function throws TypeError or ValueError (as Error) naming the
// argument, the rule and the value.
namespace qkv::python {

// A real number; True and False are rejected.
double number_of(nb::handle object, const Name& name);
// A 64-bit integer; True and False are rejected.
Index index_of(nb::handle object, const Name& name);
// From 0 to 2^64-1.
std::uint64_t seed_of(nb::handle object, const Name& name);
// True or False, of Python or NumPy.
bool flag_of(nb::handle object, const Name& name);
bool is_flag(nb::handle object);
// The position of a word in the list. `others`, for the message, is what else the argument may be:
// "False, True".
int word_of(nb::handle object, const Name& name, std::span<const std::string_view> words,
            const char* others = "");
inline int word_of(nb::handle object, const Name& name,
                   std::initializer_list<std::string_view> words, const char* others = "") {
  return word_of(object, name, std::span(words.begin(), words.size()), others);
}

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_ARGUMENTS_H_
