// SPDX-License-Identifier: Apache-2.0
#include "translator/training/training_curve.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/file_error.h>

#include "files/settings.h"
#include "files/text_file.h"
#include "translator/model/run_folder.h"
#include "translator/training/training_state.h"

namespace qkv::app {
namespace {

struct LoggedLine {
  CurvePoint point{};
  Index epoch = 0;  // count of complete epochs
};

// The members of the JSON object on one line.
class Members {
 public:
  Members(const std::string& path, Index line, std::string_view text)
      : path_(path), line_(line), settings_(settings_of_line(path, line, text)) {}

  bool has(const char* name) const { return find_setting(settings_, name) != nullptr; }
  Index count(const char* name, Index least) const {
    const auto* value = std::get_if<Index>(needed(name));
    const std::string rule = fmt::format("a whole number from {}", least);
    if (value == nullptr || *value < least) refuse(name, rule.c_str());
    return *value;
  }
  double seconds(const char* name) const {
    const double value = number(name, *needed(name));
    if (!(value >= 0)) refuse(name, "a number from 0");
    return value;
  }
  // The member's number: empty if the member is absent, NaN if the number is not finite.
  std::optional<double> number(const char* name) const {
    const SettingValue* value = find_setting(settings_, name);
    if (value == nullptr) return std::nullopt;
    return number(name, *value);
  }
  bool flag(const char* name) const {
    const SettingValue* value = find_setting(settings_, name);
    if (value == nullptr) return false;
    if (!std::holds_alternative<bool>(*value)) refuse(name, "true or false");
    return std::get<bool>(*value);
  }

 private:
  const SettingValue* needed(const char* name) const {
    const SettingValue* value = find_setting(settings_, name);
    if (value == nullptr) {
      throw InputError::at_line(path_, line_,
                                fmt::format("expected a member \"{}\", got none", name));
    }
    return value;
  }
  double number(const char* name, const SettingValue& value) const {
    if (const auto* whole = std::get_if<Index>(&value)) return static_cast<double>(*whole);
    if (const auto* real = std::get_if<double>(&value)) return *real;
    for (const char* text : {"NaN", "Infinity", "-Infinity"}) {
      if (value == SettingValue(std::string(text))) return std::nan("");
    }
    refuse(name, "a number");
  }
  [[noreturn]] void refuse(const char* name, const char* rule) const {
    throw InputError::at_line(path_, line_,
                              fmt::format("{}: expected {}, got {}", name, rule,
                                          json_text(*find_setting(settings_, name))));
  }

  const std::string& path_;
  Index line_;
  Settings settings_;
};

// Reads one line; `least` is the update of the line before.
LoggedLine read_line(const Members& members, Index least) {
  LoggedLine line{.epoch = members.count("epoch", 0)};
  line.point.is_end = members.has("end");
  line.point.update = members.count("update", least);
  line.point.seconds = members.seconds("seconds");
  line.point.loss = members.number("loss");
  line.point.valid_loss = members.number("valid_loss");
  line.point.bleu = members.number("bleu");
  line.point.is_best = members.flag("best");
  return line;
}

// Sets each line's epochs. The file has a line at the end of each epoch; between two such lines,
// epochs grow linearly with updates. An epoch that has not ended is taken to be as long as the one
// before it.
void set_epochs(std::vector<LoggedLine>& lines) {
  std::vector<std::pair<double, double>> ends{{0, 0}};  // update, epoch
  for (const LoggedLine& line : lines) {
    const auto epoch = static_cast<double>(line.epoch);
    if (epoch > ends.back().second) {
      ends.emplace_back(static_cast<double>(line.point.update), epoch);
    }
  }
  if (ends.size() == 1) return;
  for (LoggedLine& line : lines) {
    const auto update = static_cast<double>(line.point.update);
    const auto after =
        std::ranges::lower_bound(ends, update, {}, &std::pair<double, double>::first);
    const auto to = std::clamp(after, ends.begin() + 1, ends.end() - 1);
    const auto from = to - 1;
    const double updates = std::max(to->first - from->first, 1.0);
    line.point.epochs =
        from->second + (update - from->first) / updates * (to->second - from->second);
  }
}

}  // namespace

std::string training_log_of(const std::string& path) {
  std::error_code failed;
  if (path.ends_with(".jsonl") && !std::filesystem::is_directory(path, failed)) return path;
  return fmt::format("{}{}{}", path, path.ends_with('/') ? "" : "/", kLogFile);
}

std::vector<CurvePoint> read_training_curve(const std::string& path) {
  const std::string file = training_log_of(path);
  std::error_code failed;  // read_text() reports errors
  if (file != path && std::filesystem::is_directory(path, failed) &&
      !std::filesystem::exists(file, failed) && !failed) {
    check_is_run(path);
  }
  const std::string text = read_text(file);
  std::vector<LoggedLine> lines;
  Index number = 0;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const Members members(file, ++number, std::string_view(text).substr(start, end - start));
    lines.push_back(read_line(members, lines.empty() ? 0 : lines.back().point.update));
    start = end + 1;
  }
  if (lines.empty()) {
    throw InputError(file, "expected a line for each epoch and each validation, got none so far");
  }
  set_epochs(lines);
  const bool all_end =
      std::ranges::all_of(lines, [](const LoggedLine& line) { return line.point.is_end; });
  std::vector<CurvePoint> points;
  for (LoggedLine& line : lines) {
    const bool is_last = &line == &lines.back();
    CurvePoint& point = line.point;
    if (point.is_end && !(all_end && is_last)) point.loss.reset();
    point.counts = !point.is_end || is_last || !point.valid_loss;
    point.is_best = point.is_best && point.counts;
    points.push_back(line.point);
  }
  return points;
}

}  // namespace qkv::app
