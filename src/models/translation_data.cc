// SPDX-License-Identifier: Apache-2.0
#include "models/translation_data.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/text_style.h>
#include <qkv/app/vocabulary.h>
#include <qkv/error.h>

#include "io/parallel_text.h"

namespace qkv::models {
namespace {

// FNV-1a, 64 bits (Fowler, Noll, Vo).
class Hash {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) {
      state_ = (state_ ^ static_cast<unsigned char>(byte)) * 0x100000001B3U;
    }
  }
  std::string text() const { return fmt::format("{:016x}", state_); }

 private:
  std::uint64_t state_ = 0xCBF29CE484222325U;
};

std::string hash_of(std::string_view bytes) {
  Hash hash;
  hash.add(bytes);
  return hash.text();
}

// A pair of a file as text: tokens take ten times the memory.
struct TextLine {
  std::string source{};
  std::string target{};
  Index line = 0;
};

struct TextPairs {
  std::string name{};  // of the file
  std::vector<TextLine> pairs{};
  DataFacts facts{};
};

TextPairs read_pairs(const std::string& path, const app::TrainingOptions& options,
                     const std::atomic<bool>* stop) {
  TextPairs read{.name = path == "-" ? "<stdin>" : path};
  Hash hash;
  app::ParallelTextOptions rows;
  rows.columns = {options.source_column, options.target_column};
  rows.stop = stop;
  app::for_each_row(path, rows, [&](std::span<const std::string_view> fields, Index line) {
    hash.add(fields[0]);
    hash.add("\t");
    hash.add(fields[1]);
    hash.add("\n");
    read.pairs.push_back({std::string(fields[0]), std::string(fields[1]), line});
    return true;
  });
  read.facts.hash = hash.text();
  return read;
}

using Tokens = std::vector<std::string>;

// Leaves out the pairs that are too long, and calls take(source tokens, target tokens, target) for
// each of the others.
template <class Take>
void select_pairs(TextPairs& read, const app::Tokenizer& tokenizer,
                  const app::TrainingOptions& options, const std::atomic<bool>* stop,
                  const Take& take) {
  const auto is_left_out = [&](const TextLine& pair) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) throw Cancelled("train");
    const Tokens source = tokenizer.split(pair.source);
    const Tokens target = tokenizer.split(pair.target);
    if (source.empty() || target.empty()) {
      const Index column = source.empty() ? options.source_column : options.target_column;
      throw app::InputError::at_line(
          read.name, pair.line, fmt::format("expected text in column {}, got nothing", column));
    }
    if (std::ssize(source) > options.max_length || std::ssize(target) > options.max_length) {
      return true;
    }
    take(source, target, pair.target);
    return false;
  };
  read.facts.left_out = static_cast<Index>(std::erase_if(read.pairs, is_left_out));
  read.facts.pairs = std::ssize(read.pairs);
  if (!read.pairs.empty()) return;
  throw app::InputError(
      read.name, fmt::format("expected pairs of at most {} tokens, got none", options.max_length));
}

EncodedPairs encode(TextPairs&& read, const TranslationData& data) {
  EncodedPairs encoded;
  encoded.facts = read.facts;
  for (TextLine& pair : read.pairs) {
    encoded.source.push_back(data.source.encode(data.tokenizer.split(pair.source)));
    encoded.target.push_back(data.target.encode(data.tokenizer.split(pair.target)));
    pair = {};
  }
  return encoded;
}

// The first `most` sentences with all their references.
std::vector<TranslatedSentence> first_sentences(std::span<const TextLine> pairs, Index most) {
  app::Sentences sentences;
  std::vector<Index> firsts;
  for (std::size_t n = 0; n < pairs.size(); ++n) {
    const bool is_new = sentences.find(pairs[n].source) == firsts.size();
    if (is_new && std::ssize(firsts) == most) continue;
    sentences.add(pairs[n].source, pairs[n].target);
    if (is_new) firsts.push_back(static_cast<Index>(n));
  }
  std::vector<TranslatedSentence> result;
  for (std::size_t n = 0; n < firsts.size(); ++n) {
    result.push_back({sentences.all()[n], firsts[n]});
  }
  return result;
}

// From both sides: names and numbers are the same pieces in both languages.
app::Subwords learned_subwords(const std::vector<TextLine>& pairs,
                               const app::TrainingOptions& options, const std::atomic<bool>* stop) {
  std::size_t n = 0;
  const auto next = [&]() -> std::optional<std::string> {
    if (n == 2 * pairs.size()) return std::nullopt;
    const TextLine& pair = pairs[n / 2];
    const std::string& text = n % 2 == 0 ? pair.source : pair.target;
    ++n;
    return app::as_read(text, options.letters);
  };
  return app::train_subwords(next, options.subwords, stop);
}

app::Tokenizer::Units units_of(const std::vector<TextLine>& pairs,
                               const app::TrainingOptions& options,
                               const std::optional<app::Subwords>& subwords,
                               const std::atomic<bool>* stop) {
  switch (options.tokenization) {
    case app::Tokenization::kCharacter:
      return app::Characters{};
    case app::Tokenization::kWord:
      return app::Words{};
    case app::Tokenization::kSubword:
      return subwords ? *subwords : learned_subwords(pairs, options, stop);
  }
  return {};
}

}  // namespace

std::vector<app::PairLength> EncodedPairs::lengths() const {
  std::vector<app::PairLength> lengths;
  for (std::size_t n = 0; n < source.size(); ++n) {
    lengths.push_back({std::ssize(source[n]), std::ssize(target[n])});
  }
  return lengths;
}

TranslationData read_translation_data(const app::TrainingOptions& options,
                                      const std::optional<app::Subwords>& subwords,
                                      const std::atomic<bool>* stop) {
  TranslationData data;
  TextPairs train = read_pairs(options.data, options, stop);
  data.tokenizer = app::Tokenizer(units_of(train.pairs, options, subwords, stop), options.letters);
  app::VocabularyBuilder sources;
  app::VocabularyBuilder targets;
  app::TextStyleBuilder style(options.tokenization, options.letters);
  select_pairs(train, data.tokenizer, options, stop,
               [&](const Tokens& source, const Tokens& target, std::string_view text) {
                 sources.add(source);
                 targets.add(target);
                 style.add(text);
               });
  data.style = style.build();
  if (const auto* pieces = std::get_if<app::Subwords>(&data.tokenizer.units())) {
    data.source = data.target = pieces->vocabulary();
    data.subword_hash = hash_of(pieces->bytes());
  } else {
    data.source = sources.build(options.min_count);
    data.target = targets.build(options.min_count);
  }
  data.train = encode(std::move(train), data);
  if (options.valid.empty()) return data;
  TextPairs valid = read_pairs(options.valid, options, stop);
  select_pairs(valid, data.tokenizer, options, stop,
               [](const Tokens&, const Tokens&, std::string_view) {});
  std::vector<TranslatedSentence> sentences = first_sentences(valid.pairs, options.valid_translate);
  data.valid = encode(std::move(valid), data);
  data.valid.sentences = std::move(sentences);
  return data;
}

}  // namespace qkv::models
