// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string_view>

#include <qkv/app/translation_model.h>

// The bytes of a file between two symbols, embedded by the assembler, so that the compiler need not
// parse half a million numbers. QKV_DATE_MODEL is the file's path, in quotes; its hash is there for
// compiler caches, which see only this text.
__asm__(R"(
.section .rodata
.balign 64
.globl qkv_date_model_begin
.hidden qkv_date_model_begin
qkv_date_model_begin:
/* )" QKV_DATE_MODEL_SHA256 R"( */
.incbin )" QKV_DATE_MODEL R"(
.globl qkv_date_model_end
.hidden qkv_date_model_end
qkv_date_model_end:
.byte 0
.text
)");

// NOLINTBEGIN(readability-identifier-naming): the symbols above, for their addresses
extern "C" __attribute__((visibility("hidden"))) const char qkv_date_model_begin[];
extern "C" __attribute__((visibility("hidden"))) const char qkv_date_model_end[];
// NOLINTEND(readability-identifier-naming)

namespace qkv::app {

TranslationModel date_model() {
  const auto bytes = static_cast<std::size_t>(qkv_date_model_end - qkv_date_model_begin);
  return parse_model("the date model", std::string_view(qkv_date_model_begin, bytes));
}

}  // namespace qkv::app
