// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/numbers.h>
#include <qkv/app/utf8.h>
#include <qkv/app/word_vectors.h>
#include <qkv/error.h>

#include "io/line_reader.h"
#include "io/near_words.h"

namespace qkv::app {
namespace {

constexpr int kConfirmedLines = 100;
// Each line is compared with every word that is still missing: with more of them a large file would
// take minutes.
constexpr std::size_t kMostNear = 1000;
constexpr std::string_view kBlanks = " \t";

struct TextHash : std::hash<std::string_view> {
  using is_transparent = void;
};
template <class Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;
using TextSet = std::unordered_set<std::string, TextHash, std::equal_to<>>;

std::string_view first_field(std::string_view line) {
  return line.substr(0, line.find_first_of(kBlanks));
}

// Cuts the last field off; empty when there is none.
std::string_view take_last_field(std::string_view& line) {
  const std::size_t end = line.find_last_not_of(kBlanks);
  line = line.substr(0, end + 1);  // npos + 1 is 0
  const std::size_t blank = line.find_last_of(kBlanks);
  const std::string_view field = blank == line.npos ? line : line.substr(blank + 1);
  line.remove_suffix(field.size());
  return field;
}

std::string_view without_end_blanks(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

bool is_number(std::string_view field) { return parse_number<double>(field).has_value(); }

// What was meant for a number, though it may be none: "12x", "1e999", "nan".
bool looks_like_number(std::string_view field) {
  const std::size_t sign = field.find_first_not_of("+-");
  if (sign == field.npos) return false;
  const std::string_view digits = field.substr(sign);
  return (digits[0] >= '0' && digits[0] <= '9') || digits == "nan" || digits == "inf";
}

// A line cut in two: the word, which may hold blanks, and the text of its numbers.
struct Cut {
  std::string_view word;
  std::vector<std::string_view> numbers;
};

// A spelling that is looked for.
struct Spelled {
  Index row = -1;     // of the values; -1 until it is found
  bool best = false;  // of some word
};

// Reads one file for one list of words.
class Reading {
 public:
  Reading(const std::string& path, std::span<const Spellings> words,
          const WordVectorOptions& options);
  WordVectors result();

 private:
  void read_line(std::string_view line);
  bool read_header(std::string_view line);
  void take_width_from(std::string_view line);
  Cut cut(std::string_view line) const;
  void check(const Cut& line) const;
  void keep(const Cut& line, Spelled& entry);
  void offer_as_near(std::string_view line, std::string_view first);
  bool is_found(const Spellings& spellings) const;

  std::span<const Spellings> words_;
  io::LineReader lines_;
  Index width_;
  int to_confirm_ = kConfirmedLines;
  TextMap<Spelled> spelled_{};    // every spelling
  std::size_t best_to_find_ = 0;  // how many best spellings are not found yet
  TextSet first_fields_{};        // of every spelling
  std::vector<float> values_{};
  // Words without a vector so far: near_[missing_[n]] belongs to words_[missing_[n]].
  std::vector<io::NearWords> near_{};
  std::vector<std::size_t> missing_{};
};

Reading::Reading(const std::string& path, std::span<const Spellings> words,
                 const WordVectorOptions& options)
    : words_(words), lines_(path, options.stop), width_(options.width) {
  if (width_ < 0) throw Error("read_word_vectors", "width", "must not be negative");
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].empty()) throw Error("read_word_vectors", "words", "one has no spelling");
    for (const std::string& spelling : words[i]) {
      Spelled& entry = spelled_[spelling];
      if (&spelling == &words[i].front() && !std::exchange(entry.best, true)) ++best_to_find_;
      first_fields_.emplace(first_field(spelling));
    }
    if (i >= kMostNear || options.near <= 0) continue;
    near_.emplace_back(words[i].back(), options.near);
    missing_.push_back(i);
  }
}

// "count width" alone on the first line.
bool Reading::read_header(std::string_view line) {
  const std::string_view second = take_last_field(line);
  const std::string_view first = take_last_field(line);
  const auto count = parse_number<Index>(first);
  const auto width = parse_number<Index>(second);
  if (!line.empty() || !count || !width || *count < 0 || *width < 1) return false;
  if (width_ == 1 && *width != 1) return false;  // a word "7" with its one number
  if (width_ != 0 && width_ != *width) {
    lines_.fail(
        fmt::format("expected vectors of {} numbers, got a header that says {}", width_, *width));
  }
  width_ = *width;
  return true;
}

// Every field after the first, but for the parts of a word with blanks in it.
void Reading::take_width_from(std::string_view line) {
  std::string_view rest = without_end_blanks(line);
  std::string_view field = take_last_field(rest);
  while (!rest.empty() && is_number(field)) {
    ++width_;
    field = take_last_field(rest);
  }
  if (!rest.empty() && looks_like_number(field)) {
    lines_.fail(fmt::format("expected a word and its numbers, got {}", quoted(field)));
  }
  if (width_ == 0) {
    lines_.fail(fmt::format("expected a word and its numbers, got {}", quoted(line)));
  }
}

Cut Reading::cut(std::string_view line) const {
  Cut result{line, {}};
  result.numbers.resize(static_cast<std::size_t>(width_));
  for (auto number = result.numbers.rbegin(); number != result.numbers.rend(); ++number) {
    *number = take_last_field(result.word);
    if (result.word.empty()) {
      lines_.fail(fmt::format("expected a word and {} numbers, got {} fields", width_,
                              number - result.numbers.rbegin() + (number->empty() ? 0 : 1)));
    }
  }
  result.word = without_end_blanks(result.word);
  return result;
}

// Throws unless all numbers are such and none stands before them: "cat 0.5" is no word.
void Reading::check(const Cut& line) const {
  for (std::size_t i = 0; i < line.numbers.size(); ++i) {
    if (is_number(line.numbers[i])) continue;
    lines_.fail(fmt::format("expected {} numbers after {}, got {} as number {}", width_,
                            quoted(line.word), quoted(line.numbers[i]), i + 1));
  }
  std::string_view rest = line.word;
  const std::string_view last = take_last_field(rest);
  if (!rest.empty() && last.find('.') != last.npos && is_number(last)) {
    lines_.fail(fmt::format("expected {} numbers after {}, got more: {} before them", width_,
                            quoted(first_field(line.word)), quoted(last)));
  }
}

void Reading::keep(const Cut& line, Spelled& entry) {
  for (std::size_t i = 0; i < line.numbers.size(); ++i) {
    const double value = *parse_number<double>(line.numbers[i]);
    if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max())) {
      lines_.fail(fmt::format("expected numbers that float32 can hold after {}, got {}",
                              quoted(line.word), quoted(line.numbers[i])));
    }
    values_.push_back(static_cast<float>(value));
  }
  entry.row = static_cast<Index>(values_.size()) / width_ - 1;
  if (entry.best) --best_to_find_;
  std::erase_if(missing_, [&](std::size_t word) { return is_found(words_[word]); });
}

void Reading::offer_as_near(std::string_view line, std::string_view first) {
  if (missing_.empty()) return;
  const io::NearWords::Word word(first);
  for (const std::size_t missing : missing_) {
    if (near_[missing].wants(word) && cut(line).word == first) near_[missing].take(word);
  }
}

void Reading::read_line(std::string_view line) {
  if (line.find_first_not_of(kBlanks) == line.npos) return;
  if (lines_.number() == 1 && read_header(line)) return;
  if (width_ == 0) take_width_from(line);
  if (to_confirm_ > 0) {
    --to_confirm_;
    check(cut(line));
  }
  const std::string_view first = first_field(line);
  if (first_fields_.contains(first)) {
    const Cut parts = cut(line);
    const auto entry = spelled_.find(parts.word);
    const bool wanted = entry != spelled_.end() && entry->second.row < 0;
    // "cat 0.5" where "cat" is wanted: a line with a number too many.
    if (wanted || spelled_.contains(first)) check(parts);
    if (wanted) keep(parts, entry->second);
  }
  offer_as_near(line, first);
}

bool Reading::is_found(const Spellings& spellings) const {
  return std::any_of(spellings.begin(), spellings.end(), [&](const std::string& spelling) {
    return spelled_.find(spelling)->second.row >= 0;
  });
}

WordVectors Reading::result() {
  std::string_view line;
  bool any = false;
  while (lines_.next(line)) {
    any = true;
    read_line(line);
    if (best_to_find_ == 0) break;
  }
  if (!any) {
    throw InputError::at_line(lines_.name(), 1,
                              "expected a word and its numbers, got an empty file");
  }
  WordVectors result;
  const Index rows = width_ == 0 ? 0 : static_cast<Index>(values_.size()) / width_;
  result.vectors = Tensor(DType::kFloat32, {rows, width_});
  std::copy(values_.begin(), values_.end(), result.vectors.values<float>().begin());
  result.words.resize(words_.size());
  for (std::size_t i = 0; i < words_.size(); ++i) {
    for (const std::string& spelling : words_[i]) {
      if (const Index row = spelled_.find(spelling)->second.row; row >= 0) {
        result.words[i] = {row, spelling, {}};
        break;
      }
    }
  }
  for (const std::size_t word : missing_) result.words[word].near = near_[word].best();
  return result;
}

}  // namespace

WordVectors read_word_vectors(const std::string& path, std::span<const Spellings> words,
                              const WordVectorOptions& options) {
  return Reading(path, words, options).result();
}

}  // namespace qkv::app
