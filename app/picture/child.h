// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_CHILD_H_
#define QKV_PICTURE_CHILD_H_

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::app::picture {

struct ChildResult {
  bool found = true;  // false if PATH has no such program
  int status = 0;     // the exit code, or 128 + the number of the signal that ended the program
  std::string output{};
  std::string errors{};
};

// Runs a program found in PATH until it ends, with `input` on standard input. `stop`, if given, is
// polled many times a second; throws Cancelled once it is true, and std::system_error if the
// operating system fails. In every case, no process or file descriptor is left behind, and SIGPIPE
// is not raised; if the program is stopped, its children are stopped, too.
ChildResult run_child(const std::string& program, const std::vector<std::string>& arguments,
                      std::string_view input, const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_CHILD_H_
