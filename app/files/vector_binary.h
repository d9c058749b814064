// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_VECTOR_BINARY_H_
#define QKV_FILES_VECTOR_BINARY_H_

#include <string_view>
#include <vector>

#include "files/block_reader.h"
#include "files/vector_text.h"

// word2vec's binary word vectors: a line "count width", then for each word its bytes, a blank,
// `width` float32 numbers in little endian, and perhaps a newline.
namespace qkv::files {

// Whether a file has the binary format rather than the text format, judged by the bytes where the
// first word's numbers should be. Only peeks at the file.
bool is_vector_binary(InputFile& file);

class VectorBinary {
 public:
  struct Record {
    std::string_view word{};
    std::string_view numbers{};  // the bytes of the numbers
    Index byte = 0;              // file offset of the numbers
  };

  // The file must outlive the reader. The header must give `width`; 0 accepts any width.
  VectorBinary(InputFile& file, Index width, Progress progress);

  // Gets the next record, valid until the next call. Returns false after the last record, where the
  // file must end.
  bool next(Record& record);
  // Converts the numbers of a record. Throws InputError unless all are finite.
  void parse(const Record& record, std::vector<float>& numbers) const;

  const VectorHeader& header() const noexcept { return header_; }

 private:
  [[noreturn]] void fail(Index byte, std::string_view detail) const;
  void read_header(Index width);
  void expect_end();

  BlockReader blocks_;
  VectorHeader header_{};
  Index given_ = 0;             // records returned so far
  std::size_t to_consume_ = 0;  // bytes of the record returned last
};

}  // namespace qkv::files

#endif  // QKV_FILES_VECTOR_BINARY_H_
