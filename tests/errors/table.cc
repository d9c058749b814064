// SPDX-License-Identifier: Apache-2.0
#include "tests/errors/table.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <initializer_list>
#include <set>
#include <string_view>

#include "kernels/target.h"
#include "tests/errors/arguments.h"
#include "tests/errors/calls.h"

namespace qkv::test {
namespace {

std::string at_line(int line, std::string_view text) {
  return "errors.tsv:" + std::to_string(line) + ": " + std::string(text);
}

std::vector<std::string> columns_of(const std::string& line) {
  std::vector<std::string> columns(1);
  for (const char c : line) {
    if (c == '\t') {
      columns.emplace_back();
    } else {
      columns.back() += c;
    }
  }
  return columns;
}

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  });
}

#define QKV_NAME(with, enumerator, name, highway) , name
std::string joined(std::initializer_list<std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

// Replaces the targets of x86-64, which messages of the table list, by those of this build.
std::string with_own_targets(std::string message) {
  static const std::string kX86 = joined({"" QKV_FOR_EACH_X86_TARGET(QKV_NAME, )});
  static const std::string kOwn = joined({"" QKV_FOR_EACH_TARGET(QKV_NAME, )});
  const std::size_t at = message.find(kX86);
  return at == std::string::npos ? message : message.replace(at, kX86.size(), kOwn);
}
#undef QKV_NAME

Row row_of(const std::string& text, int line) {
  const std::vector<std::string> columns = columns_of(text);
  if (columns.size() != 4) {
    throw TableError(at_line(
        line, "must have 4 columns with tabs between them, got " + std::to_string(columns.size())));
  }
  for (const std::string& column : columns) {
    if (column.empty()) throw TableError(at_line(line, "has an empty column"));
  }
  if (!is_name(columns[0])) {
    throw TableError(at_line(line, "id must be of letters, digits and _, got " + columns[0]));
  }
  if (columns[2] != "value" && columns[2] != "type") {
    throw TableError(at_line(line, "kind must be value or type, got " + columns[2]));
  }
  const ErrorKind kind = columns[2] == "type" ? ErrorKind::kType : ErrorKind::kValue;
  return {line, columns[0], columns[1], kind, with_own_targets(columns[3])};
}

// Returns the kind and text of an Error, or what else was thrown.
std::string message_of(const std::exception_ptr& thrown) {
  if (thrown == nullptr) return "nothing";
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return std::string(error.kind() == ErrorKind::kType ? "type" : "value") + " \"" + error.what() +
           "\"";
  } catch (const std::exception& error) {
    return "an exception that is no qkv::Error, \"" + std::string(error.what()) + "\"";
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

std::vector<Row> read_table(std::istream& in) {
  std::vector<Row> rows;
  std::set<std::string> ids;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    rows.push_back(row_of(line, number));
    if (!ids.insert(rows.back().id).second) {
      throw TableError(at_line(number, "the id " + rows.back().id + " stands twice"));
    }
  }
  return rows;
}

std::string check(const Row& row) { return check(row, prepare); }

std::string check(const Row& row, Call (*prepare)(Arguments& arguments)) try {
  Arguments arguments(row.call);
  const Call call = prepare(arguments);
  arguments.expect_all_used();
  const Memory before = arguments.memory();
  std::exception_ptr thrown;
  try {
    call();
  } catch (...) {
    thrown = std::current_exception();
  }
  std::string faults;
  const std::string wanted =
      std::string(row.kind == ErrorKind::kType ? "type" : "value") + " \"" + row.message + "\"";
  const std::string came = message_of(thrown);
  if (came != wanted) faults = "wanted " + wanted + "\n   got " + came;
  for (const auto& [name, bytes] : arguments.memory()) {
    if (bytes == before.at(name)) continue;
    faults += (faults.empty() ? "" : "\n") + ("the call wrote to " + name);
  }
  return faults;
} catch (const TableError& error) {
  throw TableError(at_line(row.line, error.what()));
}

}  // namespace qkv::test
