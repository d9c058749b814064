// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_WORD_VECTORS_H_
#define QKV_APP_WORD_VECTORS_H_

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <qkv/app/file_error.h>
#include <qkv/export.h>
#include <qkv/tensor.h>

namespace qkv::app {

// A word to look up: its spellings, best first ({"The", "the"}). At least one.
using Spellings = std::vector<std::string>;

struct WordVectorOptions {
  Index width = 0;  // numbers per line; 0: from the header, else from the first line
  int near = 5;     // near spellings of a word without a vector (for the first 1,000 words)
  const std::atomic<bool>* stop = nullptr;  // polled; if set, Cancelled is thrown
  // Called at most once per MiB with bytes read and bytes in total, or -1 if unknown. Starts
  // over if the file is read twice.
  std::function<void(Index bytes_read, Index bytes_total)> progress{};
};

struct WordVector {
  Index row = -1;                   // in WordVectors::vectors; -1: the file has no such word
  std::string spelling{};           // the one that was found
  std::vector<std::string> near{};  // of a word not found, the nearest first
};

struct WordVectors {
  Tensor vectors{};                 // [rows, width], float32
  std::vector<WordVector> words{};  // one for each requested word, in that order
};

// Reads word vectors from a file ("-": standard input) in one of two forms, detected by content.
// Text: on each line a word and its numbers, separated by blanks or tabs (GloVe, fastText's .vec,
// word2vec's text). The first line may be "count width". A word may contain blanks: the last
// `width` fields are the numbers, and a width taken from the first line or given is checked on the
// next 100. UTF-8, with or without a byte order mark; lines may end in CR LF. word2vec's binary
// form: a line "count width", then for each word its bytes, a blank, `width` float32 little endian,
// perhaps a newline. The file is read in blocks, and a second time only for near spellings of
// missing words (a pipe is read once: they are searched for during reading, which is slower). In
// text, beyond the first lines only those of requested words are parsed. Memory grows with the
// words found, and reading stops when all are. If a word occurs several times, the first counts.
// Throws InputError (with the line or byte) for a file that is missing or malformed.
QKV_API WordVectors read_word_vectors(const std::string& path, std::span<const Spellings> words,
                                      const WordVectorOptions& options = {});

enum class VectorFormat { kText, kTextWithHeader, kBinary };

// Summary of a whole file of word vectors.
struct VectorFileSummary {
  VectorFormat format = VectorFormat::kText;
  Index count = 0;  // words
  Index width = 0;  // numbers of each
  Index words_with_blanks = 0;
  Index words_not_utf8 = 0;
  std::optional<Index> repeated{};         // words that occurred before; none beyond 2^21 words
  std::vector<std::string> first_words{};  // at most 10
  float smallest = 0;                      // of all numbers
  float largest = 0;
};

// Reads and parses every line or record; `near` is not used. Throws InputError as
// read_word_vectors() does, and if a header's count is not the number of words.
QKV_API VectorFileSummary check_word_vectors(const std::string& path,
                                             const WordVectorOptions& options = {});

}  // namespace qkv::app

#endif  // QKV_APP_WORD_VECTORS_H_
