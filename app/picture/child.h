// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_CHILD_H_
#define QKV_PICTURE_CHILD_H_

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::app::picture {

struct ChildResult {
  bool found = true;  // false: PATH has no such program
  int status = 0;     // its exit code; 128 + the signal that ended it
  std::string output{};
  std::string errors{};
};

// Runs a program from PATH with these arguments and this standard input, to its end; `stop`, if
// given, is polled many times a second. Throws Cancelled once it is true, std::system_error if the
// operating system fails. In all cases, no process (nor its children, if it was
// stopped), file descriptor or SIGPIPE is left behind.
ChildResult run_child(const std::string& program, const std::vector<std::string>& arguments,
                      std::string_view input, const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_CHILD_H_
