// SPDX-License-Identifier: Apache-2.0
#include "attention.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "areas.h"
#include "arguments.h"
#include "call.h"

namespace qkv::python {
namespace {

// The index, in the tuple `wanted`, of the function that builds the result.
constexpr std::size_t kResultsPlace = kRequests.size();

consteval std::size_t place_of(std::string_view request) {
  std::size_t place = 0;
  while (kRequests.at(place) != request) ++place;
  return place;
}
constexpr std::size_t kWeights = place_of("return_weights");
constexpr std::size_t kScores = place_of("return_scores");
constexpr std::size_t kColumnSums = place_of("return_column_sums");
constexpr std::size_t kTop = place_of("return_top");
constexpr std::size_t kPooled = place_of("return_pooled");
constexpr std::size_t kRows = place_of("rows");

// The index in kResults of the result that a request names, or the number of results.
consteval std::size_t result_at(std::size_t place) {
  std::size_t found = 0;
  bool is_found = false;
  for_each_result([&](const auto& result) {
    is_found = is_found || is_request_for(kRequests.at(place), result.name);
    if (!is_found) ++found;
  });
  return found;
}

// Whether each result but out, which needs no request, can be requested.
consteval bool has_every_request() {
  bool has = true;
  for_each_result([&](const auto& result) {
    has = has && (result.axes == ResultAxes::kValues || !request_of(result).empty());
  });
  return has;
}
static_assert(has_every_request(), "kRequests has an argument for each of qkv::kResults");

// The names of axes in _core.RESULT_AXES.
constexpr std::pair<ResultAxes, const char*> kAxesNames[] = {
    {ResultAxes::kValues, "values"}, {ResultAxes::kQueries, "queries"},
    {ResultAxes::kKeys, "keys"},     {ResultAxes::kCells, "cells"},
    {ResultAxes::kTop, "top"},       {ResultAxes::kMatrix, "matrix"}};

constexpr const char* kAttention = "attention";

nb::object attention_call(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& options,
                          const nb::tuple& wanted, nb::handle threads) {
  const CallArguments call = call_arguments(kAttention, q, k, v, options);
  const int thread_count = threads_of(kAttention, threads);
  return attend(kAttention, call, q, wanted, [&](double work, const Outputs& outputs) {
    run_call(thread_count, work, [&](Context& context) {
      in_layout(call, [&] { attention(call.inputs, call.options, outputs, context); });
    });
  });
}

// The shapes of the results for packed sequences on a GPU, whose starts the host does not read.
ResultShapes packed_shapes(const char* function, const Inputs& inputs) {
  const ConstView &q = inputs.q, &k = inputs.k, &v = inputs.v;
  const auto check = [&](const char* name, const ConstView& x) {
    if (!x.given() || x.rank() == 3) return;
    throw_value_error({function, name},
                      "must be [sum T,H,D] with packed sequences, got " + qkv::describe(x));
  };
  check("q", q);
  check("k", k);
  check("v", v);
  const Index H = q.size(1);
  ResultShapes shapes{.rows = {H, q.size(0)}, .keys = {H, k.size(0)}};
  if (v.given()) shapes.out = {q.size(0), H, v.size(2)};
  return shapes;
}

// The number of packed sequences, or -1 if the arrays are not packed.
Index sequences_of(const Inputs& inputs) {
  return inputs.cu_seqlens_q.given() ? inputs.cu_seqlens_q.element_count() - 1 : -1;
}

// Refuses a size that NumPy or PyTorch would refuse in words of their own, which name no result.
void check_size(const Name& name, DType dtype, const Dims& shape) {
  auto bytes = static_cast<Index>(size_of(dtype));
  for (const Index size : shape) {
    if (size > std::numeric_limits<Index>::max() / bytes) {
      throw_value_error(name, "may take at most 2^63 - 1 bytes, got " +
                                  std::string(name_of(dtype)) + " " + to_string(shape));
    }
    bytes *= std::max<Index>(size, 1);
  }
}

using Run = std::function<void(double work, const Outputs&)>;

nb::object attend_into(const char* function, const CallArguments& call, const ResultShapes& shapes,
                       const ResultMaker& maker, const nb::tuple& wanted, const Run& run) {
  Extras extras(function, wanted, maker);
  Outputs outputs;
  nb::object out;
  if (call.inputs.v.given()) {
    View view;
    out = maker.make(call.inputs.q.dtype(), in_memory(shapes.out, call.layout), view);
    outputs.out = as_heads_first(view, call.layout, call.layout.heads);
  }
  extras.make(shapes, sequences_of(call.inputs), call.inputs.q.dtype(), outputs);
  run(work_of(call, shapes), outputs);
  return extras.with(out);
}

}  // namespace

ResultShapes shapes_of(const char* function, const CallArguments& call) {
  const Inputs& in = call.inputs;
  const bool starts_unread = call.on_device && (in.cu_seqlens_q.given() || in.cu_seqlens_k.given());
  return starts_unread ? packed_shapes(function, in) : result_shapes(in);
}

nb::object attend(const char* function, const CallArguments& call, nb::handle like,
                  const nb::tuple& wanted, const Run& run) {
  const ResultShapes shapes = in_layout(call, [&] { return shapes_of(function, call); });
  return attend_into(function, call, shapes, ResultMaker(like), wanted, run);
}

nb::object attend_on_device(const char* function, const CallArguments& call, nb::object make,
                            const nb::tuple& wanted, const Run& run) {
  const ResultShapes shapes = in_layout(call, [&] { return shapes_of(function, call); });
  const ResultMaker maker = ResultMaker::on_device(std::move(make));
  return attend_into(function, call, shapes, maker, wanted, run);
}

Extras::Extras(const char* function, const nb::tuple& wanted, const ResultMaker& maker)
    : function_(function), wanted_(wanted), maker_(maker) {
  if (nb::len(wanted) != kResultsPlace + 1)
    throw nb::type_error("qkv: the package and its extension are of different versions (results)");
}

void Extras::add(const char* name, DType dtype, const Dims& shape, View& view) {
  check_size({function_, name}, dtype, shape);
  names_.push_back(name);
  results_.push_back(maker_.make(dtype, shape, view));
}

void Extras::add_matrix(const char* name, DType dtype, const Dims& shape, Rows& rows) {
  Dims sizes = shape;
  if (rows_.view.given() && shape.rank() >= 2) sizes[shape.rank() - 2] = rows_.view.element_count();
  rows.rows = rows_.view;
  add(name, dtype, sizes, rows.matrix);
}

void Extras::make_weights(const Dims& shape, DType dtype, Outputs& outputs) {
  const nb::handle weights = at(kWeights);
  const Name name{function_, kRequests[kWeights]};
  if (nb::isinstance<nb::str>(weights)) {
    const int word = word_of(weights, name, {"dropped", "both"}, "False, True");
    if (word == 1) add_matrix("weights", dtype, shape, outputs.weights);
    add_matrix("dropped_weights", dtype, shape, outputs.dropped_weights);
    if (word == 0) names_.back() = "weights";
  } else if (!is_flag(weights)) {
    throw_type_error(name,
                     "must be False, True, \"dropped\" or \"both\", got " + describe(weights));
  } else if (flag_of(weights, name)) {
    add_matrix("weights", dtype, shape, outputs.weights);
  }
}

void Extras::make_scores(const Dims& shape, DType dtype, Outputs& outputs) {
  const nb::handle scores = at(kScores);
  if (scores.is_none()) return;
  const Name name{function_, kRequests[kScores]};
  Rows* const kinds[] = {&outputs.raw_scores, &outputs.capped_scores, &outputs.masked_scores};
  constexpr const char* kNames[] = {"raw_scores", "capped_scores", "masked_scores"};
  const auto kind_of = [&](nb::handle word) {
    return word_of(word, name, {"raw", "capped", "masked"}, "None");
  };
  if (!nb::isinstance<nb::tuple>(scores) && !nb::isinstance<nb::list>(scores)) {
    add_matrix("scores", dtype, shape, *kinds[kind_of(scores)]);
    return;
  }
  bool asked[] = {false, false, false};
  for (std::size_t n = 0; n < nb::len(scores); ++n) {
    bool& kind = asked[kind_of(nb::object(scores[n]))];
    if (kind)
      throw_value_error(name, "must name a stage once, got " + describe(scores[n]) + " twice");
    kind = true;
  }
  for (std::size_t n = 0; n < std::size(kinds); ++n) {
    if (asked[n]) add_matrix(kNames[n], dtype, shape, *kinds[n]);
  }
}

// Reads return_column_sums: False, True, or the indices of the queries whose weights are summed.
void Extras::make_column_sums(const Dims& keys, DType dtype, Outputs& outputs) {
  const nb::handle sums = at(kColumnSums);
  const Name name{function_, kRequests[kColumnSums], kIntegers};
  if (is_flag(sums)) {
    if (!flag_of(sums, name)) return;
  } else {
    const bool listed = nb::isinstance<nb::list>(sums) || nb::isinstance<nb::tuple>(sums) ||
                        PyRange_Check(sums.ptr()) != 0;
    const bool array = !nb::isinstance<nb::bytes>(sums) &&
                       (nb::hasattr(sums, "__dlpack__") || PyObject_CheckBuffer(sums.ptr()) != 0);
    if (!listed && !array) {
      throw_type_error(name, "must be False, True or integers [R], got " + describe(sums));
    }
    column_rows_ = array_or_sequence(sums, name, DType::kNone);
    outputs.column_sums.rows = column_rows_.view;
  }
  add("column_sums", dtype, keys, outputs.column_sums.sums);
}

// Reads return_pooled: None, or the numbers (m, n) of cells along queries and keys.
void Extras::make_pooled(const ResultShapes& shapes, Index sequences, DType dtype,
                         Outputs& outputs) {
  const nb::handle cells = at(kPooled);
  if (cells.is_none()) return;
  const Name name{function_, kRequests[kPooled]};
  if (!(nb::isinstance<nb::tuple>(cells) || nb::isinstance<nb::list>(cells)) ||
      nb::len(cells) != 2) {
    throw_type_error(name, "must be None or (m, n), got " + describe(cells));
  }
  Dims shape;
  if (sequences >= 0) {
    shape.push_back(sequences);
    shape.push_back(shapes.rows[0]);
  } else {
    for (int axis = 0; axis + 1 < shapes.rows.rank(); ++axis) shape.push_back(shapes.rows[axis]);
  }
  for (std::size_t n = 0; n < 2; ++n) {
    const nb::object count(cells[n]);
    shape.push_back(index_of(count, {function_, n == 0 ? "return_pooled[0]" : "return_pooled[1]"}));
    if (shape[shape.rank() - 1] < 1) {
      throw_value_error(
          name, "must be (m, n), both 1 or more, got " + nb::cast<std::string>(nb::repr(cells)));
    }
  }
  add("pooled", dtype, shape, outputs.pooled);
}

void Extras::make_top(const Dims& rows, DType dtype, Outputs& outputs) {
  const Name name{function_, kRequests[kTop]};
  Top& top = outputs.top;
  top.count = index_of(at(kTop), name);
  if (top.count == 0) return;
  if (top.count < 0) throw_value_error(name, "must be 0 (off) or more, got " + describe(at(kTop)));
  Dims shape = rows;
  shape.push_back(top.count);
  check_size(name, DType::kInt64, shape);
  add("top", dtype, shape, top.weights);
  add("top", DType::kInt64, shape, top.keys);
  top_ = results_.size() - 1;
}

template <std::size_t place>
void Extras::make_request(const ResultShapes& shapes, Index sequences, DType dtype,
                          Outputs& outputs) {
  if constexpr (place == kWeights) {
    make_weights(shapes.matrix, dtype, outputs);
  } else if constexpr (place == kScores) {
    make_scores(shapes.matrix, dtype, outputs);
    if (rows_.view.given() && results_.empty()) {
      throw_value_error({function_, kRequests[kRows], kIntegers},
                        "names the queries of weights or scores, but neither is requested");
    }
  } else if constexpr (place == kColumnSums) {
    make_column_sums(shapes.keys, dtype, outputs);
  } else if constexpr (place == kTop) {
    make_top(shapes.rows, dtype, outputs);
  } else if constexpr (place == kPooled) {
    make_pooled(shapes, sequences, dtype, outputs);
  } else if constexpr (place != kRows) {
    constexpr auto result = std::get<result_at(place)>(kResults);
    static_assert(result.axes == ResultAxes::kQueries || result.axes == ResultAxes::kKeys);
    if (!flag_of(at(place), {function_, kRequests[place]})) return;
    add(result.name.data(), dtype, result.axes == ResultAxes::kQueries ? shapes.rows : shapes.keys,
        outputs.*result.member);
  }
}

void Extras::make(const ResultShapes& shapes, Index sequences, DType q, Outputs& outputs) {
  const DType dtype = accumulator_of(q);
  rows_ = array_or_sequence(at(kRows), {function_, kRequests[kRows], kIntegers}, DType::kNone);
  [&]<std::size_t... place>(std::index_sequence<place...>) {
    (make_request<place>(shapes, sequences, dtype, outputs), ...);
  }(std::make_index_sequence<kRequests.size()>());
}

nb::object Extras::with(const nb::object& first) const {
  if (first.is_valid() && results_.empty()) return maker_.finish(first);
  nb::list names, all;
  const auto append = [&](const char* name, const nb::object& value) {
    names.append(nb::str(name));
    all.append(value);
  };
  if (first.is_valid()) append("out", maker_.finish(first));
  for (std::size_t n = 0; n < results_.size(); ++n) {
    const nb::object result = maker_.finish(results_[n]);
    if (n + 1 != top_) {
      append(names_[n], result);
      continue;
    }
    ++n;
    append("top", nb::make_tuple(result, maker_.finish(results_[n])));
  }
  return at(kResultsPlace)(nb::tuple(names), nb::tuple(all));
}

void bind_attention(nb::module_& module) {
  module.def("attention", attention_call, nb::arg().none(), nb::arg().none(), nb::arg().none(),
             nb::arg(), nb::arg(), nb::arg().none());
  nb::list requests;
  for (const char* request : kRequests) requests.append(request);
  module.attr("REQUESTS") = nb::tuple(requests);
  nb::dict axes;
  for_each_result([&](const auto& result) {
    for (const auto& [its_axes, name] : kAxesNames) {
      if (its_axes == result.axes) axes[nb::str(result.name.data())] = name;
    }
  });
  module.attr("RESULT_AXES") = axes;
}

}  // namespace qkv::python
