// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <qkv/app/subwords.h>
#include <qkv/error.h>

#include "text/subword_model.h"
#include "text/subword_text.h"

namespace qkv::app {
namespace {

constexpr Index kGiven = Vocabulary::kSpecials + 256;  // pieces that are not learned
// The most bytes of all texts and the most characters of a word. SentencePiece ends the process for
// more than 2^31 characters, and its BPE for a word of more than 2^15, since positions in a word
// have 16 bits there.
constexpr std::size_t kMostTextBytes = std::size_t{1} << 30U;
constexpr std::size_t kLongestWord = 1000;

// Puts blanks in place of SentencePiece's sign for unknown characters, U+2585: its training skips
// texts that hold the sign.
std::string without_signs(std::string text) {
  constexpr std::string_view kUnknownSign = "\xE2\x96\x85";
  for (std::size_t at = text.find(kUnknownSign); at != text.npos;
       at = text.find(kUnknownSign, at)) {
    text.replace(at, kUnknownSign.size(), " ");
  }
  return text;
}

// Puts blanks into words that are longer than kLongestWord. Pieces have at most 16 characters, so
// hardly any piece is missed.
std::string with_short_words(std::string_view text) {
  std::string result;
  std::size_t length = 0;
  for (const char byte : text) {
    // True if the byte begins a character.
    const bool begins = (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U;
    if (byte == ' ') {
      length = 0;
    } else if (begins && ++length > kLongestWord) {
      result += ' ';
      length = 1;
    }
    result += byte;
  }
  return result;
}

// Passes the texts, up to about kMostTextBytes, to SentencePiece, which calls value() and Next()
// until done() and keeps copies.
class TrainingTexts : public sentencepiece::SentenceIterator {
 public:
  explicit TrainingTexts(std::function<std::optional<std::string>()> next)
      : next_(std::move(next)) {
    advance();
  }

  bool done() const override { return is_done_; }
  void Next() override { advance(); }
  const std::string& value() const override { return text_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  void advance() {
    do {
      const std::optional<std::string> text = next_();
      is_done_ = !text || bytes_ > kMostTextBytes;
      if (is_done_) return;
      text_ = with_short_words(with_single_blanks(without_signs(*text)));
    } while (text_.empty());
    bytes_ += text_.size();
  }

  std::function<std::optional<std::string>()> next_;
  std::string text_{};
  std::size_t bytes_ = 0;
  bool is_done_ = false;
};

const char* name_of(SubwordAlgorithm algorithm) {
  switch (algorithm) {
    case SubwordAlgorithm::kUnigram:
      return "unigram";
    case SubwordAlgorithm::kBpe:
      return "bpe";
  }
  return "";
}

std::unordered_map<std::string, std::string> trainer_settings(const SubwordOptions& options) {
  return {{"model_type", name_of(options.algorithm)},
          {"vocab_size", std::to_string(options.vocabulary)},
          {"hard_vocab_limit", "false"},  // a text with fewer pieces gives a smaller model
          {"byte_fallback", "true"},
          {"pad_id", std::to_string(Vocabulary::kPadding)},
          {"bos_id", std::to_string(Vocabulary::kStart)},
          {"eos_id", std::to_string(Vocabulary::kEnd)},
          {"unk_id", std::to_string(Vocabulary::kUnknown)},
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},                    // the texts have none
          {"max_sentence_length", std::to_string(kMostTextBytes)},  // longer texts are skipped
          {"num_threads", "1"},   // sums, and so the pieces, depend on the number of threads
          {"minloglevel", "3"}};  // process-wide: SentencePiece writes only fatal messages
}

[[noreturn]] void refuse_size(const std::string& rule, Index got) {
  throw Error("train_subwords", "vocab", fmt::format("must be {}, got {}", rule, got));
}

// The required number of pieces in SentencePiece's message: 337 in "... required_chars. 300 vs 337.
// ...". Returns none for another message.
std::optional<Index> required_pieces(std::string_view message) {
  constexpr std::string_view kBefore = " vs ";
  const std::size_t at = message.find(kBefore, message.find("required_chars. "));
  if (at == message.npos) return std::nullopt;
  Index required = 0;
  const std::string_view rest = message.substr(at + kBefore.size());
  const auto result = std::from_chars(rest.data(), rest.data() + rest.size(), required);
  return result.ec == std::errc{} ? std::optional(required) : std::nullopt;
}

SubwordModel learned_by(const sentencepiece::SentencePieceProcessor& processor,
                        SubwordAlgorithm algorithm) {
  SubwordModel model{.algorithm = algorithm};
  for (int id = kGiven; id < processor.GetPieceSize(); ++id) {
    model.pieces.push_back({processor.IdToPiece(id), processor.GetScore(id)});
  }
  return model;
}

void check_stop(const std::atomic<bool>* stop) {
  if (stop != nullptr && stop->load(std::memory_order_relaxed)) throw Cancelled("train_subwords");
}

}  // namespace

Subwords train_subwords(const std::function<std::optional<std::string>()>& next,
                        const SubwordOptions& options, const std::atomic<bool>* stop) {
  constexpr Index kMost = 1'000'000'000;  // SentencePiece's numbers have 32 bits
  if (options.vocabulary <= kGiven || options.vocabulary > kMost) {
    refuse_size(fmt::format("from {} to {}", kGiven + 1, kMost), options.vocabulary);
  }
  TrainingTexts texts([&] {
    check_stop(stop);
    return next();
  });
  std::string bytes;
  using sentencepiece::SentencePieceTrainer;
  const auto status = SentencePieceTrainer::Train(trainer_settings(options), &texts, &bytes);
  check_stop(stop);
  if (!status.ok()) {
    const auto required = required_pieces(status.message());
    if (required)
      refuse_size(fmt::format("at least {} for the characters of this text", *required),
                  options.vocabulary);
    throw Error("train_subwords", "next",
                "must return text to learn from: letters or other visible characters");
  }
  sentencepiece::SentencePieceProcessor processor;
  const auto loaded = processor.LoadFromSerializedProto(bytes);
  if (!loaded.ok()) {
    throw Error("train_subwords", "next",
                fmt::format("SentencePiece failed: {}", loaded.ToString()));
  }
  if (processor.GetPieceSize() < options.vocabulary) {
    refuse_size(fmt::format("at most {} for this text", processor.GetPieceSize()),
                options.vocabulary);
  }
  return Subwords(bytes_of(learned_by(processor, options.algorithm)));
}

}  // namespace qkv::app
