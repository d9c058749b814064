// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_SUBWORD_MODEL_H_
#define QKV_TEXT_SUBWORD_MODEL_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/subwords.h>

// The bytes of SentencePiece's model files: the protocol buffer ModelProto of its
// sentencepiece_model.proto. qkv's files hold only pieces and fixed settings, and none of the parts
// that SentencePiece would accept without a check, such as normalisation tables.
namespace qkv::app {

struct LearnedPiece {
  std::string text{};
  float score = 0;  // log-probability (unigram), or a value that falls with each merge (BPE)
};

struct SubwordModel {
  SubwordAlgorithm algorithm = SubwordAlgorithm::kUnigram;
  std::vector<LearnedPiece> pieces{};  // by id; the first id follows special tokens and bytes
};

// The text of the piece that stands for a byte: "<0xC3>".
std::string byte_piece(unsigned char byte);

// The bytes of a model file.
std::string bytes_of(const SubwordModel& model);
// Parses the bytes of a model file. Throws Error ("Subwords", "bytes") for bytes that bytes_of()
// does not write, and for pieces that are empty, too long, not UTF-8 or given twice, contain white
// space, or have a non-finite or huge score.
SubwordModel parse_subword_model(std::string_view bytes);

}  // namespace qkv::app

#endif  // QKV_TEXT_SUBWORD_MODEL_H_
