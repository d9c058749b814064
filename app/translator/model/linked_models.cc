// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string_view>

#include <qkv/app/translation_model.h>

// Embeds a file's bytes between the symbols `name`_begin and `name`_end. The assembler reads the
// file, so that the compiler need not parse millions of numbers. `path` is the file's path, in
// quotes. `hash` is the file's hash: it changes the assembler text if the file changes, since
// compiler caches compare only the text.
// clang-format off
#define QKV_LINK_FILE(name, path, hash)                                       \
  __asm__(".section .rodata\n.balign 64\n"                                   \
          ".globl " #name "_begin\n.hidden " #name "_begin\n" #name "_begin:\n" \
          "/* " hash " */\n.incbin " path "\n"                               \
          ".globl " #name "_end\n.hidden " #name "_end\n" #name "_end:\n"     \
          ".byte 0\n.text\n");                                               \
  extern "C" __attribute__((visibility("hidden"))) const char name##_begin[]; \
  extern "C" __attribute__((visibility("hidden"))) const char name##_end[];
// clang-format on

// NOLINTBEGIN(readability-identifier-naming): the assembler defines these symbols
QKV_LINK_FILE(qkv_date_model, QKV_DATE_MODEL, QKV_DATE_MODEL_SHA256)
QKV_LINK_FILE(qkv_english_french_model, QKV_ENGLISH_FRENCH_MODEL, QKV_ENGLISH_FRENCH_MODEL_SHA256)
// NOLINTEND(readability-identifier-naming)

namespace qkv::app {
namespace {

TranslationModel parsed(const char* name, const char* begin, const char* end) {
  return parse_model(name, std::string_view(begin, static_cast<std::size_t>(end - begin)));
}

// The most tokens of a source in the training data of each model's train.sh, as `qkv train` reports
// it. The linked files lack the setting longest_source.
constexpr Index kLongestDate = 64;
constexpr Index kLongestEnglish = 94;

TranslationModel with_longest_source(TranslationModel model, Index longest) {
  if (model.longest_source == 0) model.longest_source = longest;
  return model;
}

}  // namespace

TranslationModel date_model() {
  return with_longest_source(parsed("the date model", qkv_date_model_begin, qkv_date_model_end),
                             kLongestDate);
}

TranslationModel english_french_model() {
  return with_longest_source(parsed("the model of English and French",
                                    qkv_english_french_model_begin, qkv_english_french_model_end),
                             kLongestEnglish);
}

}  // namespace qkv::app
