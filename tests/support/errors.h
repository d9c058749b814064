// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_ERRORS_H_
#define QKV_TESTS_SUPPORT_ERRORS_H_

#include <string>

#include <qkv/error.h>

namespace qkv::test {

// Returns the text of the qkv::Error that f() throws, prefixed with "TypeError: " for
// ErrorKind::kType, or "" if it throws none. Other exceptions propagate.
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return (error.kind() == ErrorKind::kType ? "TypeError: " : "") + std::string(error.what());
  }
  return "";
}

// Returns the text of the E that f() throws, or "" if it throws nothing.
template <class E = Error, class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_ERRORS_H_
