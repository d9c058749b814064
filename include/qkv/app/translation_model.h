// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TRANSLATION_MODEL_H_
#define QKV_APP_TRANSLATION_MODEL_H_

#include <atomic>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/choice.h>
#include <qkv/app/tokenization.h>
#include <qkv/app/translator.h>
#include <qkv/app/vocabulary.h>
#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/tensor.h>

namespace qkv::app {

inline constexpr Choice<TranslatorAttention> kTranslatorAttentions[] = {
    {"additive", TranslatorAttention::kAdditive},    {"dot", TranslatorAttention::kDot},
    {"scaled_dot", TranslatorAttention::kScaledDot}, {"bilinear", TranslatorAttention::kBilinear},
    {"multihead", TranslatorAttention::kMultiHead},  {"none", TranslatorAttention::kNone}};
inline constexpr Choice<Tokenization> kTokenizations[] = {{"char", Tokenization::kCharacter},
                                                          {"word", Tokenization::kWord}};

// A translator and what makes it read and write text.
struct TranslationModel {
  Translator translator;
  Vocabulary source{};
  Vocabulary target{};
  Tokenization tokenization = Tokenization::kCharacter;  // of both
  LetterCase letters = LetterCase::kKept;
};

struct TranslatedText {
  std::string text{};
  double log_probability = 0;  // of its tokens, natural
  bool is_whole = true;        // its end was reached; else it was cut short
  // What the model read and wrote, with the end tokens.
  std::vector<std::string> source{};
  std::vector<std::string> target{};
  Tensor attention{};  // [target, source] float32, as Translation has it; may be absent
};

// The translation of each text, independent of the others. A text without any token has one
// without any, of probability 1, and without attention. Throws Error for text that is not UTF-8 and
// what Translator::translate() refuses.
QKV_API std::vector<TranslatedText> translate(const TranslationModel& model,
                                              std::span<const std::string> texts,
                                              const SearchOptions& options, Context& context);

struct TextPair {
  std::string source{};
  std::string target{};
};

// What the targets cost, without dropout; each target ends in the end token, which is counted.
QKV_API TranslationLoss loss(const TranslationModel& model, std::span<const TextPair> pairs,
                             Context& context);

// A model as one .safetensors file: its parameters under their names, and beside them the
// vocabularies and all settings as text. It appears whole or not at all. Throws OutputError.
QKV_API void write_model_file(const std::string& path, const TranslationModel& model);
// Throws InputError for a file that is missing or holds anything else; Cancelled when `stop` is
// set, also while a FIFO waits for its writer.
QKV_API TranslationModel read_model_file(const std::string& path,
                                         const std::atomic<bool>* stop = nullptr);
// The same from the bytes of such a file; `name` is what messages call them.
QKV_API TranslationModel parse_model(const std::string& name, std::string_view bytes);

}  // namespace qkv::app

#endif  // QKV_APP_TRANSLATION_MODEL_H_
