// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_VIEW_ATTENTION_INPUT_H_
#define QKV_COMMANDS_VIEW_ATTENTION_INPUT_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/attention_file.h>
#include <qkv/app/attention_stats.h>

#include "commands/shell/command.h"
#include "commands/shell/console.h"
#include "commands/view/index_list.h"

// Shared by the commands that read attention files.

struct AttentionInput {
  std::string spec{};  // FILE[:NAME]
  qkv::app::AttentionFileOptions options{};

  std::string name() const { return input_name(spec); }
};

// Which heads.
struct HeadChoice {
  qkv::Index example = -1;  // -1: not given
  IndexList layers{};
  IndexList heads{};
};

// --example, --layers and --heads; `examples` describes the default in the help.
void add_head_choice(const Command& command, HeadChoice& choice, std::string_view examples);

// Throws UsageError if the file does not have it.
void check_example(const qkv::app::AttentionFile& file, const HeadChoice& choice);

// --order.
void add_order(const Command& command, qkv::app::AttentionFileOptions& options);

// FILE[:NAME] and --order.
void add_attention_input(const Command& command, AttentionInput& input);

qkv::app::AttentionFile read(const AttentionInput& input);

bool has_axis(const qkv::app::AttentionFile& file, qkv::app::LeadingAxis axis);

// "layer 0, head 3", for the axes that the file has; "" for a single map.
std::string place_of(const qkv::app::AttentionFile& file, const qkv::app::HeadStatistics& head);

// The reports' warnings, "head 0: masked pairs receive weight ...": for each fault the first
// `most` heads, then how many more; `where` says what lists them all. A whole model's file would
// repeat the same warning a hundred times.
std::vector<std::string> fault_lines(const qkv::app::AttentionFile& file,
                                     std::span<const qkv::app::HeadReport> heads, int most,
                                     std::string_view where);

// "examples, layers, heads, queries, keys", as the file was read.
std::string axes_of(const qkv::app::AttentionFile& file);

#endif  // QKV_COMMANDS_VIEW_ATTENTION_INPUT_H_
