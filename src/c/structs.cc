// SPDX-License-Identifier: Apache-2.0
#include "c/structs.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <qkv/error.h>

#include "c/last_error.h"
#include "core/message.h"

namespace qkv::c {
namespace {

using core::text;

std::size_t bytes_of(const void* from) {
  std::size_t bytes = 0;
  std::memcpy(&bytes, from, sizeof bytes);
  return bytes;
}

}  // namespace

void check_bytes(const Sized& sized, std::size_t bytes) {
  if (bytes >= sized.first && bytes <= kMostBytes && bytes % sizeof(std::size_t) == 0) return;
  throw Error(
      sized.function, text(sized.name, sized.name.empty() ? "" : ".", "struct_size"),
      text("must be sizeof the struct, here ", sized.known, ", a multiple of ", sizeof(std::size_t),
           " up to ", kMostBytes, " and never below ", sized.first, ", got ", bytes,
           bytes == 0 && !sized.name.empty() ? ": call the struct's init function first" : ""));
}

void copy_known(const Sized& sized, const void* from, void* to) {
  if (from == nullptr) throw Error(sized.function, sized.name, "is a null pointer");
  const std::size_t bytes = bytes_of(from);
  check_bytes(sized, bytes);
  const auto* const first = static_cast<const unsigned char*>(from);
  for (std::size_t n = sized.known; n < bytes; ++n) {
    if (first[n] == 0) continue;
    throw Error(sized.function, sized.name,
                text("has a field that version " QKV_VERSION " does not know: byte ", n, " of ",
                     bytes, " is not 0"));
  }
  std::memcpy(to, from, std::min(bytes, sized.known));
}

void copy_out(const void* from, std::size_t known, void* to, std::size_t bytes) {
  std::memset(to, 0, bytes);
  std::memcpy(to, from, std::min(bytes, known));
  std::memcpy(to, &bytes, sizeof bytes);
}

template <>
qkv_options defaults<qkv_options>() {
  qkv_options value{};
  value.struct_size = sizeof value;
  value.qk_norm.eps = 1e-6;
  value.rotary.base = 10000;
  value.window = {-1, -1};
  return value;
}

namespace {

// The body of the functions qkv_..._init.
template <class T>
qkv_status init(std::string_view function, std::string_view name, T* to,
                std::size_t bytes) noexcept {
  return guarded(function, [&] {
    if (to == nullptr) throw Error(function, name, "is a null pointer");
    check_bytes({function, "", sizeof(T), kFirstBytes<T>}, bytes);
    const T value = defaults<T>();
    copy_out(&value, sizeof value, to, bytes);
  });
}

}  // namespace
}  // namespace qkv::c

extern "C" {

qkv_status qkv_inputs_init(qkv_inputs* inputs, size_t struct_size) noexcept {
  return qkv::c::init("qkv_inputs_init", "inputs", inputs, struct_size);
}

qkv_status qkv_options_init(qkv_options* options, size_t struct_size) noexcept {
  return qkv::c::init("qkv_options_init", "options", options, struct_size);
}

qkv_status qkv_outputs_init(qkv_outputs* outputs, size_t struct_size) noexcept {
  return qkv::c::init("qkv_outputs_init", "outputs", outputs, struct_size);
}

qkv_status qkv_result_shapes_init(qkv_result_shapes* shapes, size_t struct_size) noexcept {
  return qkv::c::init("qkv_result_shapes_init", "shapes", shapes, struct_size);
}

qkv_status qkv_saved_init(qkv_saved* saved, size_t struct_size) noexcept {
  return qkv::c::init("qkv_saved_init", "saved", saved, struct_size);
}

qkv_status qkv_output_gradients_init(qkv_output_gradients* gradients, size_t struct_size) noexcept {
  return qkv::c::init("qkv_output_gradients_init", "gradients", gradients, struct_size);
}

qkv_status qkv_input_gradients_init(qkv_input_gradients* gradients, size_t struct_size) noexcept {
  return qkv::c::init("qkv_input_gradients_init", "gradients", gradients, struct_size);
}

}  // extern "C"
