// SPDX-License-Identifier: Apache-2.0
#include "models/translation_data.h"

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/text_style.h>
#include <qkv/app/vocabulary.h>

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

// The pairs of a file as text: tokens take ten times the memory.
struct TextPairs {
  std::vector<std::pair<std::string, std::string>> pairs{};
  DataFacts facts{};
};

std::vector<std::string> tokens_of(std::string_view text, const app::TrainingOptions& options) {
  return app::split_text(text, options.tokenization, options.letters);
}

// Calls take(source tokens, target tokens, target) for each pair that is kept.
template <class Take>
TextPairs read_pairs(const std::string& path, const app::TrainingOptions& options,
                     const std::atomic<bool>* stop, const Take& take) {
  TextPairs read;
  Hash hash;
  app::ParallelTextOptions rows;
  rows.columns = {options.source_column, options.target_column};
  rows.stop = stop;
  const std::string name = path == "-" ? "<stdin>" : path;
  const auto take_row = [&](std::span<const std::string_view> fields, Index line) {
    hash.add(fields[0]);
    hash.add("\t");
    hash.add(fields[1]);
    hash.add("\n");
    const auto source = tokens_of(fields[0], options);
    const auto target = tokens_of(fields[1], options);
    if (source.empty() || target.empty()) {
      const Index column = source.empty() ? options.source_column : options.target_column;
      throw app::InputError::at_line(
          name, line, fmt::format("expected text in column {}, got nothing", column));
    }
    if (std::ssize(source) > options.max_length || std::ssize(target) > options.max_length) {
      ++read.facts.left_out;
      return true;
    }
    take(source, target, fields[1]);
    read.pairs.emplace_back(fields[0], fields[1]);
    return true;
  };
  app::for_each_row(path, rows, take_row);
  if (read.pairs.empty()) {
    throw app::InputError(
        name, fmt::format("expected pairs of at most {} tokens, got none", options.max_length));
  }
  read.facts.pairs = std::ssize(read.pairs);
  read.facts.hash = hash.text();
  return read;
}

EncodedPairs encode(TextPairs&& read, const TranslationData& data,
                    const app::TrainingOptions& options) {
  EncodedPairs encoded;
  encoded.facts = read.facts;
  for (auto& [source, target] : read.pairs) {
    encoded.source.push_back(data.source.encode(tokens_of(source, options)));
    encoded.target.push_back(data.target.encode(tokens_of(target, options)));
    source = {};
    target = {};
  }
  return encoded;
}

// The first kMostTranslated sentences with all their references.
std::vector<TranslatedSentence> first_sentences(
    std::span<const std::pair<std::string, std::string>> pairs) {
  app::Sentences sentences;
  std::vector<Index> firsts;
  for (std::size_t n = 0; n < pairs.size(); ++n) {
    const bool is_new = sentences.find(pairs[n].first) == firsts.size();
    if (is_new && std::ssize(firsts) == kMostTranslated) continue;
    sentences.add(pairs[n].first, pairs[n].second);
    if (is_new) firsts.push_back(static_cast<Index>(n));
  }
  std::vector<TranslatedSentence> result;
  for (std::size_t n = 0; n < firsts.size(); ++n) {
    result.push_back({sentences.all()[n], firsts[n]});
  }
  return result;
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
                                      const std::atomic<bool>* stop) {
  TranslationData data;
  app::VocabularyBuilder sources;
  app::VocabularyBuilder targets;
  app::TextStyleBuilder style(options.tokenization, options.letters);
  const auto take = [&](const auto& source, const auto& target, std::string_view text) {
    sources.add(source);
    targets.add(target);
    style.add(text);
  };
  TextPairs train = read_pairs(options.data, options, stop, take);
  data.source = sources.build(options.min_count);
  data.target = targets.build(options.min_count);
  data.style = style.build();
  data.train = encode(std::move(train), data, options);
  if (options.valid.empty()) return data;
  TextPairs valid =
      read_pairs(options.valid, options, stop, [](const auto&, const auto&, std::string_view) {});
  std::vector<TranslatedSentence> sentences = first_sentences(valid.pairs);
  data.valid = encode(std::move(valid), data, options);
  data.valid.sentences = std::move(sentences);
  return data;
}

}  // namespace qkv::models
