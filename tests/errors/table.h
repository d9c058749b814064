// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ERRORS_TABLE_H_
#define QKV_TESTS_ERRORS_TABLE_H_

#include <functional>
#include <istream>
#include <stdexcept>
#include <string>
#include <vector>

#include <qkv/error.h>

// tests/errors.tsv: invalid calls and their errors. Its head describes the columns and the language
// of the calls.
namespace qkv::test {

// An error of the table itself. read_table() and check() prepend the line.
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

// Throws TableError "errors.tsv:LINE: ..." for a row without four nonempty columns, with an unknown
// kind, or with an id that is not a name (letters, digits, _) or is not unique.
std::vector<Row> read_table(std::istream& in);

class Arguments;
using Call = std::function<void()>;

// Makes the call of a row, in C++ or as `prepare` returns it. Returns what was wrong, or "" if the
// call threw an Error of the row's kind and message and left all memory unchanged. Throws
// TableError "errors.tsv:LINE: ..." if the call cannot be made.
std::string check(const Row& row);
std::string check(const Row& row, Call (*prepare)(Arguments& arguments));

}  // namespace qkv::test

#endif  // QKV_TESTS_ERRORS_TABLE_H_
