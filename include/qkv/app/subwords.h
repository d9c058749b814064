// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_SUBWORDS_H_
#define QKV_APP_SUBWORDS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/vocabulary.h>
#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

// How pieces of words are found.
enum class SubwordAlgorithm {
  kUnigram,  // the likeliest pieces of a unigram model: Kudo 2018, section 3.2
  kBpe,      // the most frequent pairs are merged, over and over: Sennrich et al. 2016, section 3.2
};

// Pieces of words, learned from text by SentencePiece (Kudo and Richardson 2018), which is kept as
// one of its model files. Every text has pieces: a character that is in none of them is written as
// the bytes of its UTF-8, which are pieces too ("<0xC3>"). Immutable; copies share it, and threads
// may use it together.
class QKV_API Subwords {
 public:
  // Throws Error for bytes that are not those of such a model: learned pieces after the four
  // special tokens of Vocabulary and 256 bytes, and nothing else that SentencePiece could do.
  explicit Subwords(std::string_view bytes);

  // A model file of SentencePiece's: `spm_encode --model` reads it.
  const std::string& bytes() const noexcept;
  // All pieces by their ids, which are SentencePiece's.
  Vocabulary vocabulary() const;

  // The pieces of UTF-8 text, "▁" where there is a blank. White space, control characters, U+FEFF
  // and "▁" are read as one blank, at either end as nothing. No pieces for text that has nothing
  // else but characters without a width, such as U+200B.
  std::vector<std::string> split(std::string_view text) const;
  // The text of the pieces. Bytes that are not UTF-8 together become U+FFFD.
  std::string join(std::span<const std::string> pieces) const;

 private:
  struct Model;
  std::shared_ptr<const Model> model_;
};

struct SubwordOptions {
  Index vocabulary = 8000;  // pieces, with the four special tokens and the 256 bytes
  SubwordAlgorithm algorithm = SubwordAlgorithm::kUnigram;
};

// Learns pieces from the texts that next() returns, up to an empty result; of more than 2^30 bytes,
// from the first ones. The same texts and options give the same pieces with the same version of
// SentencePiece; another version may find others. Characters that are together rarer than 1 in
// 2,000 are left to the bytes. Throws Error for fewer pieces than the characters need and more than
// the text has, with the limit, and for text that is not UTF-8; Cancelled if `stop`, which may be
// null, is set when all texts are read, or when the pieces are found.
QKV_API Subwords train_subwords(const std::function<std::optional<std::string>()>& next,
                                const SubwordOptions& options = {},
                                const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app

#endif  // QKV_APP_SUBWORDS_H_
