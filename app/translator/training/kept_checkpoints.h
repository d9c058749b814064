// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_KEPT_CHECKPOINTS_H_
#define QKV_TRANSLATOR_TRAINING_KEPT_CHECKPOINTS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/view.h>

#include "files/locked_folder.h"

// Checkpoints: the parameters at some updates of a run, in its folder as model files
// "checkpoint-1500.safetensors", which `qkv average` averages.
//
// A checkpoint is written at its update. The next save removes the oldest checkpoints beyond the
// number to keep, so that a killed process leaves all checkpoints that the last save left. It may
// also leave checkpoints of updates after that save: a resumed run removes them and writes them
// again, at the same updates unless validations are due by time.
namespace qkv::app {

std::string checkpoint_name(Index update);

// The update in a checkpoint's file name; empty for any other name.
std::optional<Index> checkpoint_update(std::string_view name);

// The paths of a folder's checkpoints, in the order of updates. Throws InputError if the folder
// cannot be listed.
std::vector<std::string> checkpoint_paths(const std::string& folder);

// Removes all checkpoints but the last `most`. Throws OutputError.
void keep_last_checkpoints(const LockedFolder& folder, Index most);
// Removes the checkpoints of updates after `update`, and temporary files of checkpoints that a
// killed process left. Throws OutputError.
void remove_checkpoints_after(const LockedFolder& folder, Index update);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_KEPT_CHECKPOINTS_H_
