// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "commands/attend/attend.h"
#include "commands/shell/exit_codes.h"
#include "commands/shell/memory.h"
#include "commands/shell/unmasked_pairs.h"

namespace {

using qkv::ConstView;
using qkv::Dims;
using qkv::DType;
using qkv::Index;
using qkv::ResultAxes;
using qkv::Tensor;
using qkv::View;

// ---- messages -------------------------------------------------------------------------------

// Spells cu_seqlens, cu_seqlens_q and cu_seqlens_k in a message as the options do: cu-seqlens-q.
std::string in_words_of_options(std::string text) {
  constexpr std::string_view kLibrary = "cu_seqlens";
  for (auto at = text.find(kLibrary); at != text.npos; at = text.find(kLibrary, at)) {
    text[at + 2] = '-';
    at += kLibrary.size();
    if (at < text.size() && text[at] == '_') text[at] = '-';
  }
  return text;
}

// Throws the library's error with the file or option in place of the function's name, and the
// user's word in place of the argument's name.
[[noreturn]] void throw_with_origin(const qkv::Error& error, const AttendCall& call) {
  refuse_expression(error);
  const std::string& argument = error.argument();
  if (argument == "QKV_TARGET") throw error;  // an environment variable: neither file nor option
  std::string text = std::string(error.what()).substr(error.function().size() + 2);
  auto origin = call.origins.find(argument);
  if (origin == call.origins.end()) {
    origin = call.origins.find(argument.substr(0, argument.find_first_of(".[")));
  }
  if (origin != call.origins.end() && origin->second.word) {
    text.replace(0, argument.size(), *origin->second.word);
    if (text.starts_with(' ')) text.erase(0, 1);
  }
  text = in_words_of_options(std::move(text));
  if (origin == call.origins.end()) throw qkv::app::InputError("attend", text);
  if (origin->second.is_file) throw qkv::app::InputError(origin->second.place, text);
  throw UsageError(fmt::format("{}: {}", origin->second.place, text));
}

// ---- shapes ---------------------------------------------------------------------------------

Dims with(Dims lead, std::initializer_list<Index> tail) {
  for (const Index size : tail) lead.push_back(size);
  return lead;
}

// The shape of a result. A result that cannot be computed (out without v, a matrix of packed
// sequences) gets an arbitrary shape, so that the library is called and reports why.
Dims shape_for(const ResultKind& kind, const CallShape& shape, const AttendOptions& options) {
  const auto rows = static_cast<Index>(options.rows.size());
  switch (kind.axes) {
    case ResultAxes::kValues:
      if (shape.packed) return {shape.queries, shape.head_count, std::max<Index>(1, shape.width)};
      return with(shape.lead, {shape.queries, std::max<Index>(1, shape.width)});
    case ResultAxes::kMatrix:
      if (shape.packed) return {1, 1};
      return with(shape.lead, {rows > 0 ? rows : shape.queries, shape.keys});
    case ResultAxes::kQueries:
      return with(shape.lead, {shape.queries});
    case ResultAxes::kKeys:
      return with(shape.lead, {shape.keys});
    case ResultAxes::kCells: {
      const Index m = options.pool.at(0);
      const Index n = options.pool.at(1);
      if (shape.packed) return {shape.sequences, shape.head_count, m, n};
      return with(shape.lead, {m, n});
    }
    case ResultAxes::kTop:  // see reserve_top()
      break;
  }
  return {};
}

// ---- buffers --------------------------------------------------------------------------------

// Makes tensors, and checks that all of them together fit into memory.
class Room {
 public:
  // `what` is the request, such as "--save out". Throws UsageError, with the hint, if the tensors
  // do not fit.
  Tensor make(std::string_view what, DType dtype, const Dims& shape,
              std::string_view hint = "--rows and --top need less memory") {
    bytes_ +=
        static_cast<double>(qkv::element_count(shape)) * static_cast<double>(qkv::size_of(dtype));
    check_memory(bytes_, fmt::format("{} {}", what, qkv::to_string(shape)), hint);
    return {dtype, shape};
  }

 private:
  double bytes_ = 0;
};

bool is_default(const ResultKind& kind, bool values) {
  return values ? kind.name == "out" : kind.name == "scores" || kind.name == "weights";
}

// The results to compute besides those of --top: with --save, the ones that it names; without
// --save, the defaults, or none if --top is given.
std::vector<ResultKind> kinds_of(const AttendOptions& options, const AttendCall& call) {
  const bool none = std::ranges::find(options.save, true) == options.save.end();
  const bool only_top = none && options.top.has_value();
  std::vector<ResultKind> kinds;
  for (std::size_t n = 0; n < kResultKindCount; ++n) {
    const bool usual = none && !only_top && is_default(kResultKinds[n], call.inputs.v.given());
    if (options.save[n] || usual) kinds.push_back(kResultKinds[n]);
  }
  return kinds;
}

std::vector<std::string_view> result_names(const std::vector<ResultKind>& kinds) {
  std::vector<std::string_view> names;
  names.reserve(kinds.size());
  for (const ResultKind& kind : kinds) names.push_back(kind.name);
  return names;
}

bool is_matrix(const ResultKind& kind) { return kind.axes == ResultAxes::kMatrix; }

std::vector<ResultKind> matrices() {
  std::vector<ResultKind> kinds;
  std::ranges::copy_if(kResultKinds, std::back_inserter(kinds), is_matrix);
  return kinds;
}

// Allocates the memory of a call's results, and requests the results.
class ResultBuffers {
 public:
  ResultBuffers(const AttendOptions& options, AttendCall& call, AttendResults& results)
      : options_(options), call_(call), results_(results) {
    results_.arrays.reserve(kResultKindCount + 2);  // keeps references valid
    accumulator_ = qkv::accumulator_of(call.inputs.q.dtype());
  }

  void reserve(bool picture) {
    for (const ResultKind& kind : kinds_of(options_, call_)) reserve(kind);
    outputs_.column_sums.rows = listed(options_.column_rows);
    call_.origins["column_sums.rows"] = {"--column-rows", false, "column-rows"};
    if (options_.top) reserve_top();
    if (picture && !given(drawn_weights(options_))) {
      results_.weights = reserve_apart(drawn_weights(options_), "-o", "a picture's weights");
    }
    const bool needs_masked = may_mask() && (picture || given("weights"));
    if (needs_masked && !outputs_.masked_scores.matrix.given()) {
      masked_ = reserve_apart("masked", picture ? "-o" : "--save weights", "its mask");
    }
  }
  // True for each unmasked pair; absent if no pair is masked, or without weights or masked scores.
  Tensor unmasked() const {
    const qkv::View& masked = outputs_.masked_scores.matrix;
    if (!has_weights() || !may_mask() || !masked.given()) return {};
    Tensor pairs = unmasked_pairs(masked);
    if (std::ranges::all_of(pairs.values<bool>(), std::identity{})) return {};
    return pairs;
  }
  const qkv::Outputs& outputs() const { return outputs_; }

 private:
  void reserve(const ResultKind& kind) {
    const std::string argument(kind.argument);
    const std::string what = fmt::format("--save {}", kind.name);
    call_.origins[argument] = {what, false, std::string(kind.name)};
    call_.origins[argument + ".rows"] = {"--rows", false, "rows"};
    const Dims shape = shape_for(kind, results_.shape, options_);
    const bool values = kind.axes == ResultAxes::kValues;
    results_.arrays.push_back({std::string(kind.name), {}});
    Tensor& tensor = results_.arrays.back().tensor;
    if (values && options_.layout == Layout::kBthd) {
      tensor = room_.make(what, call_.inputs.q.dtype(), {shape[0], shape[2], shape[1], shape[3]});
      outputs_.out = qkv::transpose(tensor, 1, 2);
      return;
    }
    tensor = room_.make(what, values ? call_.inputs.q.dtype() : accumulator_, shape);
    bind(kind, tensor);
  }
  void bind(const ResultKind& kind, Tensor& tensor) {
    struct Put {
      const ResultBuffers& buffers;
      Tensor& tensor;
      void operator()(View& result) const { result = tensor; }
      void operator()(qkv::Rows& matrix) const { matrix = {listed(buffers.options_.rows), tensor}; }
      void operator()(qkv::ColumnSums& sums) const { sums.sums = tensor; }
      void operator()(qkv::Top&) const {}  // see reserve_top()
    };
    qkv::for_each_result([&](const auto& result) {
      if (result.name == kind.argument) Put{*this, tensor}(outputs_.*result.member);
    });
  }
  // Whether the matrix `name`, "weights" or "dropped", is requested.
  bool given(std::string_view name) const {
    return (name == "weights" ? outputs_.weights : outputs_.dropped_weights).matrix.given();
  }
  bool has_weights() const { return given("weights") || given("dropped"); }
  static ConstView listed(const std::vector<Index>& rows) {
    return rows.empty() ? ConstView() : ConstView(rows);
  }

  void reserve_top() {
    const Index count = std::min(*options_.top, std::max<Index>(1, results_.shape.keys));
    const Dims shape = with(results_.shape.lead, {results_.shape.queries, count});
    constexpr std::string_view kHint = "a smaller --top needs less memory";
    results_.arrays.push_back({"top_weights", room_.make("--top", accumulator_, shape, kHint)});
    Tensor& weights = results_.arrays.back().tensor;
    results_.arrays.push_back({"top_keys", room_.make("--top", DType::kInt64, shape, kHint)});
    outputs_.top = {count, weights, results_.arrays.back().tensor};
  }

  // Allocates and requests the matrix `name`, which --save does not name. Messages call it `what`
  // and name `option` as its origin.
  Tensor reserve_apart(std::string_view name, std::string_view option, std::string_view what) {
    const ResultKind& kind = *std::ranges::find(kResultKinds, name, &ResultKind::name);
    call_.origins[std::string(kind.argument)] = {std::string(option), false, std::string(what)};
    Tensor tensor = room_.make(fmt::format("{}: {}", option, what), accumulator_,
                               shape_for(kind, results_.shape, options_));
    bind(kind, tensor);
    return tensor;
  }
  // Whether a pair may be masked: by masks, by the bias, or by a score of -inf from mods.
  bool may_mask() const {
    const qkv::Options& options = call_.options;
    return !options.masks.empty() || options.bias.given() || !options.mods.empty();
  }

  const AttendOptions& options_;
  AttendCall& call_;
  AttendResults& results_;
  DType accumulator_;
  Room room_;
  qkv::Outputs outputs_;
  Tensor masked_;
};

bool wants_picture(const OutputOptions& outputs) {
  return wants(outputs, "svg") || wants(outputs, "png") || wants(outputs, "pdf");
}

}  // namespace

std::string_view drawn_weights(const AttendOptions& options) {
  const auto saves = [&](std::string_view name) {
    const auto* kind = std::ranges::find(kResultKinds, name, &ResultKind::name);
    return options.save[static_cast<std::size_t>(kind - std::begin(kResultKinds))];
  };
  const bool drops = options.dropout.value_or(0) > 0;
  const bool before = saves("weights") || !drops;
  return saves("dropped") || !before ? "dropped" : "weights";
}

CallShape shape_of(const qkv::Inputs& inputs) {
  CallShape shape;
  const ConstView all[] = {inputs.q, inputs.k, inputs.v};
  int rank = 0;
  bool mixed = false;
  for (const ConstView& x : all) {
    if (!x.given()) continue;
    mixed = mixed || (rank != 0 && x.rank() != rank);
    rank = std::max(rank, x.rank());
  }
  if (rank < 2 || inputs.q.rank() < 2 || inputs.k.rank() < 2) return shape;
  shape.packed = inputs.cu_seqlens_q.given();
  const int rows = shape.packed ? -3 : -2;
  if (shape.packed && (inputs.q.rank() < 3 || inputs.k.rank() < 3)) return shape;
  if (shape.packed) shape.sequences = inputs.cu_seqlens_q.element_count() - 1;
  shape.queries = inputs.q.size(rows);
  shape.keys = inputs.k.size(rows);
  shape.width = inputs.v.given() && inputs.v.rank() > 0 ? inputs.v.size(-1) : 0;
  if (shape.packed) {
    shape.head_count = inputs.q.size(-2);
    shape.lead = {shape.head_count};
    return shape;
  }
  shape.has_head_axis = rank >= 4 || (rank == 3 && mixed);
  for (int from_end = rank; from_end > 2; --from_end) {
    Index size = 1;
    for (const ConstView& x : all) {
      if (!x.given() || x.rank() < from_end) continue;
      if (size == 1) size = x.size(-from_end);
    }
    shape.lead.push_back(size);
  }
  if (shape.has_head_axis) shape.head_count = shape.lead[shape.lead.rank() - 1];
  return shape;
}

void check_results(const AttendOptions& options, const AttendCall& call) {
  const std::vector<ResultKind> kinds = kinds_of(options, call);
  std::vector<std::string_view> names = result_names(kinds);
  if (options.top) names.insert(names.end(), {"top_weights", "top_keys"});
  if (wants(options.outputs, "npy") && names.size() > 1) {
    throw UsageError(fmt::format("an .npy file holds one result, not {}: choose one with --save",
                                 fmt::join(names, ", ")));
  }
  const bool rows_of_something =
      wants_picture(options.outputs) || std::ranges::any_of(kinds, is_matrix);
  if (!options.rows.empty() && !rows_of_something) {
    throw UsageError(fmt::format("--rows requires a picture, or --save of one of {}",
                                 fmt::join(result_names(matrices()), ", ")));
  }
  const auto saves = [&](ResultAxes axes) {
    return std::ranges::find(kinds, axes, &ResultKind::axes) != kinds.end();
  };
  if (!options.column_rows.empty() && !saves(ResultAxes::kKeys)) {
    throw UsageError(
        fmt::format("--column-rows requires --save of {}", names_with(ResultAxes::kKeys, "or")));
  }
  if (options.pool.empty() && saves(ResultAxes::kCells)) {
    throw UsageError("--save pooled needs --pool M,N, the number of cells");
  }
}

AttendResults compute(const AttendOptions& options, AttendCall& call, const Common& common) {
  AttendResults results;
  qkv::Context context(qkv::Executor::threads(common.threads));
  context.set_stop_flag(&stop_flag());
  try {
    context.force_path(options.path);
    // Everything about the inputs is checked before memory for results is allocated.
    results.path = qkv::Plan(call.inputs, call.options, context).path();
    context.release_scratch();
    results.shape = shape_of(call.inputs);
    ResultBuffers buffers(options, call, results);
    buffers.reserve(wants_picture(options.outputs));
    qkv::attention(call.inputs, call.options, buffers.outputs(), context);
    results.unmasked = buffers.unmasked();
  } catch (const qkv::Error& error) {
    throw_with_origin(error, call);
  }
  return results;
}
