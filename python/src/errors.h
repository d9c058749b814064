// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_ERRORS_H_
#define QKV_PYTHON_SRC_ERRORS_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <qkv/error.h>

namespace qkv::python {

// Makes qkv::Error raise ValueError or TypeError with python_text() as the message.
void register_errors();

// The error with a note appended if its text shows the shape of an array.
Error with_note(const Error& error, const char* note);

// The library's text with the Python names of arguments: `keep` is `mask`.
std::string python_text(const Error& error);

// The same error, for another function.
Error of_function(const Error& error, const char* function);

// The same, with the argument renamed if it is listed.
Error with_names(const Error& error, const char* function,
                 std::initializer_list<std::pair<std::string_view, const char*>> names);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_ERRORS_H_
