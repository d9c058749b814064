// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRAINING_CURVE_H_
#define QKV_TRANSLATOR_TRAINING_TRAINING_CURVE_H_

#include <optional>
#include <string>
#include <vector>

#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

// A line of train.jsonl. What is not in it is absent; NaN stands for what is not finite.
struct CurvePoint {
  Index update = 0;
  std::optional<double> epochs{};  // with the part of the one that has begun, once one is complete
  double seconds = 0;              // of all runs in the folder
  std::optional<double> loss{};    // of training, since the point before
  std::optional<double> valid_loss{};
  std::optional<double> bleu{};
  bool is_best = false;  // of the validations so far; its parameters were kept
};

// The train.jsonl of `path`, which is the folder or that file.
QKV_API std::string training_log_of(const std::string& path);

// What happened in a run: the lines of training_log_of(path). Of a line
// where a run ended, only the validation is there, unless there are no other lines: its loss is
// that of a few updates, which the next line has again. Nor is it
// the best once the run went on, which it does without that validation. A point for each line, in
// their order. Throws InputError for a file that is
// missing or empty, and with the line for one that training does not write.
QKV_API std::vector<CurvePoint> read_training_curve(const std::string& path);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRAINING_CURVE_H_
