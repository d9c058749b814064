// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_C_LAST_ERROR_H_
#define QKV_C_LAST_ERROR_H_

#include <string_view>

#include <qkv/c.h>

// Exceptions do not cross the C interface: each becomes a status and the last error of its thread.
namespace qkv::c {

// Stores the message, or as much of it as fits, as the last error of this thread, without
// allocating.
void set_last_error(std::string_view message) noexcept;
const char* last_error() noexcept;

// Returns the status of the exception that is being handled, and stores its message. `function` is
// the function that was called, for exceptions whose message does not name it.
qkv_status status_of_exception(std::string_view function) noexcept;

// Calls f() and returns the status of the call.
template <class F>
qkv_status guarded(std::string_view function, const F& f) noexcept {
  try {
    f();
    return QKV_OK;
  } catch (...) {
    return status_of_exception(function);
  }
}

}  // namespace qkv::c

#endif  // QKV_C_LAST_ERROR_H_
