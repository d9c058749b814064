// SPDX-License-Identifier: Apache-2.0
#include "translator/model/run_folder.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include <qkv/app/file_error.h>

namespace qkv::app {

std::string model_path(const std::string& folder, const char* name) {
  const std::filesystem::path path(folder);
  std::error_code error;  // opening the model reports why a folder cannot be read
  if (!std::filesystem::exists(path / kConfigFile, error) && !error) {
    throw InputError(folder, fmt::format("expected the folder of a run, got one without {}; qkv "
                                         "train DATA -o FOLDER makes one",
                                         kConfigFile));
  }
  if (!std::filesystem::exists(path / name, error) && !error) {
    throw InputError(folder, fmt::format("this run has no model yet: {} is missing", name));
  }
  return (path / name).string();
}

}  // namespace qkv::app
