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
  // Epochs so far, with the fraction of the current one; empty if no line ends an epoch.
  std::optional<double> epochs{};
  double seconds = 0;            // of all runs in the folder together
  std::optional<double> loss{};  // mean training loss since the last line without `end`
  std::optional<double> valid_loss{};
  std::optional<double> bleu{};
  bool is_best = false;  // true for the best validation so far, whose parameters were saved
  bool is_end = false;   // true where a run ended
  // False for a validation at the end of a run that was resumed: resuming discards it.
  bool counts = true;
};

// The path of train.jsonl, where `path` is that file or its folder.
QKV_API std::string training_log_of(const std::string& path);

// Reads the progress of a run: one point for each line of training_log_of(path), in their order.
// The loss on a line that marks the end of a run is the mean over few updates, which the next line
// includes too: its point has no `loss`, unless the point is the last one and all lines mark ends.
// If the run was resumed, a validation on such a line is not the best and does not count. Throws
// InputError for a file that is missing or empty, and for a line that training cannot write.
QKV_API std::vector<CurvePoint> read_training_curve(const std::string& path);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRAINING_CURVE_H_
