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

// A text in the form by which texts are compared: one blank between words, none at the ends,
// straight quotation marks; empty for a text that is_blank(). Two texts are called the same if
// their folded texts are equal; such texts may differ in white space and in the kind of quotation
// marks, but not in letters, case or punctuation. Throws Error (argument "text") for invalid UTF-8.
QKV_API std::string folded_text(std::string_view text);

// A sentence to translate and its translations by people.
struct Sentence {
  std::string source{};
  std::vector<std::string> references{};  // at least one; as given, repetitions included
};

// Collects sentence pairs: pairs with the same source are one sentence with several references.
class QKV_API Sentences {
 public:
  // Adds a pair and returns the index of its sentence in all().
  std::size_t add(std::string_view source, std::string_view reference);
  // The index that add() would return; all().size() for a new sentence.
  std::size_t find(std::string_view source) const;
  // All sentences, in the order of their first pairs.
  const std::vector<Sentence>& all() const { return all_; }

 private:
  std::unordered_map<std::string, std::size_t> places_{};  // indices in all_ by folded source
  std::vector<Sentence> all_{};
};

}  // namespace qkv::app

#endif  // QKV_TEXT_SENTENCES_H_
