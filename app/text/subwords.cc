// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <qkv/app/subwords.h>
#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "text/characters.h"
#include "text/subword_model.h"
#include "text/subword_text.h"
#include "text/text.h"

namespace qkv::app {
namespace {

// Throws Error if SentencePiece failed. No failure is expected, since models and texts have been
// checked.
void check_status(const sentencepiece::util::Status& status, std::string_view function) {
  if (status.ok()) return;
  throw Error(function, "subwords", fmt::format("SentencePiece failed: {}", status.ToString()));
}

}  // namespace

struct Subwords::Model {
  std::string bytes;
  Vocabulary vocabulary{};
  sentencepiece::SentencePieceProcessor processor{};
};

Subwords::Subwords(std::string_view bytes) {
  const SubwordModel learned = parse_subword_model(bytes);
  const auto model = std::make_shared<Model>();
  model->bytes = bytes;
  std::vector<std::string> pieces;
  pieces.reserve(learned.pieces.size() + 256);
  for (int byte = 0; byte < 256; ++byte) {
    pieces.push_back(byte_piece(static_cast<unsigned char>(byte)));
  }
  for (const LearnedPiece& piece : learned.pieces) pieces.push_back(piece.text);
  model->vocabulary = Vocabulary::uncounted(std::move(pieces));
  check_status(model->processor.LoadFromSerializedProto(bytes), "Subwords");
  model_ = model;
}

const std::string& Subwords::bytes() const noexcept { return model_->bytes; }

Vocabulary Subwords::vocabulary() const { return model_->vocabulary; }

std::vector<std::string> Subwords::split(std::string_view text) const {
  std::vector<std::string> pieces;
  check_status(model_->processor.Encode(with_single_blanks(text), &pieces), "Subwords::split");
  return pieces;
}

std::string Subwords::join(std::span<const std::string> pieces) const {
  std::string text;
  const std::vector<std::string> all(pieces.begin(), pieces.end());
  check_status(model_->processor.Decode(all, &text), "Subwords::join");
  return text;
}

std::string with_single_blanks(std::string_view text) {
  constexpr char32_t kBlankSign = U'▁';  // SentencePiece's sign for a blank, U+2581
  const std::u32string characters = decoded("Subwords::split", text);
  std::string result;
  bool is_pending = false;  // whether a blank is due before the next word
  for (const char32_t c : characters) {
    if (is_space(c) || c == kBlankSign) {
      is_pending = !result.empty();
      continue;
    }
    if (std::exchange(is_pending, false)) result += ' ';
    append_utf8(result, c);
  }
  return is_blank(decoded("Subwords::split", result)) ? std::string() : result;
}

}  // namespace qkv::app
