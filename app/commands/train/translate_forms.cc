// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/utf8.h>
#include <qkv/tensor.h>

#include "commands/shell/exit_codes.h"
#include "commands/shell/json_values.h"
#include "commands/train/translate.h"

namespace {

using Json = nlohmann::ordered_json;
using qkv::Index;
using qkv::app::NamedView;
using qkv::app::Strings;
using qkv::app::TranslatedText;

// The most bytes of a file's maps, which are all in memory at once.
constexpr double kMostMapBytes = 1e9;

// The names of the axes: rows are the translation's tokens.
constexpr const char* kRowName = "target";
constexpr const char* kColumnName = "source";

// A text without characters that would break the line, as a vocabulary may hold: line breaks and
// tabs become blanks; other control characters and invalid bytes become U+FFFD.
std::string on_one_line(std::string_view text) {
  std::string line;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const auto c = qkv::app::next_code_point(text, at);
    if (!c) ++at;
    if (c && (*c == U'\n' || *c == U'\r' || *c == U'\t')) {
      line += ' ';
    } else if (!c || *c < 0x20 || (*c >= 0x7F && *c < 0xA0)) {
      qkv::app::append_utf8(line, 0xFFFD);
    } else {
      line += text.substr(begin, at - begin);
    }
  }
  return line;
}

// Throws UsageError if no line has attention to show.
void check_attention(const std::vector<TranslatedLine>& lines) {
  if (std::ranges::none_of(lines, has_attention)) {
    throw UsageError(
        "no attention to write: the model has none, the lines are empty, or none has a "
        "translation");
  }
}

// The maps of all N lines in one array, padded to the longest line and translation.
struct Maps {
  qkv::Tensor attn{};  // [N,Tq,Tk] float32
  qkv::Tensor mask{};  // [N,Tq,Tk] bool, false where padded
  Strings src{};       // [N,Tk]
  Strings tgt{};       // [N,Tq]
  Strings axes{};      // names of rows and columns
  Strings line{};      // [N]
  Strings translation{};
  qkv::Tensor log_probability{};  // [N] float64
};

void put_tokens(const std::vector<std::string>& tokens, Strings& all) {
  const Index room = all.shape[1];
  all.values.insert(all.values.end(), tokens.begin(), tokens.end());
  all.values.resize(all.values.size() + static_cast<std::size_t>(room - std::ssize(tokens)),
                    "<pad>");
}

void put_map(const TranslatedText& text, Index n, Maps& maps) {
  if (!text.attention.given()) return;
  for (Index i = 0; i < text.attention.size(0); ++i) {
    for (Index j = 0; j < text.attention.size(1); ++j) {
      maps.attn.view().at<float>({n, i, j}) = text.attention.view().at<float>({i, j});
      maps.mask.view().at<bool>({n, i, j}) = true;
    }
  }
}

Maps maps_of(const std::vector<TranslatedLine>& lines) {
  check_attention(lines);
  const auto n = std::ssize(lines);
  Index queries = 1;
  Index keys = 1;
  for (const TranslatedLine& line : lines) {
    queries = std::max<Index>(queries, std::ssize(line.translation.target));
    keys = std::max<Index>(keys, std::ssize(line.translation.source));
  }
  const double bytes = 5.0 * static_cast<double>(n) * static_cast<double>(queries * keys);
  if (bytes > kMostMapBytes) {
    throw UsageError(fmt::format("attention of {} lines, [{},{},{}], takes {:.1f} GB; use fewer", n,
                                 n, queries, keys, bytes * 1e-9));
  }
  Maps maps{.attn = qkv::Tensor(qkv::DType::kFloat32, {n, queries, keys}),
            .mask = qkv::Tensor(qkv::DType::kBool, {n, queries, keys}),
            .src = {.shape = qkv::Dims(n, keys), .values = {}},
            .tgt = {.shape = qkv::Dims(n, queries), .values = {}},
            .axes = {.shape = qkv::Dims(2), .values = {kRowName, kColumnName}},
            .line = {.shape = qkv::Dims(n), .values = {}},
            .translation = {.shape = qkv::Dims(n), .values = {}},
            .log_probability = qkv::Tensor(qkv::DType::kFloat64, {n})};
  for (Index place = 0; place < n; ++place) {
    const TranslatedLine& line = lines[static_cast<std::size_t>(place)];
    put_map(line.translation, place, maps);
    put_tokens(line.translation.source, maps.src);
    put_tokens(line.translation.target, maps.tgt);
    maps.line.values.push_back(line.line);
    maps.translation.values.push_back(line.translation.text);
    maps.log_probability.view().at<double>({place}) = line.translation.log_probability;
  }
  return maps;
}

// Maps [N,Tq,Tk] as [N,1,1,Tq,Tk]: lines are the attention file's examples, with one layer and
// head.
qkv::ConstView as_examples(const qkv::Tensor& maps) {
  return qkv::reshape(maps.view(), {maps.size(0), 1, 1, maps.size(1), maps.size(2)});
}

std::vector<NamedView> arrays_of(const Maps& maps) {
  return {{"attn", as_examples(maps.attn)},
          {"mask", as_examples(maps.mask)},
          {"src", &maps.src},
          {"tgt", &maps.tgt},
          {"axes", &maps.axes},
          {"line", &maps.line},
          {"translation", &maps.translation},
          {"log_probability", maps.log_probability.view()}};
}

// The picture of a line for a file, titled with the line and its translation.
qkv::app::Picture titled(const TranslatedLine& line) {
  qkv::app::Picture picture = alignment(line);
  picture.title = fmt::format("{} → {}", line.line, line.translation.text);
  return picture;
}

// The picture of the only line. Throws UsageError unless there is one line, which has attention.
qkv::app::Picture picture_of(const std::vector<TranslatedLine>& lines) {
  if (lines.size() != 1) {
    throw UsageError(fmt::format(
        "-o -: one picture shows one line, got {}; -o FILE writes one for each", lines.size()));
  }
  check_attention(lines);
  return titled(lines[0]);
}

// A picture of each line that has attention, with the line's number. None for a single line.
std::vector<NumberedFigure> pictures_of(const std::vector<TranslatedLine>& lines) {
  std::vector<NumberedFigure> pictures;
  if (lines.size() < 2) return pictures;
  check_attention(lines);
  for (std::size_t n = 0; n < lines.size(); ++n) {
    if (!has_attention(lines[n])) continue;
    pictures.push_back({static_cast<Index>(n) + 1, titled(lines[n])});
  }
  return pictures;
}

Json json_of(const TranslatedLine& line) {
  const TranslatedText& text = line.translation;
  Json json;
  json["line"] = line.line;
  json["translation"] = text.text;
  json["log_probability"] = json_number(text.log_probability);
  json["src"] = text.source;
  json["tgt"] = text.target;
  json["attn"] = has_attention(line) ? json_array(text.attention.view())["data"] : Json();
  return json;
}

}  // namespace

bool has_attention(const TranslatedLine& line) {
  return line.translation.attention.given() && line.translation.attention.element_count() > 0;
}

std::string line_of(const TranslatedLine& translated, const TranslateOptions& options) {
  const std::string text = on_one_line(translated.translation.text);
  if (!options.scores) return text + "\n";
  return fmt::format("{}\t{:.4f}\n", text, translated.translation.log_probability);
}

qkv::app::Picture alignment(const TranslatedLine& translated) {
  const TranslatedText& text = translated.translation;
  return {.title = translated.line,
          .panels = {{.title = {}, .weights = text.attention.view(), .allowed = {}}},
          .queries = text.target,
          .keys = text.source,
          .row_name = kRowName,
          .column_name = kColumnName};
}

Results translate_forms(const std::vector<TranslatedLine>& lines, const TranslateOptions& options) {
  Results results;
  const auto maps = std::make_shared<Maps>();
  results.arrays = [&lines, maps] {
    if (!maps->attn.given()) *maps = maps_of(lines);
    return arrays_of(*maps);
  };
  results.picture = [&lines] { return picture_of(lines); };
  results.pictures = [&lines] { return pictures_of(lines); };
  results.text = [&] {
    std::string text;
    for (const TranslatedLine& line : lines) text += line_of(line, options);
    return text;
  };
  results.json = [&lines] {
    Json json;
    json["axes"] = {kRowName, kColumnName};  // of attn
    json["translations"] = Json::array();
    for (const TranslatedLine& line : lines) json["translations"].push_back(json_of(line));
    return json;
  };
  return results;
}
