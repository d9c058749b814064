// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_VIEW_INSPECT_H_
#define QKV_COMMANDS_VIEW_INSPECT_H_

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <qkv/app/array_file.h>
#include <qkv/app/attention_file.h>

// The report of `qkv inspect` about one file, as text and JSON.
struct Inspection {
  std::string text{};
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
};

// Inspects an array file. `format` is "npy", "npz" or "safetensors"; `options` say how its array
// `attn` is read if it is an attention file. Like all functions here, throws InputError.
Inspection inspect_arrays(const std::string& path, std::string_view format,
                          const qkv::app::AttentionFileOptions& options);
// Inspect a file of word vectors, of text in columns, of numbers or of any UTF-8 text. Every line
// or record is read.
Inspection inspect_vectors(const std::string& path);
Inspection inspect_columns(const std::string& path);
Inspection inspect_numbers(const std::string& path);
Inspection inspect_text(const std::string& path);

#endif  // QKV_COMMANDS_VIEW_INSPECT_H_
