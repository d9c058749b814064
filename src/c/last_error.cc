// SPDX-License-Identifier: Apache-2.0
#include "c/last_error.h"

#include <algorithm>
#include <array>
#include <exception>
#include <initializer_list>
#include <new>

#include <qkv/error.h>

namespace qkv::c {
namespace {

// A message is at most about 220 bytes long unless it repeats a text of the caller. The array has
// no constructor and no destructor, so a library that is unloaded leaves nothing to do at a
// thread's end.
constexpr std::size_t kBytes = 1024;
thread_local std::array<char, kBytes> message_of_thread;

// The number of bytes of the longest prefix of the text that fits and ends with a whole UTF-8
// character.
std::size_t fitting(std::string_view text) {
  std::size_t bytes = std::min(text.size(), kBytes - 1);
  if (bytes == text.size()) return bytes;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80) --bytes;
  return bytes;
}

}  // namespace

void set_last_error(std::string_view message) noexcept {
  const std::size_t bytes = fitting(message);
  std::copy_n(message.begin(), bytes, message_of_thread.begin());
  message_of_thread[bytes] = '\0';
}

const char* last_error() noexcept { return message_of_thread.data(); }

namespace {

// Stores "function: detail" as the last error, without allocating.
void set_last_error(std::string_view function, std::string_view detail) noexcept {
  std::array<char, kBytes> text{};
  char* end = text.data();
  for (const std::string_view part : {function, std::string_view(": "), detail}) {
    const auto room = static_cast<std::size_t>(text.data() + kBytes - end);
    end = std::copy_n(part.begin(), std::min(part.size(), room), end);
  }
  c::set_last_error({text.data(), static_cast<std::size_t>(end - text.data())});
}

}  // namespace

qkv_status status_of_exception(std::string_view function) noexcept {
  try {
    throw;
  } catch (const Error& error) {
    c::set_last_error(error.what());
    return error.kind() == ErrorKind::kType ? QKV_INVALID_TYPE : QKV_INVALID_ARGUMENT;
  } catch (const Cancelled& cancelled) {
    c::set_last_error(cancelled.what());
    return QKV_STOPPED;
  } catch (const std::bad_alloc&) {
    set_last_error(function, "out of memory");
    return QKV_OUT_OF_MEMORY;
  } catch (const std::exception& other) {
    set_last_error(function, other.what());
    return QKV_INTERNAL_ERROR;
  } catch (...) {
    set_last_error(function, "an exception of unknown type");
    return QKV_INTERNAL_ERROR;
  }
}

}  // namespace qkv::c
