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

// The algorithm that learns pieces of words and splits text into them.
enum class SubwordAlgorithm {
  kUnigram,  // the likeliest pieces of a unigram model: Kudo 2018, section 3.2
  kBpe,      // merges the most frequent two neighbours again and again: Sennrich et al. 2016,
             // section 3.2
};

// A subword model: pieces of words that SentencePiece (Kudo and Richardson 2018) learned from text,
// in the form of one of its model files. Every text can be split: a character that no piece
// contains is written as the bytes of its UTF-8, which are pieces too ("<0xC3>"). A Subwords object
// is immutable. Copies share the model, and threads may use it together.
class QKV_API Subwords {
 public:
  // Throws Error for bytes that are not a model with learned pieces after the four special tokens
  // of Vocabulary and the 256 byte pieces, and for a model with other features of SentencePiece.
  explicit Subwords(std::string_view bytes);

  // The model as one of SentencePiece's model files, which `spm_encode --model` reads.
  const std::string& bytes() const noexcept;
  // All pieces in the order of their ids, which are also SentencePiece's ids.
  Vocabulary vocabulary() const;

  // The pieces of UTF-8 text, with "▁" for each blank. A run of white space, control characters,
  // U+FEFF and "▁" is read as one blank, and dropped at either end. Text that consists of these and
  // of characters without a width, such as U+200B, has no pieces.
  std::vector<std::string> split(std::string_view text) const;
  // The text of the pieces. Byte pieces that do not form UTF-8 become U+FFFD.
  std::string join(std::span<const std::string> pieces) const;

 private:
  struct Model;
  std::shared_ptr<const Model> model_;
};

struct SubwordOptions {
  Index vocabulary = 8000;  // count of pieces, including the four special tokens and the 256 bytes
  SubwordAlgorithm algorithm = SubwordAlgorithm::kUnigram;
};

// Learns pieces from the texts that next() returns until it returns an empty result, or until it
// has returned more than 2^30 bytes. Equal texts and options give equal pieces with one version of
// SentencePiece; another version may learn others. The rarest characters, together at most 1 in
// 2,000 of the text, get no pieces but are written as bytes. Throws Error, with the limit, if the
// vocabulary is smaller than the characters need or larger than the text yields, and Error for text
// that is not UTF-8. Throws Cancelled if `stop`, which may be null, is set before a call of next()
// or when all pieces are learned.
QKV_API Subwords train_subwords(const std::function<std::optional<std::string>()>& next,
                                const SubwordOptions& options = {},
                                const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app

#endif  // QKV_APP_SUBWORDS_H_
