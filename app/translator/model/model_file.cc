// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/array_file.h>
#include <qkv/app/file_error.h>
#include <qkv/app/translation_model.h>
#include <qkv/app/utf8.h>
#include <qkv/error.h>
#include <qkv/layers/parameters.h>

#include "files/file_kind.h"
#include "text/choice.h"
#include "text/numbers.h"
#include "text/text.h"
#include "translator/model/model_names.h"
#include "translator/model/run_folder.h"

namespace qkv::app {
namespace {

// The settings of a model: everything but its vocabularies, style and parameters.
struct ModelSettings {
  TranslatorConfig config{};
  Tokenization tokenization = Tokenization::kCharacter;
  LetterCase letters = LetterCase::kKept;
  Index longest_source = 0;
};

// The array of a subword model: SentencePiece's model file as uint8 numbers, instead of two
// vocabularies.
constexpr const char* kSubwordArray = "subwords";

constexpr Choice<DType> kTypes[] = {{"float32", DType::kFloat32}, {"float64", DType::kFloat64}};
constexpr Choice<LetterCase> kCases[] = {{"kept", LetterCase::kKept},
                                         {"lower", LetterCase::kLower}};

// Settings that the files of earlier versions lack, with the value that such models have. A model
// with that value is written without the setting, so that its file is bit-identical to the one that
// an earlier version wrote.
struct ImpliedSetting {
  std::string_view name;
  std::string_view value;
};
constexpr ImpliedSetting kImplied[] = {
    {"encoder_layers", "1"}, {"tied_embeddings", "none"}, {"longest_source", "0"}};

// The array of the target's style, [rules,2]: each row has a rule's name, and the mark, word or
// value that the rule is about.
constexpr const char* kStyleArray = "target_style";
constexpr Choice<Spaces> kSpaceRules[] = {{"no space", Spaces::kNone},
                                          {"space before", Spaces::kBefore},
                                          {"space after", Spaces::kAfter},
                                          {"spaces", Spaces::kBoth}};
constexpr const char* kWordRule = "word";
constexpr const char* kSentenceRule = "sentence";
constexpr const char* kCapitalStart = "capital";

// Visits the settings, each with its name in files: visit(name, value) for numbers, and visit(name,
// value, names) for values that have names.
template <class AnySettings, class Visit>
void for_each_setting(AnySettings& settings, const Visit& visit) {
  visit("attention", settings.config.attention, kTranslatorAttentions);
  visit("embedding", settings.config.embedding);
  visit("hidden", settings.config.hidden);
  visit("encoder_layers", settings.config.encoder_layers);
  visit("units", settings.config.units);
  visit("heads", settings.config.heads);
  visit("tied_embeddings", settings.config.tied_embeddings, kTiedEmbeddings);
  visit("dropout", settings.config.dropout);
  visit("label_smoothing", settings.config.label_smoothing);
  visit("dtype", settings.config.dtype, kTypes);
  visit("tokenize", settings.tokenization, kTokenizations);
  visit("letters", settings.letters, kCases);
  visit("longest_source", settings.longest_source);
}

// ---- writing ------------------------------------------------------------------------------------

struct WriteSetting {
  Strings& text;

  void operator()(std::string_view name, const auto& value) const {
    put(name, fmt::to_string(value));
  }
  template <class Value, std::size_t n>
  void operator()(std::string_view name, const Value& value,
                  const Choice<Value> (&names)[n]) const {
    put(name, std::string(std::ranges::find(names, value, &Choice<Value>::value)->name));
  }
  void put(std::string_view name, std::string value) const {
    const auto* implied = std::ranges::find(kImplied, name, &ImpliedSetting::name);
    if (implied != std::end(kImplied) && implied->value == value) return;
    text.values.emplace_back(name);
    text.values.push_back(std::move(value));
  }
};

// A vocabulary as arrays of tokens and counts.
struct Columns {
  Strings tokens{};
  Tensor counts{};  // int64 or int32
};

// True if all counts fit 32 bits; the first count is the largest.
bool fit_32_bits(const Vocabulary& vocabulary) {
  const auto tokens = vocabulary.tokens();
  return tokens.empty() || tokens.front().count <= std::numeric_limits<std::int32_t>::max();
}

Columns columns_of(const Vocabulary& vocabulary, ParameterStorage storage) {
  const auto size = std::ssize(vocabulary.tokens());
  Columns columns{.tokens = {.shape = Dims(size), .values = {}},
                  .counts = Tensor(DType::kInt64, {size})};
  auto count = columns.counts.values<std::int64_t>().begin();
  for (const CountedToken& token : vocabulary.tokens()) {
    columns.tokens.values.push_back(token.text);
    *count++ = token.count;
  }
  // Eight bytes for each token would be a noticeable part of a small file.
  if (storage != ParameterStorage::kUnchanged && fit_32_bits(vocabulary)) {
    columns.counts = convert(columns.counts, DType::kInt32);
  }
  return columns;
}

DType stored_type(ParameterStorage storage, DType computed) {
  switch (storage) {
    case ParameterStorage::kUnchanged:
      return computed;
    case ParameterStorage::kFloat16:
      return DType::kFloat16;
    case ParameterStorage::kBFloat16:
      return DType::kBFloat16;
  }
  return computed;
}

// Throws Error for a parameter that is not finite after rounding.
void check_rounded(const std::string& name, const Tensor& exact, const Tensor& rounded) {
  const Tensor before = convert(exact, DType::kFloat64);
  const Tensor after = convert(rounded, DType::kFloat64);
  for (std::size_t n = 0; n < after.values<double>().size(); ++n) {
    if (std::isfinite(after.values<double>()[n])) continue;
    throw Error("write_model_file", name,
                fmt::format("must be finite as {}, got {}", name_of(rounded.dtype()),
                            before.values<double>()[n]));
  }
}

// The parameters as they are stored: views of the model's own tensors, or of rounded copies.
class StoredParameters {
 public:
  StoredParameters(const Translator& translator, ParameterStorage storage) {
    for_each_parameter(translator, [&](const BasicParameter<const Tensor>& parameter) {
      const Tensor& exact = parameter.value;
      const DType type = stored_type(storage, exact.dtype());
      if (type == exact.dtype()) {
        views_.push_back({parameter.name, exact.view()});
        return;
      }
      rounded_.push_back(convert(exact, type));
      check_rounded(parameter.name, exact, rounded_.back());
      views_.push_back({parameter.name, ConstView(rounded_.back())});
    });
  }
  const std::vector<NamedView>& views() const { return views_; }

 private:
  // The views stay valid while this vector grows, since moving a tensor moves no elements.
  std::vector<Tensor> rounded_{};
  std::vector<NamedView> views_{};
};

// The style as rows of rule and value. An empty style has no rows and is not written.
Strings style_rows(const TextStyle& style) {
  Strings rows;
  const auto put = [&](std::string_view rule, std::string_view value) {
    rows.values.emplace_back(rule);
    rows.values.emplace_back(value);
  };
  if (style.sentences == SentenceStart::kCapital) put(kSentenceRule, kCapitalStart);
  for (const auto& [mark, spaces] : style.spaces) {
    put(std::ranges::find(kSpaceRules, spaces, &Choice<Spaces>::value)->name, mark);
  }
  for (const auto& [lower, word] : style.words) put(kWordRule, word);
  rows.shape = Dims(std::ssize(rows.values) / 2, 2);
  return rows;
}

// ---- reading ------------------------------------------------------------------------------------

// The arrays of a file that have not been taken yet.
class Contents {
 public:
  Contents(const std::string& file, std::vector<NamedArray> arrays) : file_(file) {
    for (NamedArray& array : arrays) arrays_.emplace(array.name, std::move(array.array));
  }

  template <class Kind>
  Kind take(const std::string& name) {
    const auto found = arrays_.find(name);
    if (found == arrays_.end()) fail(fmt::format("expected a translator, got no {}", name));
    if (!std::holds_alternative<Kind>(found->second)) {
      constexpr bool kText = std::is_same_v<Kind, Strings>;
      const bool is_unread = std::holds_alternative<Unread>(found->second);
      fail(fmt::format(
          "{}: expected {}, got {}", name, kText ? "text" : "numbers",
          is_unread ? describe(found->second) : std::string(kText ? "numbers" : "text")));
    }
    Kind value = std::get<Kind>(std::move(found->second));
    arrays_.erase(found);
    return value;
  }
  bool has(const std::string& name) const { return arrays_.contains(name); }
  // The number of remaining arrays.
  Index array_count() const { return std::ssize(arrays_); }
  // The number of elements in all remaining arrays of numbers.
  Index element_count() const {
    Index count = 0;
    for (const auto& [name, array] : arrays_) {
      if (const auto* tensor = std::get_if<Tensor>(&array)) count += tensor->element_count();
    }
    return count;
  }
  void check_empty() const {
    if (!arrays_.empty()) {
      fail(fmt::format("expected a translator's arrays, got {} too",
                       app::quoted(arrays_.begin()->first)));
    }
  }
  [[noreturn]] void fail(const std::string& detail) const { throw InputError(file_, detail); }

 private:
  std::string file_;
  std::map<std::string, Array> arrays_{};
};

struct ReadSetting {
  const Contents& contents;
  std::map<std::string, std::string>& texts;

  template <class Number>
  void operator()(const std::string& name, Number& value) const {
    const std::string text = take(name);
    const auto number = parse_number<Number>(text);
    if (!number)
      contents.fail(fmt::format("{}: expected a number, got {}", name, app::quoted(text)));
    value = *number;
  }
  template <class Value, std::size_t n>
  void operator()(const std::string& name, Value& value, const Choice<Value> (&names)[n]) const {
    const std::string text = take(name);
    const auto* found = std::ranges::find(names, text, &Choice<Value>::name);
    if (found == std::end(names)) {
      contents.fail(fmt::format("{}: unknown name {}", name, app::quoted(text)));
    }
    value = found->value;
  }
  std::string take(const std::string& name) const {
    const auto found = texts.find(name);
    if (found == texts.end()) {
      const auto* implied = std::ranges::find(kImplied, name, &ImpliedSetting::name);
      if (implied != std::end(kImplied)) return std::string(implied->value);
      contents.fail(fmt::format("settings: expected {}, got none", name));
    }
    std::string text = std::move(found->second);
    texts.erase(found);
    return text;
  }
};

ModelSettings take_settings(Contents& contents) {
  const Strings text = contents.take<Strings>("settings");
  if (text.shape.rank() != 2 || text.shape[1] != 2) {
    contents.fail(fmt::format("settings: expected shape [n,2], got {}", to_string(text.shape)));
  }
  std::map<std::string, std::string> texts;
  for (std::size_t n = 0; n < text.values.size(); n += 2) {
    texts[text.values[n]] = text.values[n + 1];
  }
  ModelSettings settings;
  for_each_setting(settings, ReadSetting{contents, texts});
  if (!texts.empty()) {
    contents.fail(fmt::format("settings: unknown name {}", app::quoted(texts.begin()->first)));
  }
  return settings;
}

Vocabulary take_vocabulary(Contents& contents, const std::string& side) {
  Strings tokens = contents.take<Strings>(side + "_tokens");
  Tensor counts = contents.take<Tensor>(side + "_counts");
  const bool are_counts = counts.dtype() == DType::kInt64 || counts.dtype() == DType::kInt32;
  if (tokens.shape.rank() != 1 || !are_counts || counts.shape() != tokens.shape) {
    contents.fail(fmt::format("{}_counts: expected int64 of shape [n] like {}_tokens, got {}", side,
                              side, describe(counts)));
  }
  counts = convert(counts, DType::kInt64);
  std::vector<CountedToken> counted;
  for (std::size_t n = 0; n < tokens.values.size(); ++n) {
    counted.push_back({std::move(tokens.values[n]), counts.values<std::int64_t>()[n]});
  }
  return Vocabulary(std::move(counted));
}

Subwords take_subwords(Contents& contents) {
  const Tensor bytes = contents.take<Tensor>(kSubwordArray);
  if (bytes.dtype() != DType::kUInt8 || bytes.shape().rank() != 1) {
    contents.fail(
        fmt::format("{}: expected uint8 of shape [n], got {}", kSubwordArray, describe(bytes)));
  }
  const auto values = bytes.values<std::uint8_t>();
  return Subwords(std::string(values.begin(), values.end()));
}

Tokenizer::Units take_units(Contents& contents, Tokenization tokenization) {
  switch (tokenization) {
    case Tokenization::kCharacter:
      return Characters{};
    case Tokenization::kWord:
      return Words{};
    case Tokenization::kSubword:
      return take_subwords(contents);
  }
  return {};
}

Vocabulary take_vocabulary(Contents& contents, const Tokenizer& tokenizer,
                           const std::string& side) {
  const auto* subwords = std::get_if<Subwords>(&tokenizer.units());
  return subwords != nullptr ? subwords->vocabulary() : take_vocabulary(contents, side);
}

void add_rule(TextStyle& style, const std::string& rule, const std::string& value,
              const Contents& contents) {
  const auto refuse = [&](std::string_view rest) {
    contents.fail(
        fmt::format("{}: {} {}: {}", kStyleArray, app::quoted(rule), app::quoted(value), rest));
  };
  if (value.empty() || !from_utf8(value)) refuse("expected UTF-8 text");
  if (rule == kSentenceRule) {
    if (value != kCapitalStart) refuse(fmt::format("expected {}", app::quoted(kCapitalStart)));
    style.sentences = SentenceStart::kCapital;
  } else if (rule == kWordRule) {
    const std::string lower = lower_case(value);
    if (lower == value) refuse("expected a word with a capital");
    if (!style.words.emplace(lower, value).second) refuse("is given twice");
  } else {
    const auto* found = std::ranges::find(kSpaceRules, rule, &Choice<Spaces>::name);
    if (found == std::end(kSpaceRules)) refuse("unknown rule");
    if (!style.spaces.emplace(value, found->value).second) refuse("is given twice");
  }
}

// Reads the style, which is empty if the file has none.
TextStyle take_style(Contents& contents) {
  TextStyle style;
  if (!contents.has(kStyleArray)) return style;
  const Strings rows = contents.take<Strings>(kStyleArray);
  if (rows.shape.rank() != 2 || rows.shape[1] != 2) {
    contents.fail(
        fmt::format("{}: expected shape [n,2], got {}", kStyleArray, to_string(rows.shape)));
  }
  for (std::size_t n = 0; n < rows.values.size(); n += 2) {
    add_rule(style, rows.values[n], rows.values[n + 1], contents);
  }
  return style;
}

// Compares the sizes in the settings with the count of numbers in the file, so that wrong settings
// cannot make the model allocate memory out of proportion to the file.
void check_sizes(const Contents& contents, const TranslatorConfig& config) {
  const Index numbers = contents.element_count();
  const auto check = [&](std::string_view name, Index rows, Index columns) {
    Index needed = 0;
    if (rows < 1 || columns < 1 || __builtin_mul_overflow(rows, columns, &needed) ||
        needed > numbers) {
      contents.fail(
          fmt::format("{}: expected parameters of that size, got {} numbers", name, numbers));
    }
  };
  check("hidden", config.hidden, config.hidden);
  check("embedding", config.embedding, config.hidden);
  check("encoder_layers", config.encoder_layers, config.hidden * config.hidden);
  if (config.encoder_layers > contents.array_count()) {  // each layer has several arrays
    contents.fail(fmt::format("encoder_layers: expected arrays of {} layers, got {} arrays",
                              config.encoder_layers, contents.array_count()));
  }
  switch (config.tied_embeddings) {
    case TiedEmbeddings::kNone:
      check("hidden", config.hidden, config.target_tokens);
      break;
    case TiedEmbeddings::kOutput:
      // A lower bound for the size of the readout.
      check("embedding", config.embedding, config.embedding);
      break;
  }
  check("embedding", config.embedding, config.source_tokens);
  check("embedding", config.embedding, config.target_tokens);
  if (form_of(config.attention).has_units) {
    check("units", config.units, config.hidden);
  }
}

// Reads the parameters. Widening 16-bit numbers is exact.
void take_parameters(Contents& contents, Translator& translator) {
  for_each_parameter(translator, [&](const BasicParameter<Tensor>& parameter) {
    Tensor read = contents.take<Tensor>(parameter.name);
    const DType wanted = parameter.value.dtype();
    const bool is_narrow = read.dtype() == DType::kFloat16 || read.dtype() == DType::kBFloat16;
    if ((read.dtype() != wanted && !is_narrow) || read.shape() != parameter.value.shape()) {
      contents.fail(fmt::format("{}: expected {}, got {}", parameter.name,
                                describe(parameter.value), describe(read)));
    }
    parameter.value = is_narrow ? convert(read, wanted) : std::move(read);
  });
}

TranslationModel model_from(Contents& contents) {
  ModelSettings settings = take_settings(contents);
  Tokenizer tokenizer(take_units(contents, settings.tokenization), settings.letters);
  Vocabulary source = take_vocabulary(contents, tokenizer, "source");
  Vocabulary target = take_vocabulary(contents, tokenizer, "target");
  settings.config.source_tokens = source.size();
  settings.config.target_tokens = target.size();
  check_sizes(contents, settings.config);
  if (settings.longest_source < 0) {
    contents.fail(
        fmt::format("longest_source: expected a number from 0, got {}", settings.longest_source));
  }
  TranslationModel model{Translator(settings.config), std::move(source),
                         std::move(target),           std::move(tokenizer),
                         take_style(contents),        settings.longest_source};
  take_parameters(contents, model.translator);
  contents.check_empty();
  return model;
}

TranslationModel model_from(const std::string& file, std::vector<NamedArray> arrays) {
  Contents contents(file, std::move(arrays));
  try {
    return model_from(contents);
  } catch (const Error& error) {  // from checks of the settings and vocabularies
    contents.fail(error.what());
  }
}

// Throws InputError that names the file's kind unless the file is in the safetensors format.
void expect_safetensors(const std::string& path, const std::atomic<bool>* stop) {
  const FileKind kind = file_kind(path, stop);
  if (kind == FileKind::kSafetensors) return;
  throw InputError(path, fmt::format("expected the folder of a run or a .safetensors model, got {}",
                                     describe(kind)));
}

}  // namespace

void write_model_file(const std::string& path, const TranslationModel& model,
                      const ModelFileOptions& options) {
  const ModelSettings settings{model.translator.config(), model.tokenizer.tokenization(),
                               model.tokenizer.letters(), model.longest_source};
  Strings text;
  for_each_setting(settings, WriteSetting{text});
  text.shape = Dims(static_cast<Index>(text.values.size()) / 2, 2);
  Columns source;
  Columns target;
  std::vector<NamedView> arrays{{"settings", &text}};
  if (const auto* subwords = std::get_if<Subwords>(&model.tokenizer.units())) {
    const std::string& bytes = subwords->bytes();
    const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
    arrays.push_back({kSubwordArray, ConstView(data, {std::ssize(bytes)})});
  } else {
    source = columns_of(model.source, options.storage);
    target = columns_of(model.target, options.storage);
    arrays.push_back({"source_tokens", &source.tokens});
    arrays.push_back({"target_tokens", &target.tokens});
    arrays.push_back({"source_counts", source.counts.view()});
    arrays.push_back({"target_counts", target.counts.view()});
  }
  const Strings style = style_rows(model.style);
  if (!style.values.empty()) arrays.push_back({kStyleArray, &style});
  const StoredParameters parameters(model.translator, options.storage);
  arrays.insert(arrays.end(), parameters.views().begin(), parameters.views().end());
  write_safetensors(path, arrays);
}

TranslationModel read_model_file(const std::string& path, const std::atomic<bool>* stop) {
  std::error_code error;  // not looked at: opening the file will report why it cannot be read
  if (path != "-" && std::filesystem::is_directory(path, error)) {
    return read_model_file(model_path(path, kBestFile), stop);
  }
  // Only a regular file is examined first: a pipe can be read only once.
  if (path != "-" && std::filesystem::is_regular_file(path, error)) {
    expect_safetensors(path, stop);
  }
  return model_from(path == "-" ? "<stdin>" : path, read_safetensors(path, stop));
}

TranslationModel parse_model(const std::string& name, std::string_view bytes) {
  return model_from(name, parse_safetensors(name, bytes));
}

}  // namespace qkv::app
