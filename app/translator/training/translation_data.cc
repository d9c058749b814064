// SPDX-License-Identifier: Apache-2.0
#include "translator/training/translation_data.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/text_style.h>
#include <qkv/app/vocabulary.h>
#include <qkv/error.h>

#include "core/integers.h"
#include "files/bad_lines.h"
#include "files/parallel_text.h"
#include "text/text.h"
#include "translator/data/numbered_tokens.h"
#include "translator/passes/parallel.h"

namespace qkv::app {
namespace {

// The hash FNV-1a with 64 bits (Fowler, Noll, Vo).
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

// A sentence pair of a file as text, with its line.
struct TextLine {
  std::string source{};
  std::string target{};
  Index line = 0;
};

// All sentence pairs of a file.
struct TextPairs {
  std::string name{};  // the file's name in messages
  std::vector<TextLine> pairs{};
  DataFacts facts{};
  Index lines = 0;  // of the file
  BadLines bad{};   // the lines that --skip-bad leaves out
};

InputError no_text(const std::string& name, Index line, Index column) {
  return InputError::at_line(
      name, line, fmt::format("expected text in column {} (counted from 0), got none", column));
}

// A warning if at least half of the validation pairs are training pairs; else empty.
std::string seen_in_training(const TextPairs& train, const TextPairs& valid) {
  const auto key = [](const TextLine& pair) { return pair.source + '\t' + pair.target; };
  std::unordered_set<std::string> texts;
  for (const TextLine& pair : valid.pairs) texts.insert(key(pair));
  std::unordered_set<std::string> seen;
  for (const TextLine& pair : train.pairs) {
    if (std::string text = key(pair); texts.contains(text)) seen.insert(std::move(text));
  }
  const auto count = std::ranges::count_if(
      valid.pairs, [&](const TextLine& pair) { return seen.contains(key(pair)); });
  if (2 * count < std::ssize(valid.pairs)) return {};
  return fmt::format(
      "{}: {} of its {} pairs are training pairs, so that validation does not measure how new text "
      "is translated; qkv split divides data",
      valid.name, count, valid.pairs.size());
}

std::string skipped(const TextPairs& read) { return read.bad.summary(read.lines, "skipped"); }

TextPairs read_pairs(const std::string& path, const TrainingOptions& options,
                     const std::atomic<bool>* stop) {
  TextPairs read{.name = path == "-" ? "<stdin>" : path};
  Hash hash;
  ParallelTextOptions rows;
  rows.columns = {options.source_column, options.target_column};
  rows.stop = stop;
  rows.bad_line = [&](const InputError& error) {
    if (!options.skip_bad) throw with_skip_bad(error);
    read.lines = error.line();
    read.bad.add(error);
  };
  for_each_row(path, rows, [&](std::span<const std::string_view> fields, Index line) {
    read.lines = line;
    for (std::size_t n = 0; n < fields.size(); ++n) {
      if (!is_blank(fields[n])) continue;
      rows.bad_line(no_text(read.name, line, rows.columns[n]));
      return true;
    }
    hash.add(fields[0]);
    hash.add("\t");
    hash.add(fields[1]);
    hash.add("\n");
    read.pairs.push_back({std::string(fields[0]), std::string(fields[1]), line});
    return true;
  });
  read.facts.hash = hash.text();
  if (read.pairs.empty()) {
    throw InputError(read.name, "expected sentence pairs, got none: " + skipped(read));
  }
  return read;
}

using Tokens = std::vector<std::string>;

// The sentence pairs of a block of lines as token numbers, except those that are too long or bad.
struct SplitBlock {
  NumberedTexts source{};
  NumberedTexts target{};
  std::optional<TextStyleBuilder> style{};  // style of the targets, if requested
  std::vector<bool> left_out{};             // true for each line that is too long or bad
  std::vector<InputError> bad{};            // the errors of lines with an empty text
};

// The sentence pairs of a file as token numbers.
struct SplitPairs {
  NumberedTexts source{};
  NumberedTexts target{};

  EncodedPairs encode(const TextPairs& read, const TranslationData& data) {
    EncodedPairs encoded;
    encoded.facts = read.facts;
    encoded.source = source.take_ids(data.source);
    encoded.target = target.take_ids(data.target);
    return encoded;
  }
};

// Splits sentence pairs into tokens, a block of kLines lines per task of the executor. The result
// is assembled in the order of the lines, and so does not depend on the number of threads.
class PairSplitter {
 public:
  PairSplitter(const Tokenizer& tokenizer, const TrainingOptions& options,
               const std::atomic<bool>* stop)
      : tokenizer_(tokenizer), options_(options), stop_(stop) {}

  // Removes the sentence pairs that are too long or bad from `read`. Adds the targets of the others
  // to `style`, which may be null.
  SplitPairs split(TextPairs& read, TextStyleBuilder* style) const {
    const auto lines = static_cast<Index>(read.pairs.size());
    std::vector<SplitBlock> blocks(static_cast<std::size_t>(core::divide_up(lines, kLines)));
    for_each_task(options_.executor, std::ssize(blocks), [&](Index n) {
      const Index first = n * kLines;
      const auto block_lines =
          std::span(read.pairs)
              .subspan(static_cast<std::size_t>(first),
                       static_cast<std::size_t>(std::min(kLines, lines - first)));
      SplitBlock& block = blocks[static_cast<std::size_t>(n)];
      if (style != nullptr) block.style.emplace(options_.tokenization, options_.letters);
      for (const TextLine& line : block_lines) add_line(read.name, line, block);
    });
    SplitPairs all;
    std::vector<bool> left_out;
    std::vector<InputError> bad;
    for (SplitBlock& block : blocks) {
      all.source.append(std::move(block.source));
      all.target.append(std::move(block.target));
      if (style != nullptr) style->add(*block.style);
      left_out.insert(left_out.end(), block.left_out.begin(), block.left_out.end());
      bad.insert(bad.end(), block.bad.begin(), block.bad.end());
      block = {};
    }
    for (const InputError& error : bad) read.bad.add(error);
    leave_out(left_out, std::ssize(bad), read);
    return all;
  }

 private:
  static constexpr Index kLines = 1024;  // lines of a block

  void add_line(const std::string& name, const TextLine& line, SplitBlock& block) const {
    if (stop_ != nullptr && stop_->load(std::memory_order_relaxed)) throw Cancelled("train");
    const Tokens source = tokenizer_.split(line.source);
    const Tokens target = tokenizer_.split(line.target);
    if (source.empty() || target.empty()) {
      const Index column = source.empty() ? options_.source_column : options_.target_column;
      if (!options_.skip_bad) throw with_skip_bad(no_text(name, line.line, column));
      block.bad.push_back(no_text(name, line.line, column));
      block.left_out.push_back(true);
      return;
    }
    const Index longest = std::max(std::ssize(source), std::ssize(target));
    block.left_out.push_back(longest > options_.max_length);
    if (block.left_out.back()) return;
    block.source.add(source);
    block.target.add(target);
    if (block.style) block.style->add(line.target);
  }

  // Removes the pairs that are left out: `bad` of them have an empty text, the others are too long.
  void leave_out(const std::vector<bool>& left_out, Index bad, TextPairs& read) const {
    std::size_t kept = 0;
    for (std::size_t n = 0; n < read.pairs.size(); ++n) {
      if (left_out[n]) continue;
      if (kept != n) read.pairs[kept] = std::move(read.pairs[n]);
      ++kept;
    }
    read.facts.left_out = static_cast<Index>(read.pairs.size() - kept) - bad;
    read.facts.pairs = static_cast<Index>(kept);
    read.pairs.resize(kept);
    if (kept > 0) return;
    if (read.facts.left_out == 0) {
      throw InputError(read.name, "expected sentence pairs, got none: " + skipped(read));
    }
    const bool is_default = options_.max_length == TrainingOptions{}.max_length;
    throw InputError(read.name,
                     fmt::format("expected pairs of at most {} tokens ({}--max-length), got none",
                                 options_.max_length, is_default ? "the default of " : ""));
  }

  const Tokenizer& tokenizer_;
  const TrainingOptions& options_;
  const std::atomic<bool>* stop_;
};

// The first `most` different source sentences of the pairs, each with all its references.
std::vector<TranslatedSentence> first_sentences(std::span<const TextLine> pairs, Index most) {
  Sentences sentences;
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

// Learns subwords from sources and targets together, so that names and numbers have equal pieces in
// both languages.
Subwords learned_subwords(const std::vector<TextLine>& pairs, const TrainingOptions& options,
                          const TrainingHooks& hooks) {
  std::size_t n = 0;
  const auto next = [&]() -> std::optional<std::string> {
    if (n == 2 * pairs.size()) return std::nullopt;
    const TextLine& pair = pairs[n / 2];
    const std::string& text = n % 2 == 0 ? pair.source : pair.target;
    ++n;
    return as_read(text, options.letters);
  };
  if (hooks.learning) hooks.learning(options.subwords.vocabulary, std::ssize(pairs));
  return train_subwords(next, options.subwords, hooks.stop);
}

Tokenizer::Units units_of(const std::vector<TextLine>& pairs, const TrainingOptions& options,
                          const std::optional<Subwords>& subwords, const TrainingHooks& hooks) {
  switch (options.tokenization) {
    case Tokenization::kCharacter:
      return Characters{};
    case Tokenization::kWord:
      return Words{};
    case Tokenization::kSubword:
      return subwords ? *subwords : learned_subwords(pairs, options, hooks);
  }
  return {};
}

}  // namespace

std::vector<PairLength> EncodedPairs::lengths() const {
  std::vector<PairLength> lengths;
  for (std::size_t n = 0; n < source.size(); ++n) {
    lengths.push_back({std::ssize(source[n]), std::ssize(target[n])});
  }
  return lengths;
}

TranslationData read_translation_data(const TrainingOptions& options,
                                      const std::optional<Subwords>& subwords,
                                      const TrainingHooks& hooks) {
  const std::atomic<bool>* const stop = hooks.stop;
  const auto warn_of_skipped = [&](const TextPairs& read) {
    if (read.bad.count() == 0 || !hooks.warning) return;
    hooks.warning(fmt::format("{}: {}", read.name, skipped(read)));
  };
  TranslationData data;
  TextPairs train = read_pairs(options.data, options, stop);
  data.tokenizer = Tokenizer(units_of(train.pairs, options, subwords, hooks), options.letters);
  const PairSplitter splitter(data.tokenizer, options, stop);
  TextStyleBuilder style(options.tokenization, options.letters);
  SplitPairs split = splitter.split(train, &style);
  warn_of_skipped(train);
  data.style = style.build();
  if (const auto* pieces = std::get_if<Subwords>(&data.tokenizer.units())) {
    data.source = data.target = pieces->vocabulary();
    data.subword_hash = hash_of(pieces->bytes());
  } else {
    data.source = split.source.vocabulary(options.min_count);
    data.target = split.target.vocabulary(options.min_count);
  }
  data.train = split.encode(train, data);
  for (const auto& ids : data.train.source) {
    data.longest_source = std::max(data.longest_source, std::ssize(ids) - 1);
  }
  if (options.valid.empty()) return data;
  TextPairs valid = read_pairs(options.valid, options, stop);
  split = splitter.split(valid, nullptr);
  warn_of_skipped(valid);
  if (hooks.warning) {
    if (const std::string warning = seen_in_training(train, valid); !warning.empty()) {
      hooks.warning(warning);
    }
  }
  data.valid = split.encode(valid, data);
  data.valid.sentences = first_sentences(valid.pairs, options.valid_translate);
  return data;
}

}  // namespace qkv::app
