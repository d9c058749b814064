// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_APP_FILES_DATA_FILE_H_
#define QKV_TESTS_APP_FILES_DATA_FILE_H_

#include <cstdlib>
#include <string>

namespace qkv::test {

// A file of real data: in $QKV_DATA_DIR, else in ../shared/data beside the checkout. It may be
// absent: tests that need it are skipped then.
inline std::string data_file(const std::string& name) {
  const char* set = std::getenv("QKV_DATA_DIR");
  return (set != nullptr ? set : QKV_SOURCE_DIR "/../shared/data") + ("/" + name);
}

}  // namespace qkv::test

#endif  // QKV_TESTS_APP_FILES_DATA_FILE_H_
