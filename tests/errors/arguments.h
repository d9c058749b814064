// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ERRORS_ARGUMENTS_H_
#define QKV_TESTS_ERRORS_ARGUMENTS_H_

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <qkv/tensor.h>

#include "tests/errors/table.h"

namespace qkv::test {

// An array in the table's notation: DTYPE[SIZES]/[STRIDES]@PLACE{VALUES}.
struct ArrayText {
  DType dtype = DType::kNone;
  Dims shape;
  Dims strides;       // C order unless written
  std::string place;  // "", or the array whose memory it lies in; "null" or "odd" for parts()
  Index shift = 0;    // elements from the first of that array
  std::vector<std::string> values;
};
ArrayText parse_array(std::string_view text);

// The bytes of the arrays of a call, by name; empty for an array that lies in another's memory.
using Memory = std::map<std::string, std::vector<std::byte>>;

// The call of a row, "function name=value name=value ...", and the memory of its arrays. Members
// throw TableError for text that does not follow the head of the table.
class Arguments {
 public:
  explicit Arguments(std::string_view call);

  const std::string& function() const { return function_; }
  // Returns names and values in the order of the call.
  const std::vector<std::pair<std::string, std::string>>& all() const { return all_; }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  // Return the value of an argument; for an absent one "" or the fallback. dims() throws instead.
  std::string word(std::string_view name);
  double number(std::string_view name, double fallback);
  Index whole(std::string_view name, Index fallback);
  Dims dims(std::string_view name);

  // Return an array in memory of its own or at its PLACE; it is absent if the call lacks the
  // argument. Without VALUES, reals and bools of an input are 1 and integers 0, and an output is
  // filled with a pattern that no call writes.
  ConstView input(std::string_view name);
  View output(std::string_view name);
  // Returns the pointer and layout for a View that is not read, so that the array may be huge:
  // null, a misaligned pointer ("odd"), or an aligned one to memory without elements.
  std::pair<void*, ArrayText> parts(std::string_view name);

  // Throws TableError if the call has an argument that no member has returned.
  void expect_all_used() const;
  // Returns copies of the bytes of all arrays.
  Memory memory() const;

 private:
  enum class Use { kInput, kOutput };
  struct Placed {
    Tensor owned;  // absent if in another array's memory
    void* first = nullptr;
  };

  const std::string* find(std::string_view name) const;
  const std::string* use(std::string_view name);
  View array(std::string_view name, Use how);
  void* place(const std::string& name, const ArrayText& text, Use how);

  std::string function_;
  std::vector<std::pair<std::string, std::string>> all_;
  std::vector<std::string> used_;
  std::map<std::string, Placed> placed_;
};

}  // namespace qkv::test

#endif  // QKV_TESTS_ERRORS_ARGUMENTS_H_
