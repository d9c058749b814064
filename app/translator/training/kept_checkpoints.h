// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_KEPT_CHECKPOINTS_H_
#define QKV_TRANSLATOR_TRAINING_KEPT_CHECKPOINTS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/view.h>

#include "files/locked_folder.h"

// The parameters at some updates of a run, kept in its folder as model files
// "checkpoint-1500.safetensors", which `qkv average` averages.
//
// One is written at its update, when its parameters are there; those that are too many are removed
// after a save. So a process killed in between leaves none too few of those before the last
// save, and some after it, which a resumed run removes: it writes the same again, or, where a
// clock decides, others.
namespace qkv::app {

std::string checkpoint_name(Index update);

// The update of a checkpoint's file name; none for another name.
std::optional<Index> checkpoint_update(std::string_view name);

// Those in a folder, in the order of updates. Throws InputError if it cannot be listed.
std::vector<std::string> checkpoint_paths(const std::string& folder);

// Removes all but the last `most`. Throws OutputError, as below.
void keep_last_checkpoints(const LockedFolder& folder, Index most);
// Removes those of later updates, and what a killed process left of any.
void remove_checkpoints_after(const LockedFolder& folder, Index update);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_KEPT_CHECKPOINTS_H_
