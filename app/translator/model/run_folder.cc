// SPDX-License-Identifier: Apache-2.0
#include "translator/model/run_folder.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include <qkv/app/file_error.h>

namespace qkv::app {

void check_is_run(const std::string& folder) {
  std::error_code error;  // not reported here: opening a file will say why the folder is unreadable
  if (!std::filesystem::exists(std::filesystem::path(folder) / kConfigFile, error) && !error) {
    throw InputError(folder, fmt::format("expected the folder of a run, got one without {}; qkv "
                                         "train DATA -o FOLDER makes one",
                                         kConfigFile));
  }
}

std::string model_path(const std::string& folder, const char* name) {
  check_is_run(folder);
  const std::filesystem::path path(folder);
  std::error_code error;
  if (!std::filesystem::exists(path / name, error) && !error) {
    const bool wants_best = std::string_view(name) == kBestFile;
    if (!std::filesystem::exists(path / (wants_best ? kModelFile : kBestFile), error)) {
      throw InputError(folder, fmt::format("this run has no model yet: {} is missing", name));
    }
    throw InputError(folder, fmt::format("{} is missing: qkv train {} writes it again; --model {} "
                                         "uses {}, which is there",
                                         name, folder, wants_best ? "last" : "best",
                                         wants_best ? kModelFile : kBestFile));
  }
  return (path / name).string();
}

}  // namespace qkv::app
