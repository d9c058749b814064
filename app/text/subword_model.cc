// SPDX-License-Identifier: Apache-2.0
#include "text/subword_model.h"

#include <cmath>
#include <cstdint>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "text/characters.h"
#include "text/protobuf.h"

namespace qkv::app {
namespace {

using protobuf::put_bytes;
using protobuf::put_float;
using protobuf::put_number;
using protobuf::Taker;
using protobuf::Wire;

constexpr int kByteCount = 256;
// The largest absolute score accepted. Trained scores, log-probabilities or counts of merges, are
// far smaller; sums of accepted scores are finite.
constexpr float kLargestScore = 1e9F;

// ---- the messages of sentencepiece_model.proto --------------------------------------------------

// The values of ModelProto.SentencePiece.Type.
enum class PieceType : std::uint32_t { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };

constexpr std::uint32_t kPieces = 1;      // ModelProto.pieces
constexpr std::uint32_t kTrainer = 2;     // ModelProto.trainer_spec
constexpr std::uint32_t kNormalizer = 3;  // ModelProto.normalizer_spec
constexpr std::uint32_t kPieceText = 1;   // ModelProto.SentencePiece.piece
constexpr std::uint32_t kPieceScore = 2;  // ModelProto.SentencePiece.score
constexpr std::uint32_t kPieceType = 3;   // ModelProto.SentencePiece.type

void put_piece(std::string& to, std::string_view text, float score, PieceType type) {
  std::string piece;
  put_bytes(piece, kPieceText, text);
  put_float(piece, kPieceScore, score);
  if (type != PieceType::kNormal) {
    put_number(piece, kPieceType, static_cast<std::uint32_t>(type));
  }
  put_bytes(to, kPieces, piece);
}

std::uint32_t type_of(SubwordAlgorithm algorithm) {
  switch (algorithm) {
    case SubwordAlgorithm::kUnigram:
      return 1;
    case SubwordAlgorithm::kBpe:
      return 2;
  }
  return 0;
}

// The TrainerSpec: the training settings that SentencePiece needs in order to use a model.
std::string trainer_spec(SubwordAlgorithm algorithm, std::size_t size) {
  const auto id = [](std::int32_t special) { return static_cast<std::uint64_t>(special); };
  std::string spec;
  put_number(spec, 3, type_of(algorithm));
  put_number(spec, 4, size);  // vocab_size
  put_number(spec, 35, 1);    // byte_fallback
  put_number(spec, 40, id(Vocabulary::kUnknown));
  put_number(spec, 41, id(Vocabulary::kStart));
  put_number(spec, 42, id(Vocabulary::kEnd));
  put_number(spec, 43, id(Vocabulary::kPadding));
  put_bytes(spec, 44, "<unk>");  // unk_surface: how the unknown token is written
  return spec;
}

// The NormalizerSpec: SentencePiece adds a blank before the first word and changes nothing else,
// since with_single_blanks() has folded the white space.
std::string normalizer_spec() {
  std::string spec;
  put_bytes(spec, 1, "identity");
  put_number(spec, 3, 1);  // add_dummy_prefix
  put_number(spec, 4, 0);  // remove_extra_whitespaces
  put_number(spec, 5, 1);  // escape_whitespaces: as "▁"
  return spec;
}

[[noreturn]] void refuse_model(std::string_view detail) {
  throw Error("Subwords", "bytes", detail);
}

[[noreturn]] void refuse_other() {
  refuse_model("must be a SentencePiece model as qkv trains it, got something else");
}

// Refuses bytes that are the beginning of a model of at least `expected` bytes.
[[noreturn]] void refuse_truncated(std::size_t expected, std::size_t got) {
  refuse_model(
      fmt::format("must be a whole model, but are truncated: expected at least {} bytes, got {}",
                  expected, got));
}

LearnedPiece piece_from(std::string_view message) {
  Taker taker(message);
  if (!taker.tag(kPieceText, Wire::kBytes)) refuse_other();
  const auto text = taker.bytes();
  if (!text || !taker.tag(kPieceScore, Wire::kFixed32)) refuse_other();
  const auto score = taker.fixed32();
  if (!score) refuse_other();
  return {std::string(*text), *score};
}

// The most characters of a piece that SentencePiece's trainer finds (max_sentencepiece_length). A
// piece of a million characters would end the process, as SentencePiece builds its tables by
// recursion.
constexpr std::size_t kLongestPiece = 16;
// The most bytes of a piece's message: its text, its score, and a few bytes for tags and its type.
constexpr std::size_t kLongestMessage = 4 * kLongestPiece + 16;

void check_piece(const LearnedPiece& piece, std::unordered_set<std::string>& seen) {
  const auto letters = from_utf8(piece.text);
  if (piece.text.empty() || !letters) {
    refuse_model(fmt::format("must have pieces of UTF-8 text, got {}", quoted(piece.text)));
  }
  if (letters->size() > kLongestPiece) {
    refuse_model(fmt::format("must have pieces of at most {} characters, got one of {}",
                             kLongestPiece, letters->size()));
  }
  for (const char32_t c : *letters) {
    if (is_space(c)) {
      refuse_model(fmt::format("must have pieces without white space, got {}", quoted(piece.text)));
    }
  }
  if (!(std::abs(piece.score) <= kLargestScore)) {
    refuse_model(fmt::format("must have scores from {0} to {1}, got {2} of {3}", -kLargestScore,
                             kLargestScore, piece.score, quoted(piece.text)));
  }
  if (!seen.insert(piece.text).second) {
    refuse_model(fmt::format("must have pieces that differ, got {} twice", quoted(piece.text)));
  }
}

}  // namespace

std::string byte_piece(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

std::string bytes_of(const SubwordModel& model) {
  std::string bytes;
  const Vocabulary specials;
  for (std::int32_t id = 0; id < Vocabulary::kSpecials; ++id) {
    const bool is_unknown = id == Vocabulary::kUnknown;
    put_piece(bytes, specials.token(id), 0, is_unknown ? PieceType::kUnknown : PieceType::kControl);
  }
  for (int byte = 0; byte < kByteCount; ++byte) {
    put_piece(bytes, byte_piece(static_cast<unsigned char>(byte)), 0, PieceType::kByte);
  }
  for (const LearnedPiece& piece : model.pieces) {
    put_piece(bytes, piece.text, piece.score, PieceType::kNormal);
  }
  const std::size_t size = Vocabulary::kSpecials + kByteCount + model.pieces.size();
  put_bytes(bytes, kTrainer, trainer_spec(model.algorithm, size));
  put_bytes(bytes, kNormalizer, normalizer_spec());
  return bytes;
}

SubwordModel parse_subword_model(std::string_view bytes) {
  SubwordModel model;
  std::unordered_set<std::string> seen;
  Taker taker(bytes);
  int given = 0;
  for (; taker.tag(kPieces, Wire::kBytes); ++given) {
    Taker after_size = taker;
    const std::uint64_t size = after_size.varint().value_or(1);
    if (size > after_size.left()) {
      if (size > kLongestMessage) refuse_other();
      refuse_truncated(bytes.size() - after_size.left() + size, bytes.size());
    }
    const auto message = taker.bytes();
    if (!message) refuse_other();
    LearnedPiece piece = piece_from(*message);
    const bool is_learned = given >= Vocabulary::kSpecials + kByteCount;
    if (!is_learned) piece.score = 0;  // the comparison below checks the score
    check_piece(piece, seen);
    if (is_learned) model.pieces.push_back(std::move(piece));
  }
  if (given >= Vocabulary::kSpecials + kByteCount && model.pieces.empty()) {
    refuse_model("must have learned pieces, got none");
  }
  // The types of the pieces and all other parts must equal those that bytes_of() writes for the
  // learned pieces, so that no part that was not parsed here reaches SentencePiece.
  for (const SubwordAlgorithm algorithm : {SubwordAlgorithm::kUnigram, SubwordAlgorithm::kBpe}) {
    model.algorithm = algorithm;
    const std::string whole = bytes_of(model);
    if (whole == bytes) return model;
    if (given > 0 && whole.starts_with(bytes)) refuse_truncated(whole.size(), bytes.size());
  }
  refuse_other();
}

}  // namespace qkv::app
