// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_SENTENCES_H_
#define QKV_TEXT_SENTENCES_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <qkv/export.h>

namespace qkv::app {

// What two texts share that are the same but for the kind and width of white space and for the
// kind of quotation marks, which models read alike: one blank between words, none at the ends,
// quotation marks as typed; empty for what is_blank(). Two texts are called the same if this is
// equal: letters, case and punctuation count. Throws Error (argument "text") for invalid UTF-8.
QKV_API std::string folded_text(std::string_view text);

// A sentence to translate and what people made of it.
struct Sentence {
  std::string source{};
  std::vector<std::string> references{};  // at least one; as given, also if the same
};

// Pairs with the same source are one sentence with several references.
class QKV_API Sentences {
 public:
  // Returns the sentence's place in all().
  std::size_t add(std::string_view source, std::string_view reference);
  // The place that add() would return; all().size() for a new sentence.
  std::size_t find(std::string_view source) const;
  // In the order of their first pairs.
  const std::vector<Sentence>& all() const { return all_; }

 private:
  std::unordered_map<std::string, std::size_t> places_{};  // by folded source
  std::vector<Sentence> all_{};
};

}  // namespace qkv::app

#endif  // QKV_TEXT_SENTENCES_H_
