// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <qkv/app/utf8.h>
#include <qkv/app/word_vectors.h>

#include "commands/shell/exit_codes.h"
#include "commands/shell/memory.h"
#include "commands/shell/progress.h"
#include "commands/words/word_text.h"
#include "commands/words/words.h"
#include "text/spelling.h"
#include "text/text.h"

namespace {

using qkv::Index;

// Throws UsageError unless the vectors of the words fit into memory.
void check_room(std::size_t words, Index width) {
  ::check_memory(static_cast<double>(words) * static_cast<double>(width) * sizeof(float),
                 fmt::format("word vectors [{},{}]", words, width),
                 "fewer words, or a smaller --dim, take less");
}

// The distinct words of a text in the order of their first occurrence.
struct Distinct {
  std::vector<std::string> words{};
  std::vector<std::size_t> places{};  // the index in `words` of each token of the text
};

Distinct distinct(const std::vector<std::string>& tokens) {
  Distinct result;
  std::map<std::string, std::size_t> known;
  for (const std::string& token : tokens) {
    const auto [entry, fresh] = known.emplace(token, result.words.size());
    if (fresh) result.words.push_back(token);
    result.places.push_back(entry->second);
  }
  return result;
}

// A text that names all words without a vector, such as 'no vector for "walks" (near spellings:
// walk, walked)'; "" if there are none.
std::string missing_words(const Distinct& words, const qkv::app::WordVectors& found) {
  std::string text;
  for (std::size_t i = 0; i < words.words.size(); ++i) {
    const qkv::app::WordVector& word = found.words[i];
    if (word.row >= 0) continue;
    text += fmt::format("{}{}", text.empty() ? "no vector for " : ", ",
                        qkv::app::quoted(words.words[i]));
    if (!word.near.empty())
      text += fmt::format(" (near spellings: {})", fmt::join(word.near, ", "));
  }
  return text;
}

void copy_row(const qkv::Tensor& from, Index row, qkv::Tensor& to, Index place) {
  qkv::copy(qkv::slice(from.view(), 0, row, row + 1), qkv::slice(to.view(), 0, place, place + 1));
}

qkv::app::WordVectors read_vectors(const std::string& file,
                                   const std::vector<qkv::app::Spellings>& wanted,
                                   const WordsOptions& options, const Common& common) {
  Progress progress(common, "reading " + qkv::app::on_one_line(file));
  qkv::app::WordVectorOptions reading;
  reading.width = options.width;
  if (options.unknown != Unknown::kError) reading.near = 0;
  reading.stop = &stop_flag();
  reading.progress = [&](Index done, Index total) { progress.bytes(done, total); };
  return qkv::app::read_word_vectors(options.vectors, wanted, reading);
}

WordInput from_file(const std::vector<std::string>& tokens, const WordsOptions& options,
                    const Common& common) {
  const Distinct words = distinct(tokens);
  std::vector<qkv::app::Spellings> wanted;
  for (const std::string& word : words.words) {
    wanted.push_back({word});
    if (std::string lower = qkv::app::lower_case(word); lower != word)
      wanted.back().push_back(lower);
  }
  const std::string file = input_name(options.vectors);
  const qkv::app::WordVectors found = read_vectors(file, wanted, options, common);
  const std::string missing = missing_words(words, found);
  if (!missing.empty() && options.unknown == Unknown::kError) {
    throw qkv::app::InputError(file, missing + "; --unknown skip or zero continues without");
  }
  if (!missing.empty()) {
    warn(common, fmt::format("{}: {}; {}", file, missing,
                             options.unknown == Unknown::kSkip ? "skipped" : "zeros instead"));
  }

  WordInput input;
  input.source = file;
  std::vector<Index> rows;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const qkv::app::WordVector& word = found.words[words.places[i]];
    if (word.row < 0 && options.unknown == Unknown::kSkip) continue;
    input.tokens.push_back(tokens[i]);
    input.spellings.push_back(word.spelling);
    rows.push_back(word.row);
  }
  if (rows.empty()) throw qkv::app::InputError(file, "no word of the text has a vector");
  check_room(rows.size(), found.vectors.size(1));
  input.x =
      qkv::Tensor(qkv::DType::kFloat32, {static_cast<Index>(rows.size()), found.vectors.size(1)});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= 0) copy_row(found.vectors, rows[i], input.x, static_cast<Index>(i));
  }
  return input;
}

}  // namespace

WordInput read_words(const WordsOptions& options, const Common& common) {
  std::vector<std::string> tokens = read_tokens(options.text);
  if (!options.vectors.empty()) return from_file(tokens, options, common);
  const Index width = options.width == 0 ? qkv::app::kSpellingWidth : options.width;
  check_room(tokens.size(), width);
  qkv::Tensor x = qkv::app::spelling_vectors(tokens, options.seed, width);
  return {tokens, tokens, std::move(x), fmt::format("spelling, seed {}", options.seed)};
}
