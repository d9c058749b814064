// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRAINING_SETTINGS_H_
#define QKV_TRANSLATOR_TRAINING_TRAINING_SETTINGS_H_

#include <string>

#include "files/settings.h"
#include "translator/training/translation_run.h"

// The file config.json: the settings that determine a run.
namespace qkv::app {

// A fingerprint of a data file.
struct DataFacts {
  Index pairs = 0;     // sentence pairs that are used
  Index left_out = 0;  // sentence pairs that are too long
  std::string hash{};  // of all sentence pairs; empty without a file
};

// All settings of a run: those of the user and those derived from the data.
struct RunConfig {
  TrainingOptions options{};  // with the vocabulary sizes of the data
  DataFacts train{};
  DataFacts valid{};
  std::string subword_hash{};  // of the subword model; empty for other tokens
};

// The settings of a run as they are written to config.json.
Settings settings_of(const RunConfig& config);
// Reads the settings of a file. A setting that did not exist when the run began has its implied
// value.
Settings read_config(const std::string& path);
// The configuration with the settings of the file `path`. Throws InputError for a setting that is
// missing, malformed or out of range. Unknown settings are ignored; differences() reports them.
RunConfig config_of(const Settings& settings, const std::string& path);

// The differences in settings that affect the result: "--lr: 0.002 -> 0.001; --seed: 0 -> 1". A
// setting is named after the option that sets it, if there is one. Empty if there are no
// differences. The path of the data may change, but the contents may not.
std::string differences(const Settings& old, const Settings& now);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRAINING_SETTINGS_H_
