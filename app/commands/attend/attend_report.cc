// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "commands/attend/attend.h"
#include "commands/shell/exit_codes.h"
#include "commands/shell/json_values.h"
#include "commands/shell/terminal.h"

namespace {

using qkv::ConstView;
using qkv::Dims;
using qkv::Index;
using qkv::Tensor;
using qkv::app::NamedView;

// ---- numbers as text ------------------------------------------------------------------------

// Results of up to kMostRows x kMostColumns are shown whole. Of larger ones, only the first
// kFirstRows rows and kFirstColumns columns are shown.
constexpr Index kMostRows = 40;
constexpr Index kMostColumns = 12;
constexpr Index kFirstRows = 6;
constexpr Index kFirstColumns = 8;
constexpr int kNumberWidth = 12;  // the width of -1.23457e-05, without the blank before it

// Element n of a contiguous result, which is float32, float64, bfloat16, float16 or int64.
double value_at(const ConstView& view, Index n) {
  switch (view.dtype()) {
    case qkv::DType::kFloat64:
      return static_cast<const double*>(view.data())[n];
    case qkv::DType::kFloat32:
      return static_cast<double>(static_cast<const float*>(view.data())[n]);
    case qkv::DType::kBFloat16:
      return static_cast<double>(
          static_cast<float>(static_cast<const qkv::BFloat16*>(view.data())[n]));
    case qkv::DType::kFloat16:
      return static_cast<double>(
          static_cast<float>(static_cast<const qkv::Float16*>(view.data())[n]));
    default:
      return static_cast<double>(static_cast<const std::int64_t*>(view.data())[n]);
  }
}

// The indices of row n of an array along all axes but the last: "[1,0]"; "" for rank 1. `queries`
// lists the queries along the axis before the last; empty means all.
std::string row_name(const Dims& shape, Index n, const std::vector<Index>& queries) {
  Dims place;
  for (int axis = 0; axis < shape.rank() - 1; ++axis) place.push_back(0);
  for (int axis = shape.rank() - 2; axis >= 0; --axis) {
    place[axis] = n % shape[axis];
    n /= shape[axis];
  }
  if (place.rank() == 0) return "";
  Index& query = place[place.rank() - 1];
  if (!queries.empty()) query = queries[static_cast<std::size_t>(query)];
  return qkv::to_string(place);
}

std::string rows_of(const ConstView& view, int limit, const std::vector<Index>& queries) {
  const Index columns = view.size(-1);
  const Index rows = columns == 0 ? 0 : view.element_count() / columns;
  const bool whole = rows <= kMostRows && columns <= kMostColumns;
  const Index shown_rows = whole ? rows : std::min(rows, kFirstRows);
  const Index shown_columns = whole ? columns : std::min(columns, kFirstColumns);
  std::string text;
  std::size_t label_width = 0;
  for (Index row = 0; row < shown_rows; ++row) {
    label_width = std::max(label_width, row_name(view.shape(), row, queries).size());
  }
  const Index dots = shown_columns < columns ? 4 : 0;
  const Index room = limit - 2 - static_cast<Index>(label_width) - dots;
  const Index on_a_line = limit == 0 ? columns : std::max<Index>(1, room / (kNumberWidth + 1));
  for (Index row = 0; row < shown_rows; ++row) {
    text += fmt::format("  {:<{}}", row_name(view.shape(), row, queries), label_width);
    for (Index column = 0; column < shown_columns; ++column) {
      if (column > 0 && column % on_a_line == 0)
        text += fmt::format("\n{:{}}", "", label_width + 2);
      text += fmt::format(" {:>{}.6g}", value_at(view, row * columns + column), kNumberWidth);
    }
    text += shown_columns < columns ? " ...\n" : "\n";
  }
  if (shown_rows < rows) {
    text += fmt::format("  ... {} x {} numbers in all; -o FILE writes them\n", rows, columns);
  }
  return text;
}

std::string summary(const ConstView& view) {
  double lowest = std::numeric_limits<double>::infinity();
  double highest = -lowest;
  double sum = 0;
  Index finite = 0;
  for (Index n = 0; n < view.element_count(); ++n) {
    const double value = value_at(view, n);
    if (!std::isfinite(value)) continue;
    ++finite;
    sum += value;
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  }
  std::string text;
  if (finite > 0) {
    text = fmt::format("  min {:.6g}  max {:.6g}  mean {:.6g}", lowest, highest,
                       sum / static_cast<double>(finite));
  }
  const Index others = view.element_count() - finite;
  return others == 0 ? text : text + fmt::format("  {} not finite", others);
}

// ---- the report -----------------------------------------------------------------------------

// The arrays q, k and v, with their axes in the order of the files.
std::vector<std::pair<const char*, ConstView>> inputs_of(const AttendOptions& options,
                                                         const AttendCall& call) {
  std::vector<std::pair<const char*, ConstView>> inputs{{"q", call.inputs.q}, {"k", call.inputs.k}};
  if (call.inputs.v.given()) inputs.emplace_back("v", call.inputs.v);
  for (auto& [name, view] : inputs) {
    if (options.layout == Layout::kBthd) view = qkv::transpose(view, 1, 2);
  }
  return inputs;
}

// The detail in which a report shows an array: its numbers, or only its extremes and mean.
enum class Detail { kNumbers, kSummary };

// The queries that a result's rows belong to; empty for all queries.
std::vector<Index> queries_of(const AttendOptions& options, const NamedTensor& array) {
  const auto* kind = std::ranges::find(kResultKinds, array.name, &ResultKind::name);
  const bool matrix = kind != std::end(kResultKinds) && kind->axes == qkv::ResultAxes::kMatrix;
  return matrix ? options.rows : std::vector<Index>();
}

// `columns` is the terminal's width, at which rows of numbers are wrapped; 0: they are not wrapped.
std::string report(const AttendOptions& options, const AttendCall& call,
                   const AttendResults& results, Detail detail, int columns = 0) {
  std::string text;
  for (const auto& [name, view] : inputs_of(options, call)) {
    text += fmt::format("{} {}  {}\n", name, qkv::describe(view),
                        shown_name(call.origins.at(name).place));
  }
  text += fmt::format("{}; path {}\n", settings_text(call.settings), results.path);
  for (const NamedTensor& array : results.arrays) {
    const ConstView view = array.tensor.view();
    const bool shown = detail == Detail::kNumbers;
    text += fmt::format("{}{} {}{}\n", shown ? "\n" : "", array.name, qkv::describe(view),
                        summary(view));
    if (shown && view.element_count() > 0)
      text += rows_of(view, columns, queries_of(options, array));
  }
  return text;
}

nlohmann::ordered_json report_json(const AttendOptions& options, const AttendCall& call,
                                   const AttendResults& results) {
  nlohmann::ordered_json json;
  for (const auto& [name, view] : inputs_of(options, call)) {
    json[name]["file"] = call.origins.at(name).place;
    json[name]["dtype"] = qkv::name_of(view.dtype());
    json[name]["shape"] = std::vector<Index>(view.shape().begin(), view.shape().end());
  }
  json["options"] = call.settings;
  json["path"] = results.path;
  json["warnings"] = call.warnings;
  for (const NamedTensor& array : results.arrays) {
    json[array.name] = json_array(array.tensor.view());
  }
  return json;
}

// ---- files and pictures ---------------------------------------------------------------------

// A result reshaped to the axes of an attention file: examples, layers, heads, queries, keys. A
// result that is absent or of rank 2 stays as it is.
ConstView as_attention(const Tensor& matrix, const CallShape& shape) {
  if (!matrix.given() || shape.lead.rank() == 0) return matrix.view();
  Index batch = 1;
  const int batch_axes = shape.lead.rank() - (shape.has_head_axis ? 1 : 0);
  for (int axis = 0; axis < batch_axes; ++axis) batch *= shape.lead[axis];
  return qkv::reshape(matrix.view(), {batch, 1, shape.head_count, matrix.size(matrix.rank() - 2),
                                      matrix.size(matrix.rank() - 1)});
}

// Pooled weights, reshaped like a result of as_attention(). For packed sequences `cells` is
// [sequences,heads,m,n].
ConstView cells_as_attention(const Tensor& cells, const CallShape& shape) {
  if (!shape.packed) return as_attention(cells, shape);
  return qkv::reshape(cells.view(),
                      {cells.size(0), 1, cells.size(1), cells.size(2), cells.size(3)});
}

// The weights that pictures show.
const Tensor& weights_of(const AttendOptions& options, const AttendResults& results) {
  for (const NamedTensor& array : results.arrays) {
    if (array.name == drawn_weights(options)) return array.tensor;
  }
  return results.weights;
}

// The text array of that name in the input files; null unless it has `count` tokens.
const qkv::app::Strings* tokens(const AttendCall& call, const char* name, Index count) {
  const qkv::app::Strings* text = call.store.find_text(name);
  return text != nullptr && text->shape == Dims(count) ? text : nullptr;
}

struct Labels {
  const qkv::app::Strings* keys = nullptr;
  const qkv::app::Strings* queries = nullptr;
};

// The labels of keys are src. Queries are labelled by tgt or, if only src has the right length, by
// src; with --rows they have no labels here, since the file or picture gets their row numbers.
Labels labels_of(const AttendOptions& options, const AttendCall& call,
                 const AttendResults& results) {
  Labels labels{tokens(call, "src", results.shape.keys), nullptr};
  if (!options.rows.empty()) return labels;
  labels.queries = tokens(call, "tgt", results.shape.queries);
  if (labels.queries == nullptr) labels.queries = tokens(call, "src", results.shape.queries);
  return labels;
}

std::vector<NamedView> arrays(const AttendOptions& options, const AttendCall& call,
                              const AttendResults& results) {
  std::vector<NamedView> arrays;
  const bool has_weights =
      std::ranges::find(results.arrays, "weights", &NamedTensor::name) != results.arrays.end();
  for (const NamedTensor& array : results.arrays) {
    arrays.push_back({array.name, array.tensor.view()});
    if (array.name == "pooled" && !has_weights) {
      arrays.push_back({"attn", cells_as_attention(array.tensor, results.shape)});
    }
    if (array.name != "weights") continue;
    arrays.push_back({"attn", as_attention(array.tensor, results.shape)});
    if (results.unmasked.given()) {
      arrays.push_back({"mask", as_attention(results.unmasked, results.shape)});
    }
    const Labels labels = labels_of(options, call, results);
    if (labels.keys != nullptr) arrays.push_back({"src", labels.keys});
    if (labels.queries != nullptr) arrays.push_back({"tgt", labels.queries});
  }
  if (!options.rows.empty()) arrays.push_back({"rows", ConstView(options.rows)});
  return arrays;
}

// The map [Tq,Tk] of one example and one head, out of [N,1,H,Tq,Tk].
ConstView one_map(const ConstView& all, Index batch, Index head) {
  if (all.rank() == 2) return all;
  const ConstView one = qkv::slice(qkv::slice(all, 0, batch, batch + 1), 2, head, head + 1);
  return qkv::reshape(one, {all.size(3), all.size(4)});
}

qkv::app::Picture picture(const AttendOptions& options, const AttendCall& call,
                          const AttendResults& results) {
  if (weights_of(options, results).element_count() == 0) {
    throw UsageError("a picture needs at least one query, key, head and batch entry");
  }
  qkv::app::Picture picture;
  const ConstView weights = as_attention(weights_of(options, results), results.shape);
  const ConstView unmasked = as_attention(results.unmasked, results.shape);
  const Index batches = weights.rank() == 2 ? 1 : weights.size(0);
  const Index heads = weights.rank() == 2 ? 1 : weights.size(2);
  for (Index b = 0; b < batches; ++b) {
    for (Index h = 0; h < heads; ++h) {
      std::string title = batches > 1 ? fmt::format("batch {}", b) : "";
      if (heads > 1) title += fmt::format("{}head {}", title.empty() ? "" : ", ", h);
      picture.panels.push_back({title, one_map(weights, b, h),
                                unmasked.given() ? one_map(unmasked, b, h) : ConstView()});
    }
  }
  const Labels labels = labels_of(options, call, results);
  if (labels.keys != nullptr) picture.keys = labels.keys->values;
  if (labels.queries != nullptr) picture.queries = labels.queries->values;
  for (const Index row : options.rows) picture.queries.push_back(fmt::format("{}", row));
  picture.notes = call.warnings;
  if (options.dropout.value_or(0) > 0) {
    picture.notes.push_back(fmt::format("weights {} dropout {}",
                                        drawn_weights(options) == "dropped" ? "after" : "before",
                                        *options.dropout));
  }
  return picture;
}

}  // namespace

Results attend_forms(const AttendOptions& options, const AttendCall& call,
                     const AttendResults& results) {
  Results forms;
  forms.arrays = [&] { return arrays(options, call, results); };
  // This is only called for an .npy file, for which check_results() allows only one result.
  forms.array = [&results] { return results.arrays.front().tensor.view(); };
  forms.picture = [&] { return picture(options, call, results); };
  forms.text = [&] { return report(options, call, results, Detail::kNumbers); };
  forms.screen = [&] { return report(options, call, results, Detail::kNumbers, table_columns()); };
  forms.brief = [&] { return report(options, call, results, Detail::kSummary); };
  forms.json = [&] { return report_json(options, call, results); };
  return forms;
}
