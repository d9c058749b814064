// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_SUBWORD_MODEL_H_
#define QKV_TEXT_SUBWORD_MODEL_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/subwords.h>

// The bytes of SentencePiece's model files: the protocol buffer ModelProto of its
// sentencepiece_model.proto. Of all that SentencePiece could be told in it (tables of its own
// normalisation, which it does not check, among them) these have only what is learned.
namespace qkv::app {

struct LearnedPiece {
  std::string text{};
  float score = 0;  // its log-probability (unigram); less with each merge (BPE)
};

struct SubwordModel {
  SubwordAlgorithm algorithm = SubwordAlgorithm::kUnigram;
  std::vector<LearnedPiece> pieces{};  // by id, after the special tokens and the bytes
};

// The name of a byte's piece: "<0xC3>".
std::string byte_piece(unsigned char byte);

std::string bytes_of(const SubwordModel& model);
// Throws Error ("Subwords", "bytes") for anything but what bytes_of() returns, and for pieces that
// are empty, not UTF-8, given twice, or have a blank or a score that is no log-probability.
SubwordModel parse_subword_model(std::string_view bytes);

}  // namespace qkv::app

#endif  // QKV_TEXT_SUBWORD_MODEL_H_
