// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/outputs.h"

#include <algorithm>
#include <filesystem>
#include <list>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <qkv/app/utf8.h>

#include "commands/shell/console.h"
#include "commands/shell/exit_codes.h"
#include "commands/shell/json_values.h"
#include "commands/shell/picture_bytes.h"
#include "commands/shell/staged_file.h"
#include "files/text_file.h"

namespace {

// An output format. The name is the extension without the dot; exactly one of `bytes` and `write`
// is set.
struct Format {
  std::string_view name;
  bool (*has)(const Results& results);           // whether results can be written in this format
  std::string (*bytes)(const Results& results);  // returns the file's bytes
  void (*write)(const std::string& path, const Results& results);
  bool binary = false;  // not written to terminals
};

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

// All formats, in the order in which messages list them.
constexpr Format kFormats[] = {
    {"npz", has_arrays, nullptr, write_all<qkv::app::ArrayFormat::kNpz>, true},
    {"npy", [](const Results& r) { return r.array != nullptr; }, nullptr, write_one, true},
    {"safetensors", has_arrays, nullptr, write_all<qkv::app::ArrayFormat::kSafetensors>, true},
    {"svg", has_picture, [](const Results& r) { return svg_bytes(r.picture()); }, nullptr},
    {"png", has_picture, [](const Results& r) { return png_bytes(r.picture()); }, nullptr, true},
    {"pdf", has_picture, [](const Results& r) { return pdf_bytes(r.picture()); }, nullptr, true},
    {"html", [](const Results& r) { return r.page != nullptr; },
     [](const Results& r) { return r.page(); }, nullptr},
    {"txt", [](const Results& r) { return r.text != nullptr; },
     [](const Results& r) { return r.text(); }, nullptr},
    {"json", [](const Results& r) { return r.json != nullptr; },
     [](const Results& r) { return json_text(r.json()); }, nullptr},
};

// Results with a placeholder for each of `forms`, for text and for JSON; they only serve to ask
// Format::has().
Results results_in(const Forms& forms) {
  Results results;
  if (forms.arrays) results.arrays = [] { return std::vector<qkv::app::NamedView>(); };
  if (forms.array) results.array = [] { return qkv::app::ArrayView(); };
  if (forms.picture) results.picture = [] { return Figure(); };
  if (forms.page) results.page = [] { return std::string(); };
  results.text = [] { return std::string(); };
  results.json = [] { return nlohmann::ordered_json(); };
  return results;
}

// The names of the formats for which `wanted` is true, each prefixed by `before`, joined by
// `between`.
template <class Wanted>
std::string names_of(Wanted wanted, std::string_view before, std::string_view between) {
  std::string names;
  for (const Format& format : kFormats) {
    if (!wanted(format)) continue;
    names += fmt::format("{}{}{}", names.empty() ? "" : between, before, format.name);
  }
  return names;
}

template <class Wanted>
std::string extensions(Wanted wanted) {
  return names_of(wanted, ".", ", ");
}

// The name of an output in messages, such as "-o a.npz".
std::string output_name(const std::string& path) { return path == "-" ? "-o -" : "-o " + path; }

const Format* find(const OutputOptions& options, const std::string& path) {
  const std::string& format_name = options.format.empty() ? options.usual : options.format;
  for (const Format& format : kFormats) {
    const bool same =
        path == "-" ? format.name == format_name : path.ends_with(fmt::format(".{}", format.name));
    if (same) return &format;
  }
  return nullptr;
}

void check_path(const OutputOptions& options, const Results& results, const std::string& path) {
  const std::string valid = extensions([&](const Format& format) { return format.has(results); });
  const Format* format = find(options, path);
  if (format == nullptr) {
    throw UsageError(
        fmt::format("{}: unknown file extension; valid: {}", output_name(path), valid));
  }
  if (!format->has(results)) {
    const bool drawn = has_arrays(results) && has_picture(results) && format->name == "html";
    throw UsageError(fmt::format("{}: this result has no .{} form; valid: {}{}", output_name(path),
                                 format->name, valid,
                                 drawn ? "; qkv view makes a page of the .npz" : ""));
  }
  if (path == "-" && format->binary && ::isatty(STDOUT_FILENO) == 1) {
    throw UsageError(
        fmt::format("-o -: {} is not for terminals; use a file or a pipe", format->name));
  }
}

bool names_stdout(const OutputOptions& options) {
  return std::ranges::find(options.paths, "-") != options.paths.end();
}

void write(const Format& format, const std::string& path, const Results& results) {
  if (format.write != nullptr) return format.write(path, results);
  qkv::app::write_text(path, format.bytes(results));
}

bool is_picture(const Format& format) { return format.has == has_picture; }

// The path of picture `number` of several: "x-2.svg" for x.svg.
std::string numbered(const std::string& path, std::string_view format, qkv::Index number) {
  const std::string stem = path.substr(0, path.size() - format.size() - 1);
  return fmt::format("{}-{}.{}", stem, number, format);
}

// The report that is printed if no output is standard output.
std::string report(const OutputOptions& options, const Results& results) {
  if (options.json) return json_text(results.json());
  if (results.brief && !options.paths.empty()) return results.brief();
  if (results.screen) return results.screen();
  return results.text ? results.text() : "";
}

}  // namespace

void add_outputs(const Command& command, OutputOptions& options, const std::string& usual,
                 const Forms& forms) {
  options.usual = usual;
  const Results results = results_in(forms);
  command
      .add_option("-o,--output", options.paths,
                  "write the results; the extension is the format, - is standard output "
                  "(repeatable)")
      .type_name("FILE")
      .one_each_time();
  const auto can_write = [&](const Format& format) { return format.has(results); };
  const std::string valid = names_of(can_write, "", ", ");
  command
      .add_parsed(
          "--format",
          [&options, valid](const std::string& name) {
            options.format = name;
            if (find(options, "-") == nullptr) {
              throw BadValue("--format", fmt::format("unknown name {}; valid: {}",
                                                     qkv::app::quoted(name), valid));
            }
          },
          fmt::format("format of -o - (default {})", usual))
      .type_name(names_of(can_write, "", "|"));
  command.add_flag("--json", options.json, "the report as JSON");
}

void check_outputs(const OutputOptions& options, const Results& results) {
  for (auto path = options.paths.begin(); path != options.paths.end(); ++path) {
    if (std::find(options.paths.begin(), path, *path) != path) {
      throw UsageError(output_name(*path) + ": named twice");
    }
    const auto same = std::find_if(options.paths.begin(), path, [&](const std::string& other) {
      return other != "-" && *path != "-" && is_same_file(other, *path);
    });
    if (same != path) {
      throw UsageError(
          fmt::format("{}: the same file as {}", output_name(*path), output_name(*same)));
    }
    check_path(options, results, *path);
  }
  const bool piped = names_stdout(options);
  if (piped && options.json) throw UsageError("--json and -o - both write to standard output");
  if (!piped && !options.format.empty()) throw UsageError("--format requires -o -");
  if (options.json && !results.json) throw UsageError("--json: this result has no JSON form");
  if (wants(options, "png")) check_png();
  if (wants(options, "pdf")) check_pdf();
  for (const std::string& path : options.paths) {
    if (path != "-") check_place(path);
  }
}

void check_inputs(const OutputOptions& options, const std::vector<std::string>& inputs) {
  for (const std::string& path : options.paths) {
    for (const std::string& input : inputs) {
      if (path != "-" && !input.empty() && is_same_file(path, input)) {
        throw UsageError(
            fmt::format("{}: the same file as the input {}", output_name(path), input_name(input)));
      }
    }
  }
}

bool wants(const OutputOptions& options, std::string_view format) {
  return std::ranges::any_of(options.paths, [&](const std::string& path) {
    const Format* found = find(options, path);
    return found != nullptr && found->name == format;
  });
}

bool wants_picture_file(const OutputOptions& options) {
  return std::ranges::any_of(options.paths, [&](const std::string& path) {
    const Format* found = find(options, path);
    return path != "-" && found != nullptr && is_picture(*found);
  });
}

void check_numbered(const OutputOptions& options, qkv::Index number) {
  for (const std::string& path : options.paths) {
    const Format* format = find(options, path);
    if (path == "-" || format == nullptr || !is_picture(*format)) continue;
    const std::string file = numbered(path, format->name, number);
    std::error_code failed;
    const bool is_named = std::ranges::any_of(options.paths, [&](const std::string& other) {
      return other != "-" && is_same_file(other, file);
    });
    if (!is_named && !std::filesystem::exists(file, failed)) continue;
    throw UsageError(fmt::format("{}: a picture of each line would replace {}; {}",
                                 output_name(path), qkv::app::quoted(file),
                                 is_named ? "another -o names it" : "remove it, or name another"));
  }
}

void write_outputs(const OutputOptions& options, const Results& results) {
  std::list<StagedFile> files;
  const auto stage = [&](const std::string& path, const Format& format, const Results& some) {
    files.emplace_back(path, [&](const std::string& place) { write(format, place, some); });
  };
  for (const std::string& path : options.paths) {
    if (path == "-") continue;
    const Format& format = *find(options, path);
    const bool may_be_several = is_picture(format) && results.pictures;
    const auto several = may_be_several ? results.pictures() : std::vector<NumberedFigure>();
    if (several.empty()) stage(path, format, results);
    for (const NumberedFigure& one : several) {
      check_numbered(options, one.number);
      Results single;
      single.picture = [&] { return one.figure; };
      stage(numbered(path, format.name, one.number), format, single);
    }
  }
  const bool piped = names_stdout(options);
  const Format* pipe = piped ? find(options, "-") : nullptr;
  const bool is_array = piped && pipe->bytes == nullptr;
  const std::string text =
      piped ? (is_array ? "" : pipe->bytes(results)) : report(options, results);
  for (StagedFile& file : files) file.commit();
  if (is_array) {
    pipe->write("-", results);
  } else {
    print(text);
  }
}

std::string output_formats() {
  return extensions([](const Format&) { return true; });
}

std::string array_formats() {
  return extensions([](const Format& format) {
    return qkv::app::array_format(fmt::format(".{}", format.name)).has_value();
  });
}
