// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TRANSLATION_MODEL_H_
#define QKV_APP_TRANSLATION_MODEL_H_

#include <atomic>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/text_style.h>
#include <qkv/app/tokenizer.h>
#include <qkv/app/translator.h>
#include <qkv/app/vocabulary.h>
#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/tensor.h>

namespace qkv::app {

// A translator with the vocabularies, tokenizer and style that it needs to read and write text.
struct TranslationModel {
  Translator translator;
  Vocabulary source{};
  Vocabulary target{};
  Tokenizer tokenizer{};  // of both languages; with subwords it determines both vocabularies
  TextStyle style{};      // of the target language
  // The most source tokens of a sentence pair in training, without the end token; 0: unknown.
  Index longest_source = 0;
};

// The text of an unknown target token in a translation.
enum class UnknownTokens {
  kKept,  // "<unk>" stays
  // "<unk>" becomes the source token, as typed, with the largest attention weight at its step.
  kCopied,
  kCopiedIfLooked,  // kCopied if the model has attention, else kKept
};

// A text's translation, with the tokens behind it.
struct TranslatedText {
  std::string text{};          // with spaces and capitals in the model's style
  double log_probability = 0;  // natural, of the target tokens; NaN if not computed
  bool is_whole = true;        // false if cut off at the limit, or ended by NaN
  // Source tokens as the tokenizer splits them, and target tokens of the vocabulary, among them
  // "<unk>"; each with the end token if there is one.
  std::vector<std::string> source{};
  std::vector<std::string> target{};
  Tensor attention{};  // weights [target tokens, source tokens], float32; absent if not requested
};

// The program and the Python package refuse texts of more tokens, without the end token, because
// attention takes memory for source tokens x target tokens.
inline constexpr Index kMostSourceTokens = 4096;

// Translates each text independently of the others. A text without visible characters has a
// translation without tokens, of probability 1, and without attention. Throws Error for invalid
// UTF-8, for kCopied with a model that has no attention, and for whatever Translator::translate()
// rejects.
QKV_API std::vector<TranslatedText> translate(
    const TranslationModel& model, std::span<const std::string> texts, const SearchOptions& options,
    Context& context, UnknownTokens unknown = UnknownTokens::kCopiedIfLooked);

// A sentence pair as text.
struct TextPair {
  std::string source{};
  std::string target{};
};

// The loss without dropout, summed over the target tokens, including each target's end token.
// Throws Error for invalid UTF-8.
QKV_API TranslationLoss loss(const TranslationModel& model, std::span<const TextPair> pairs,
                             Context& context);

// The number type in which a file stores the parameters. With 16 bits, each parameter is rounded
// once, to nearest even, and a reader widens it to the type that the model computes in.
enum class ParameterStorage {
  kUnchanged,  // the type that the model computes in
  kFloat16,
  kBFloat16,
};

struct ModelFileOptions {
  ParameterStorage storage = ParameterStorage::kUnchanged;
};

// Writes a model atomically as one .safetensors file: its parameters under their names, the
// vocabularies as tokens and counts, and style and settings as text. With subwords, the bytes of
// Subwords replace the vocabularies. Throws OutputError, and Error for a parameter that the storage
// type cannot hold.
QKV_API void write_model_file(const std::string& path, const TranslationModel& model,
                              const ModelFileOptions& options = {});
// Reads a model file. The folder of a run (`qkv train DATA -o RUN`) stands for its best model,
// RUN/best.safetensors. Throws InputError for a path that is missing or holds anything else, and
// for a run without a model; Cancelled if `stop` is set, also while waiting for a FIFO's writer.
QKV_API TranslationModel read_model_file(const std::string& path,
                                         const std::atomic<bool>* stop = nullptr);
// Parses the bytes of a model file; `name` stands for the file in messages. Throws InputError for
// anything else.
QKV_API TranslationModel parse_model(const std::string& name, std::string_view bytes);

// The translators that are part of the library.
//
// This model translates English sentences to French. It was trained on sentence pairs of
// tatoeba.org (CC BY 2.0 FR, collected by manythings.org/anki; NOTICE says more): short everyday
// sentences, which it can translate. app/translator/model/english_french/train.sh is the command
// that trained it.
QKV_API TranslationModel english_french_model();
// This model writes English dates as ISO 8601: "the 3rd of May, 1987" -> 1987-05-03.
// app/translator/model/dates/train.sh is the command that trained it, on days that `qkv gen dates
// --split test` never draws.
QKV_API TranslationModel date_model();

}  // namespace qkv::app

#endif  // QKV_APP_TRANSLATION_MODEL_H_
