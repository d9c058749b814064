// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_WORD_VECTORS_H_
#define QKV_APP_WORD_VECTORS_H_

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include <qkv/app/file_error.h>
#include <qkv/export.h>
#include <qkv/tensor.h>

namespace qkv::app {

// A word to look up: its spellings, the best first ({"The", "the"}). At least one.
using Spellings = std::vector<std::string>;

struct WordVectorOptions {
  Index width = 0;  // numbers of a line; 0: from the header, else from the first line
  int near = 5;     // near spellings of a word without a vector (of the first 1,000 asked for)
  const std::atomic<bool>* stop = nullptr;  // read now and then; when true Cancelled is thrown
};

struct WordVector {
  Index row = -1;                   // in WordVectors::vectors; -1: the file has no such word
  std::string spelling{};           // the one that was found
  std::vector<std::string> near{};  // of a word not found, the nearest first
};

struct WordVectors {
  Tensor vectors{};                 // [rows, width], float32
  std::vector<WordVector> words{};  // one for each word asked for, in that order
};

// Reads word vectors from a text file ("-": standard input): one word a line, then its numbers,
// between blanks or tabs (GloVe, fastText's .vec, word2vec's text). The first line may be
// "count width". A word may hold blanks: the last `width` fields are the numbers, and a width
// taken from the first line or given is checked on the next 100. The file is read once, in blocks;
// beyond the first lines only those of wanted words are parsed, memory follows the words found,
// and reading stops when all are. Where a word has several lines the first counts. UTF-8, with or
// without a byte order mark; lines may end in CR LF.
// Throws InputError (with the line) for a file that is missing or malformed.
QKV_API WordVectors read_word_vectors(const std::string& path, std::span<const Spellings> words,
                                      const WordVectorOptions& options = {});

}  // namespace qkv::app

#endif  // QKV_APP_WORD_VECTORS_H_
