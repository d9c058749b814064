// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ERRORS_TABLE_H_
#define QKV_TESTS_ERRORS_TABLE_H_

#include <istream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/error.h>

// tests/errors.tsv: wrong calls and what they answer. Its head describes the columns and the
// language of the calls.
namespace qkv::test {

// The table itself is at fault. The reader of the table puts the line in front.
struct TableError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Row {
  int line = 0;
  std::string id;
  std::string call;
  ErrorKind kind = ErrorKind::kValue;
  std::string message;
};

// Throws TableError "errors.tsv:LINE: ..." for a row that does not have four filled columns, a kind
// that is none, an id that is no name (letters, digits, _) or stands twice.
std::vector<Row> read_table(std::istream& in);

// Makes the call of a row. Returns what was wrong with its answer: "" when it threw the Error of
// this kind and message and left all memory as it was. Throws TableError "errors.tsv:LINE: ..."
// when the call cannot be made.
std::string check(const Row& row);

}  // namespace qkv::test

#endif  // QKV_TESTS_ERRORS_TABLE_H_
