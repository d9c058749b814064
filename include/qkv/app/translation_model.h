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

// A translator with what it needs to read and write text.
struct TranslationModel {
  Translator translator;
  Vocabulary source{};
  Vocabulary target{};
  Tokenizer tokenizer{};  // of both; of subwords, both vocabularies are the tokenizer's
  TextStyle style{};      // of the target language
};

// What replaces "<unk>" in the text of a translation.
enum class UnknownTokens {
  kKept,            // nothing
  kCopied,          // the source token, as typed, that the model looked at most when it wrote it
  kCopiedIfLooked,  // the same; nothing if the model has no attention
};

struct TranslatedText {
  std::string text{};          // as people write it: with spaces and capitals in the model's style
  double log_probability = 0;  // of its tokens, natural
  bool is_whole = true;        // the end token was reached; else it was truncated
  // The tokens the model read and wrote, with the end tokens; "<unk>" stays.
  std::vector<std::string> source{};
  std::vector<std::string> target{};
  Tensor attention{};  // [target, source] float32, as in Translation; may be absent
};

// The translation of each text, independent of the others. A text of white space and of characters
// that are not seen, or of nothing, has a translation without tokens, of probability 1, and without
// attention. Throws Error for invalid UTF-8, for kCopied with a model that has no attention, and
// whatever Translator::translate() rejects.
QKV_API std::vector<TranslatedText> translate(
    const TranslationModel& model, std::span<const std::string> texts, const SearchOptions& options,
    Context& context, UnknownTokens unknown = UnknownTokens::kCopiedIfLooked);

struct TextPair {
  std::string source{};
  std::string target{};
};

// The cost of the targets, without dropout; each target ends in the end token, which is counted.
QKV_API TranslationLoss loss(const TranslationModel& model, std::span<const TextPair> pairs,
                             Context& context);

// How a file stores the parameters. Of 16 bits: each rounded once, to nearest even; a reader widens
// them again, to the type that the model computes in.
enum class ParameterStorage {
  kUnchanged,  // in that type
  kFloat16,
  kBFloat16,
};

struct ModelFileOptions {
  ParameterStorage storage = ParameterStorage::kUnchanged;
};

// A model as one .safetensors file: its parameters under their names, and the
// vocabularies, the style and all settings as text; the bytes of Subwords instead of vocabularies.
// Written atomically. Throws OutputError, and Error for a parameter with a number that the storage
// cannot hold.
QKV_API void write_model_file(const std::string& path, const TranslationModel& model,
                              const ModelFileOptions& options = {});
// Throws InputError for a file that is missing or holds anything else; Cancelled if `stop` is
// set, also while waiting for a FIFO's writer.
QKV_API TranslationModel read_model_file(const std::string& path,
                                         const std::atomic<bool>* stop = nullptr);
// The same from the bytes of such a file; `name` is used in messages.
QKV_API TranslationModel parse_model(const std::string& name, std::string_view bytes);

// Translators that are part of the library.
//
// English sentences to French. Trained on pairs of tatoeba.org (CC BY 2.0 FR, collected by
// manythings.org/anki; NOTICE says more): short everyday sentences, which is what it can translate.
// app/translator/model/english_french/train.sh is the command that trained it.
QKV_API TranslationModel english_french_model();
// English dates to ISO 8601: "the 3rd of May, 1987" -> 1987-05-03.
// app/translator/model/dates/train.sh is the command that trained it, on days that `qkv gen dates
// --split test` never draws.
QKV_API TranslationModel date_model();

}  // namespace qkv::app

#endif  // QKV_APP_TRANSLATION_MODEL_H_
