// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRAINING_SETTINGS_H_
#define QKV_TRANSLATOR_TRAINING_TRAINING_SETTINGS_H_

#include <string>

#include "files/settings.h"
#include "translator/training/translation_run.h"

// config.json: the settings that determine a run.
namespace qkv::app {

// A fingerprint of a data file.
struct DataFacts {
  Index pairs = 0;     // used
  Index left_out = 0;  // too long
  std::string hash{};  // of all pairs; "": no file
};

struct RunConfig {
  TrainingOptions options{};  // the model's vocabulary sizes filled in
  DataFacts train{};
  DataFacts valid{};
  std::string subword_hash{};  // of the pieces; "": other tokens
};

Settings settings_of(const RunConfig& config);
// The settings in a file. One that did not exist when the run began has the value that was implied.
Settings read_config(const std::string& path);
// The inverse, for the settings of the file `path`. Throws InputError for a setting that is missing
// or of another kind. Others are left to differences().
RunConfig config_of(const Settings& settings, const std::string& path);

// "--lr: 0.002 -> 0.001; --seed: 0 -> 1" for settings that affect the result, as options of the
// command line where one sets them; "": none. (The data's path may change, its contents may not.)
std::string differences(const Settings& old, const Settings& now);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRAINING_SETTINGS_H_
