// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_ATTENTION_INPUT_H_
#define QKV_TOOLS_ATTENTION_INPUT_H_

#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include <qkv/app/attention_file.h>
#include <qkv/app/attention_stats.h>

// What the commands that read attention files share.

struct AttentionInput {
  std::string file{};
  qkv::app::AttentionFileOptions options{};

  std::string name() const { return file == "-" ? "<stdin>" : file; }
};

// --order.
void add_order(CLI::App& command, qkv::app::AttentionFileOptions& options);

// FILE and --order.
void add_attention_input(CLI::App& command, AttentionInput& input);

qkv::app::AttentionFile read(const AttentionInput& input);

bool has_axis(const qkv::app::AttentionFile& file, qkv::app::LeadingAxis axis);

// "layer 0, head 3", of the axes that the file has; "" when it is one map.
std::string place_of(const qkv::app::AttentionFile& file, const qkv::app::HeadStatistics& head);

// "examples, layers, heads, queries, keys", as the file was read.
std::string axes_of(const qkv::app::AttentionFile& file);

#endif  // QKV_TOOLS_ATTENTION_INPUT_H_
