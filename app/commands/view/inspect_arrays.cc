// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/utf8.h>

#include "commands/shell/console.h"
#include "commands/shell/json_values.h"
#include "commands/view/attention_input.h"
#include "commands/view/inspect.h"
#include "text/text.h"

namespace {

using Json = nlohmann::ordered_json;
using qkv::Index;
using qkv::app::NamedArray;
using qkv::app::Strings;

// The extremes and the mean of an array's finite numbers, and the counts of NaN and infinity.
struct NumberSummary {
  double smallest = std::numeric_limits<double>::infinity();
  double largest = -std::numeric_limits<double>::infinity();
  double sum = 0;
  double running = 0;  // a mean that does not overflow, but rounds at each step
  Index finite = 0;
  Index nan = 0;
  Index infinite = 0;

  void add(double value) {
    if (std::isnan(value)) {
      ++nan;
    } else if (std::isinf(value)) {
      ++infinite;
    } else {
      smallest = std::min(smallest, value);
      largest = std::max(largest, value);
      ++finite;
      const auto n = static_cast<double>(finite);
      sum += value;
      running += value / n - running / n;
    }
  }
  double mean() const {
    const bool overflows = finite > 0 && !std::isfinite(sum);
    return overflows ? running : finite == 0 ? 0 : sum / static_cast<double>(finite);
  }
};

template <class T>
double as_double(const T& value) {
  if constexpr (std::is_same_v<T, qkv::BFloat16> || std::is_same_v<T, qkv::Float16>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

NumberSummary numbers_of(const qkv::Tensor& tensor) {
  NumberSummary numbers;
  const auto add_all = [&]<class T>(std::span<const T> values) {
    if constexpr (!std::is_same_v<T, std::complex<double>>) {
      for (const T& value : values) numbers.add(as_double(value));
    }
  };
  switch (tensor.dtype()) {
#define QKV_ADD_ALL(name, type, text) \
  case qkv::DType::name:              \
    add_all(tensor.values<type>());   \
    break;
    QKV_FOR_EACH_DTYPE(QKV_ADD_ALL)
#undef QKV_ADD_ALL
    case qkv::DType::kQ8:  // no file format holds q8 arrays
    case qkv::DType::kNone:
      break;
  }
  return numbers;
}

Json sizes(const qkv::Dims& shape) { return std::vector<Index>(shape.begin(), shape.end()); }

// The line about one array, as columns: name, dtype, shape, bytes, contents.
using Line = std::vector<std::string>;

std::string first_tokens(const Strings& strings) {
  constexpr std::size_t kMost = 6;
  constexpr std::size_t kLongest = 12;
  std::string text;
  for (std::size_t n = 0; n < std::min(kMost, strings.values.size()); ++n) {
    text += fmt::format("{}{}", n == 0 ? "" : " ", qkv::app::quoted(strings.values[n], kLongest));
  }
  if (strings.values.size() > kMost) text += " ...";
  return text;
}

Line describe_text(const Strings& strings, Json& json) {
  json["dtype"] = "text";
  json["shape"] = sizes(strings.shape);
  json["first"] = std::vector<std::string>(
      strings.values.begin(),
      strings.values.begin() + std::min<std::ptrdiff_t>(6, std::ssize(strings.values)));
  return {"text", qkv::to_string(strings.shape), "", first_tokens(strings)};
}

Line describe_unread(const qkv::app::Unread& array, Json& json) {
  json["dtype"] = array.dtype;
  json["shape"] = sizes(array.shape);
  json["read"] = false;
  const std::string dtype = qkv::app::quoted(array.dtype, 32);
  return {dtype.substr(1, dtype.size() - 2), qkv::to_string(array.shape), "", "not read"};
}

Line describe_numbers(const qkv::Tensor& tensor, qkv::app::Storage storage, Json& json) {
  const NumberSummary numbers = numbers_of(tensor);
  const auto bytes = tensor.element_count() * static_cast<Index>(qkv::size_of(tensor.dtype()));
  json["dtype"] = qkv::name_of(tensor.dtype());
  json["shape"] = sizes(tensor.shape());
  json["bytes"] = bytes;
  json["order"] = storage == qkv::app::Storage::kCOrder ? "C" : "Fortran";
  std::string values;
  if (numbers.finite > 0) {
    json["min"] = numbers.smallest;
    json["max"] = numbers.largest;
    json["mean"] = json_number(numbers.mean());
    values = fmt::format("min {:.6g}, max {:.6g}, mean {:.6g}", numbers.smallest, numbers.largest,
                         numbers.mean());
  }
  json["nan"] = numbers.nan;
  json["inf"] = numbers.infinite;
  if (numbers.nan > 0) values += fmt::format("{}NaN {}", values.empty() ? "" : ", ", numbers.nan);
  if (numbers.infinite > 0) {
    values += fmt::format("{}inf {}", values.empty() ? "" : ", ", numbers.infinite);
  }
  return {std::string(qkv::name_of(tensor.dtype())), qkv::to_string(tensor.shape()),
          fmt::format("{} bytes, {} order", bytes, std::string(json["order"])),
          values.empty() ? "empty" : values};
}

Line describe_array(const NamedArray& array, Json& json) {
  if (const auto* strings = std::get_if<Strings>(&array.array)) {
    return describe_text(*strings, json);
  }
  if (const auto* unread = std::get_if<qkv::app::Unread>(&array.array)) {
    return describe_unread(*unread, json);
  }
  return describe_numbers(std::get<qkv::Tensor>(array.array), array.storage, json);
}

std::string aligned(const std::vector<Line>& lines) {
  std::vector<int> widths(lines.empty() ? 0 : lines.front().size());
  for (const Line& line : lines) {
    for (std::size_t n = 0; n < line.size(); ++n) {
      widths[n] = std::max(widths[n], qkv::app::display_width(line[n]));
    }
  }
  std::string text;
  for (const Line& line : lines) {
    std::string row = " ";
    for (std::size_t n = 0; n < line.size(); ++n) {
      const int blanks = widths[n] - qkv::app::display_width(line[n]);
      row += " " + line[n] + std::string(static_cast<std::size_t>(blanks) + 1, ' ');
    }
    row.resize(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

// The outcome of checking an array's rows as attention weights.
struct WeightRows {
  std::string fault{};      // the first fault found; "" if the rows are weights
  bool any_weight = false;  // whether a row is not all zeros
};

WeightRows rows_of(const qkv::app::AttentionFile& file) {
  WeightRows rows;
  const Index heads = file.attn.size(2);
  const Index maps = file.attn.size(0) * file.attn.size(1) * heads;
  for (Index n = 0; n < maps; ++n) {  // ends at the first fault
    const Index layer = n / heads % file.attn.size(1);
    const qkv::app::HeadStatistics head =
        qkv::app::head_report(file, n / heads / file.attn.size(1), layer, n % heads).statistics;
    rows.any_weight = rows.any_weight || head.rows > head.zero_rows;
    const std::string place = place_of(file, head);
    const std::string in = place.empty() ? "" : place + ": ";
    if (head.negative_rows > 0) {
      rows.fault = fmt::format("{}attn has negative numbers: scores?", in);
    } else if (head.nan_rows > 0) {
      rows.fault =
          fmt::format("{}attn has NaN or infinity in {} of {} rows", in, head.nan_rows, head.rows);
    } else if (head.wrong_rows > 0) {
      rows.fault = fmt::format("{}{} of {} rows of attn do not sum to 1 (worst {:.4g})", in,
                               head.wrong_rows, head.rows, head.worst_sum);
    }
    if (!rows.fault.empty()) return rows;
  }
  return rows;
}

// Reports how the arrays are read as an attention file, or why they are not one. Since an .npy file
// may hold any matrix, it counts as an attention file only if its rows look like weights.
void describe_attention(const std::string& path, std::vector<NamedArray> arrays,
                        const qkv::app::AttentionFileOptions& options, Inspection& result) {
  const bool arrays_are_named = !arrays.front().name.empty();
  try {
    const qkv::app::AttentionFile file =
        qkv::app::attention_from(input_name(path), std::move(arrays), options);
    const WeightRows rows = rows_of(file);
    if (!arrays_are_named && (!rows.fault.empty() || !rows.any_weight)) return;
    const auto has = [](bool given) { return given ? "yes" : "no"; };
    const std::string_view claim = arrays_are_named ? "attention file:" : "as an attention file:";
    result.text +=
        fmt::format("  {} attn read as {}; src {}, tgt {}, mask {}{}\n", claim, axes_of(file),
                    has(!file.src.empty()), has(!file.tgt.empty()), has(file.mask.given()),
                    file.rows.empty() ? "" : ", rows of queries " + ranges_of(file.rows));
    if (!rows.fault.empty()) result.text += fmt::format("  but {}\n", rows.fault);
    if (path != "-") result.text += fmt::format("  try: qkv view {}\n", typed(path));
    result.json["attention"] = {{"axes", axes_of(file)},
                                {"src", !file.src.empty()},
                                {"tgt", !file.tgt.empty()},
                                {"mask", file.mask.given()}};
    if (!file.rows.empty()) result.json["attention"]["rows"] = file.rows;
    if (!rows.fault.empty()) result.json["attention"]["fault"] = rows.fault;
  } catch (const qkv::app::InputError& error) {
    if (!arrays_are_named) return;
    result.text += fmt::format("  not an attention file: {}\n", error.what());
    result.json["attention"] = {{"error", error.what()}};
  }
}

}  // namespace

Inspection inspect_arrays(const std::string& path, std::string_view format,
                          const qkv::app::AttentionFileOptions& options) {
  std::vector<NamedArray> arrays =
      qkv::app::read_arrays(path, &stop_flag(), qkv::app::array_format(fmt::format(".{}", format)));
  if (arrays.empty() && format == "npz") {
    throw qkv::app::InputError(input_name(path),
                               "expected arrays, got an archive without .npy members");
  }
  Inspection result;
  result.json["kind"] = format;
  Json list = Json::array();
  std::vector<Line> lines;
  for (const NamedArray& array : arrays) {
    Json one;
    one["name"] = array.name;
    Line line = describe_array(array, one);
    std::string name = qkv::app::quoted(array.name);
    name = name.substr(1, name.size() - 2);
    line.insert(line.begin(), array.name.empty() ? "(array)" : name);
    lines.push_back(std::move(line));
    list.push_back(std::move(one));
  }
  result.json["arrays"] = list;
  result.text = fmt::format("{}: {} array{} ({})\n{}", shown_name(path), arrays.size(),
                            arrays.size() == 1 ? "" : "s", format, aligned(lines));
  if (arrays.empty()) return result;
  const bool alone = arrays.front().name.empty() &&
                     std::holds_alternative<qkv::Tensor>(arrays.front().array) &&
                     std::get<qkv::Tensor>(arrays.front().array).rank() >= 2;
  if (alone || qkv::app::has_attention(arrays)) {
    describe_attention(path, std::move(arrays), options, result);
  }
  return result;
}
