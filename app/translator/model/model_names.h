// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_MODEL_MODEL_NAMES_H_
#define QKV_TRANSLATOR_MODEL_MODEL_NAMES_H_

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include <qkv/app/subwords.h>
#include <qkv/app/translation_model.h>
#include <qkv/app/translator.h>
#include <qkv/app/vocabulary.h>

#include "text/choice.h"
#include "translator/passes/attention_form.h"

// The names of a translator's settings, in model files and on the command line.
namespace qkv::app {

constexpr Choice<TranslatorAttention> named(TranslatorAttention attention) {
  return {form_of(attention).name, attention};
}
inline constexpr Choice<TranslatorAttention> kTranslatorAttentions[] = {
    named(TranslatorAttention::kAdditive),  named(TranslatorAttention::kDot),
    named(TranslatorAttention::kScaledDot), named(TranslatorAttention::kBilinear),
    named(TranslatorAttention::kMultiHead), named(TranslatorAttention::kNone)};
static_assert(std::size(kTranslatorAttentions) ==
              static_cast<std::size_t>(TranslatorAttention::kNone) + 1);
inline constexpr Choice<Tokenization> kTokenizations[] = {{"char", Tokenization::kCharacter},
                                                          {"word", Tokenization::kWord},
                                                          {"subword", Tokenization::kSubword}};
inline constexpr Choice<SubwordAlgorithm> kSubwordAlgorithms[] = {
    {"unigram", SubwordAlgorithm::kUnigram}, {"bpe", SubwordAlgorithm::kBpe}};
inline constexpr Choice<TiedEmbeddings> kTiedEmbeddings[] = {{"none", TiedEmbeddings::kNone},
                                                             {"output", TiedEmbeddings::kOutput}};
// How `qkv train` can store parameters. Its models compute in float32, so "f32" is kUnchanged.
inline constexpr Choice<ParameterStorage> kParameterStorages[] = {
    {"f32", ParameterStorage::kUnchanged},
    {"f16", ParameterStorage::kFloat16},
    {"bf16", ParameterStorage::kBFloat16}};

// The settings of config.json whose `qkv train` option differs from the setting's name. (All others
// are like batch_tokens, set by --batch-tokens.) "DATA" is a positional argument; an empty option
// means that no option sets the setting.
struct SettingOption {
  std::string_view setting;
  std::string_view option;
};
inline constexpr SettingOption kSettingOptions[] = {{"data", "DATA"},
                                                    {"data_pairs", ""},
                                                    {"data_left_out", ""},
                                                    {"data_hash", ""},
                                                    {"valid_pairs", ""},
                                                    {"valid_left_out", ""},
                                                    {"valid_hash", ""},
                                                    {"source_column", "--cols"},
                                                    {"target_column", "--cols"},
                                                    {"subword_hash", ""},
                                                    {"source_tokens", ""},
                                                    {"target_tokens", ""},
                                                    {"learning_rate", "--lr"},
                                                    {"beta1", ""},
                                                    {"beta2", ""},
                                                    {"epsilon", ""},
                                                    {"validate_every", "--valid-freq"},
                                                    {"save_every", "--save-freq"}};

// The option that sets a setting, such as "--lr" or "DATA"; empty if there is none.
inline std::string option_of(std::string_view setting) {
  const auto* other = std::ranges::find(kSettingOptions, setting, &SettingOption::setting);
  if (other != std::end(kSettingOptions)) return std::string(other->option);
  std::string option = "--" + std::string(setting);
  std::ranges::replace(option, '_', '-');
  return option;
}

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_MODEL_MODEL_NAMES_H_
