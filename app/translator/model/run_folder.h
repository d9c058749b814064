// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_MODEL_RUN_FOLDER_H_
#define QKV_TRANSLATOR_MODEL_RUN_FOLDER_H_

#include <string>

// The files of a RUN folder that are needed to read its models. translator/training writes them.
namespace qkv::app {

inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kBestFile = "best.safetensors";

// Throws InputError for a folder that holds no run.
void check_is_run(const std::string& folder);
// The path of a model file (kBestFile or kModelFile) of a RUN folder. Throws InputError for a
// folder that holds no run, and for a run that has not saved that model.
std::string model_path(const std::string& folder, const char* name);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_MODEL_RUN_FOLDER_H_
