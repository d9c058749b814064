// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_ERRORS_H_
#define QKV_PYTHON_SRC_ERRORS_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <qkv/error.h>

namespace qkv::python {

// Makes nanobind translate qkv::Error to ValueError or TypeError with python_text() as the message.
void register_errors();

// The error, with `note` appended if its text shows the shape of an array.
Error with_note(const Error& error, const char* note);

// The error's text with the Python names of arguments, such as `mask` for the library's `keep`.
std::string python_text(const Error& error);

// The error with another function's name.
Error of_function(const Error& error, const char* function);

// The error with another function's name, and the argument renamed if `names` has it.
Error with_names(const Error& error, const char* function,
                 std::initializer_list<std::pair<std::string_view, const char*>> names);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_ERRORS_H_
