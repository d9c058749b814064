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

// The arguments and reports that the commands which read attention files share.

// The attention file that a command reads, and how.
struct AttentionInput {
  std::string spec{};  // FILE[:NAME], as typed
  qkv::app::AttentionFileOptions options{};

  std::string name() const { return input_name(spec); }
};

// The example, layers and heads that a command is about.
struct HeadChoice {
  qkv::Index example = -1;  // -1: none was given
  IndexList layers{};
  IndexList heads{};
};

// Adds --example, --layers and --heads. `examples` says in the help what --example is by default.
void add_head_choice(const Command& command, HeadChoice& choice, std::string_view examples);

// Throws UsageError if the file does not have the chosen example.
void check_example(const qkv::app::AttentionFile& file, const HeadChoice& choice);

// Adds the option --order, the meaning of the file's leading axes.
void add_order(const Command& command, qkv::app::AttentionFileOptions& options);

// Adds the argument FILE[:NAME] and the option --order.
void add_attention_input(const Command& command, AttentionInput& input);

// Reads the file. Throws InputError, or Cancelled after Ctrl-C.
qkv::app::AttentionFile read(const AttentionInput& input);

// Whether the stored array has this axis; an axis that it lacks has size 1 in AttentionFile::attn.
bool has_axis(const qkv::app::AttentionFile& file, qkv::app::LeadingAxis axis);

// The place of a head along the axes that the file has: "layer 0, head 3"; "" for a single map.
std::string place_of(const qkv::app::AttentionFile& file, const qkv::app::HeadStatistics& head);

// The warnings of the reports, as lines such as "head 0: masked pairs receive weight ...". Each
// fault is listed for the first `most` heads that have it, then with the number of further heads,
// since a whole model may repeat it a hundred times. `where` tells the user what lists all heads.
std::vector<std::string> fault_lines(const qkv::app::AttentionFile& file,
                                     std::span<const qkv::app::HeadReport> heads, int most,
                                     std::string_view where);

// The names of the stored array's axes, as it was read: "layers, heads, queries, keys".
std::string axes_of(const qkv::app::AttentionFile& file);

#endif  // QKV_COMMANDS_VIEW_ATTENTION_INPUT_H_
