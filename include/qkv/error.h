// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ERROR_H_
#define QKV_ERROR_H_

#include <stdexcept>
#include <string>
#include <string_view>

#include <qkv/export.h>

namespace qkv {

// The kind of rule that a call broke. Python raises TypeError for kType and ValueError for kValue.
enum class ErrorKind { kValue, kType };

// The library's exception: an invalid call, detected before any output is touched. `what()` reads
// "function: argument rule, value", for example
//   attention: k has D = 64 but q has D = 32 (q [2,8,5,32], k [2,8,7,64])
class QKV_API Error : public std::runtime_error {
 public:
  // `function` is the public function called, `argument` the argument at fault ("k"), and
  // `detail` the rest of the sentence: the rule and the value.
  Error(std::string_view function, std::string_view argument, std::string_view detail,
        ErrorKind kind = ErrorKind::kValue);
  ~Error() override;

  const std::string& function() const noexcept { return function_; }
  const std::string& argument() const noexcept { return argument_; }
  ErrorKind kind() const noexcept { return kind_; }

 private:
  std::string function_;
  std::string argument_;
  ErrorKind kind_;
};

// Thrown by a call whose stop flag is set before or while it runs. Outputs then hold unspecified
// numbers.
class QKV_API Cancelled : public std::runtime_error {
 public:
  explicit Cancelled(std::string_view function);
  ~Cancelled() override;
};

}  // namespace qkv

#endif  // QKV_ERROR_H_
