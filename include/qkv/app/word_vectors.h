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

// The spellings of a word to look up, best first ({"The", "the"}), at least one.
using Spellings = std::vector<std::string>;

struct WordVectorOptions {
  Index width = 0;  // numbers per line; 0: from the header, or the first line if there is none
  // The number of similar spellings to report for a word without a vector, if the word is among the
  // first 1,000 requested ones.
  int near = 5;
  const std::atomic<bool>* stop = nullptr;  // polled; if set, Cancelled is thrown
  // Called about once per MiB with the bytes read and the bytes in total, or -1 if unknown. The
  // count starts again at 0 if the file is read twice.
  std::function<void(Index bytes_read, Index bytes_total)> progress{};
};

struct WordVector {
  Index row = -1;          // row index in WordVectors::vectors; -1: the file has no such word
  std::string spelling{};  // the spelling that was found
  // Similar spellings in the file for a word not found, nearest first.
  std::vector<std::string> near{};
};

struct WordVectors {
  Tensor vectors{};                 // [rows, width], float32
  std::vector<WordVector> words{};  // one for each requested word, in that order
};

// Reads word vectors from a file ("-": standard input) in one of two forms, detected by content.
// The text form has on each line a word and its numbers, separated by blanks or tabs (GloVe,
// fastText's .vec, word2vec's text). Its first line may be "count width". A word may contain
// blanks, because the last `width` fields are the numbers; the width, given or read from the file,
// is checked on the first 100 words. Text is UTF-8, with or without a byte order mark; lines may
// end in CR LF. word2vec's binary form has a line "count width", then for each word its bytes, a
// blank, `width` little-endian float32 numbers and an optional newline.
//
// The file is read in blocks, and a second time only for similar spellings of missing words (a pipe
// is read once: they are searched for during reading, which is slower). In text, after the first
// 100 words, only the numbers of requested words are parsed. Memory grows with the words found, and
// reading stops when all are found. If a word occurs several times, its first vector is used.
// Throws InputError (with the line or byte) for a file that is missing or malformed.
QKV_API WordVectors read_word_vectors(const std::string& path, std::span<const Spellings> words,
                                      const WordVectorOptions& options = {});

// Different words with their vectors, in the order of a file.
struct WordTable {
  std::vector<std::string> words{};
  Tensor vectors{};  // [words, width], float32
};

// Reads all words of a file, or the first `most_words` different ones; at least 1. If a word occurs
// several times, its first vector is used. The option `near` has no effect. Throws InputError as
// read_word_vectors() does; without `most_words`, also if a header's count is not the number of
// words.
QKV_API WordTable read_all_word_vectors(const std::string& path,
                                        std::optional<Index> most_words = std::nullopt,
                                        const WordVectorOptions& options = {});

enum class VectorFormat { kText, kTextWithHeader, kBinary };

// Summary of a whole file of word vectors.
struct VectorFileSummary {
  VectorFormat format = VectorFormat::kText;
  Index count = 0;  // number of words
  Index width = 0;  // numbers per word
  Index words_with_blanks = 0;
  Index words_not_utf8 = 0;
  // Number of words that also occurred earlier; empty if there are more than 2^21 distinct words.
  std::optional<Index> repeated{};
  std::vector<std::string> first_words{};  // at most 10
  float smallest = 0;                      // the smallest and largest of all numbers
  float largest = 0;
};

// Reads and parses every line or record; the option `near` has no effect. Throws InputError as
// read_word_vectors() does, and if a header's count is not the number of words.
QKV_API VectorFileSummary check_word_vectors(const std::string& path,
                                             const WordVectorOptions& options = {});

}  // namespace qkv::app

#endif  // QKV_APP_WORD_VECTORS_H_
