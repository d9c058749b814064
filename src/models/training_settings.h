// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_MODELS_TRAINING_SETTINGS_H_
#define QKV_MODELS_TRAINING_SETTINGS_H_

#include <string>

#include <qkv/app/settings.h>
#include <qkv/app/translation_run.h>

// config.json: what decides a run.
namespace qkv::models {

// What a data file was.
struct DataFacts {
  Index pairs = 0;     // that are used
  Index left_out = 0;  // that are too long
  std::string hash{};  // of all pairs; "": no file
};

struct RunConfig {
  app::TrainingOptions options{};  // the model's vocabulary sizes filled in
  DataFacts train{};
  DataFacts valid{};
};

app::Settings settings_of(const RunConfig& config);

// "learning_rate: 0.002 -> 0.001; seed: 0 -> 1" of those that decide the result; "": none. (Where
// data stand may change, what they are may not.)
std::string differences(const app::Settings& old, const app::Settings& now);

}  // namespace qkv::models

#endif  // QKV_MODELS_TRAINING_SETTINGS_H_
