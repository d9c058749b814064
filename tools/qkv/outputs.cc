// SPDX-License-Identifier: Apache-2.0
#include "outputs.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <qkv/app/text_file.h>
#include <qkv/app/utf8.h>

#include "exit_codes.h"
#include "json_values.h"
#include "picture_bytes.h"

namespace {

// What stands behind an extension. Binary ones are not for terminals.
struct Format {
  std::string_view name;
  bool (*has)(const Results& results);
  void (*write)(const std::string& path, const Results& results);
  bool binary = false;
};

void write_bytes(const std::string& path, const std::string& bytes) {
  if (path == "-") return print(bytes);
  qkv::app::write_text(path, bytes);
}

template <qkv::app::ArrayFormat format>
void write_all(const std::string& path, const Results& results) {
  qkv::app::write_arrays(path, format, results.arrays());
}

void write_one(const std::string& path, const Results& results) {
  const qkv::app::NamedView array{"", results.array()};
  qkv::app::write_arrays(path, qkv::app::ArrayFormat::kNpy, {&array, 1});
}

bool has_arrays(const Results& results) { return results.arrays != nullptr; }
bool has_picture(const Results& results) { return results.picture != nullptr; }

// The list of formats; one without functions is in other builds.
constexpr Format kFormats[] = {
    {"npz", has_arrays, write_all<qkv::app::ArrayFormat::kNpz>, true},
    {"npy", [](const Results& r) { return r.array != nullptr; }, write_one, true},
    {"safetensors", has_arrays, write_all<qkv::app::ArrayFormat::kSafetensors>, true},
    {"svg", has_picture,
     [](const std::string& path, const Results& r) { write_bytes(path, svg_bytes(r.picture())); }},
    {"png", has_picture,
     [](const std::string& path, const Results& r) { write_bytes(path, png_bytes(r.picture())); },
     true},
    {"txt", [](const Results& r) { return r.text != nullptr; },
     [](const std::string& path, const Results& r) { write_bytes(path, r.text()); }},
    {"json", [](const Results& r) { return r.json != nullptr; },
     [](const std::string& path, const Results& r) { write_bytes(path, json_text(r.json())); }},
    {"html", nullptr, nullptr},
};

bool is_built(const Format& format) {
  const std::string path = fmt::format(".{}", format.name);
  return format.write != nullptr &&
         (format.name != "safetensors" || qkv::app::array_format(path).has_value());
}

template <class Wanted>
std::string extensions(Wanted wanted) {
  std::string names;
  for (const Format& format : kFormats) {
    if (wanted(format)) names += fmt::format("{}.{}", names.empty() ? "" : ", ", format.name);
  }
  return names;
}

// "a.npz" as messages name it.
std::string shown(const std::string& path) { return path == "-" ? "-o -" : "-o " + path; }

const Format* find(const OutputOptions& options, const std::string& path) {
  const std::string& told = options.format.empty() ? options.usual : options.format;
  for (const Format& format : kFormats) {
    const bool same =
        path == "-" ? format.name == told : path.ends_with(fmt::format(".{}", format.name));
    if (same) return &format;
  }
  return nullptr;
}

void check_path(const OutputOptions& options, const Results& results, const std::string& path) {
  const std::string valid =
      extensions([&](const Format& format) { return is_built(format) && format.has(results); });
  const Format* format = find(options, path);
  if (format == nullptr) {
    throw UsageError(fmt::format("{}: unknown file extension; valid: {}", shown(path), valid));
  }
  if (!is_built(*format)) {
    throw NotInBuildError(fmt::format("{}: .{} files are not in this build; valid: {}", shown(path),
                                      format->name, valid));
  }
  if (!format->has(results)) {
    throw UsageError(fmt::format("{}: there is no .{} of this result; valid: {}", shown(path),
                                 format->name, valid));
  }
  if (path == "-" && format->binary && ::isatty(STDOUT_FILENO) == 1) {
    throw UsageError(
        fmt::format("-o -: {} is not for terminals; name a file or a pipe", format->name));
  }
}

}  // namespace

void add_outputs(CLI::App& command, OutputOptions& options, const std::string& usual) {
  options.usual = usual;
  command
      .add_option("-o,--output", options.paths,
                  "write the results; the extension is the format, - is standard output "
                  "(repeatable)")
      ->type_name("FILE")
      ->allow_extra_args(false);
  std::string names;
  for (const Format& format : kFormats) {
    if (is_built(format)) names += fmt::format("{}{}", names.empty() ? "" : "|", format.name);
  }
  command
      .add_option_function<std::string>(
          "--format",
          [&options](const std::string& name) {
            options.format = name;
            if (find(options, "-") == nullptr) {
              throw CLI::ValidationError(
                  "--format", fmt::format("unknown name {}; valid: {}", qkv::app::quoted(name),
                                          output_formats()));
            }
          },
          fmt::format("of -o - (default {})", usual))
      ->type_name(names);
  command.add_flag("--json", options.json, "the report as JSON");
}

void check_outputs(const OutputOptions& options, const Results& results) {
  for (auto path = options.paths.begin(); path != options.paths.end(); ++path) {
    if (std::find(options.paths.begin(), path, *path) != path) {
      throw UsageError(shown(*path) + ": named twice");
    }
    check_path(options, results, *path);
  }
  const bool piped = std::ranges::find(options.paths, "-") != options.paths.end();
  if (piped && options.json) throw UsageError("--json and -o - both want standard output");
  if (!piped && !options.format.empty()) throw UsageError("--format goes with -o -");
  if (options.json && !results.json) throw UsageError("--json: there is no JSON of this result");
}

void write_outputs(const OutputOptions& options, const Results& results, const Common&) {
  for (const std::string& path : options.paths) {
    if (path != "-") find(options, path)->write(path, results);
  }
  if (std::ranges::find(options.paths, "-") != options.paths.end()) {
    find(options, "-")->write("-", results);
  } else if (options.json) {
    print(json_text(results.json()));
  } else if (results.brief && !options.paths.empty()) {
    print(results.brief());
  } else if (results.screen) {
    print(results.screen());
  } else if (results.text) {
    print(results.text());
  }
}

std::string output_formats() { return extensions(is_built); }

std::string array_formats() {
  return extensions([](const Format& format) {
    return qkv::app::array_format(fmt::format(".{}", format.name)).has_value();
  });
}
