// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_APP_FILES_DATA_FILE_H_
#define QKV_TESTS_APP_FILES_DATA_FILE_H_

#include <cstdlib>
#include <string>

namespace qkv::test {

// The path of a file of real data, in $QKV_DATA_DIR or, without it, in shared/data beside the
// checkout. If the file is absent, tests that need it are skipped.
inline std::string data_file(const std::string& name) {
  const char* set = std::getenv("QKV_DATA_DIR");
  return (set != nullptr && *set != '\0' ? set : QKV_SOURCE_DIR "/../shared/data") + ("/" + name);
}

}  // namespace qkv::test

#endif  // QKV_TESTS_APP_FILES_DATA_FILE_H_
