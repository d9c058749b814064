// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRAINING_CURVE_H_
#define QKV_TRANSLATOR_TRAINING_TRAINING_CURVE_H_

#include <optional>
#include <string>
#include <vector>

#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

// A line of train.jsonl. A member that the line lacks is empty; a non-finite number is NaN.
struct CurvePoint {
  Index update = 0;
  // With the fraction of the current epoch; empty if no epoch is complete.
  std::optional<double> epochs{};
  double seconds = 0;            // of all runs in the folder together
  std::optional<double> loss{};  // mean training loss since the line before
  std::optional<double> valid_loss{};
  std::optional<double> bleu{};
  bool is_best = false;  // the best validation so far, whose parameters were kept
};

// The path of train.jsonl, where `path` is that file or its folder.
QKV_API std::string training_log_of(const std::string& path);

// Reads the progress of a run: one point for each line of training_log_of(path), in their order. A
// line that marks the end of one run in the folder keeps only its validation, unless all lines are
// such ends: its loss is the mean over few updates, which the next line includes too. Such a line
// is not the best if the run was resumed, since resuming discards that validation. Throws
// InputError for a file that is missing or empty, and with the line for a line that training does
// not write.
QKV_API std::vector<CurvePoint> read_training_curve(const std::string& path);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRAINING_CURVE_H_
