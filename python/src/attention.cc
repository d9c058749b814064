// SPDX-License-Identifier: Apache-2.0
#include "attention.h"

#include "areas.h"
#include "arguments.h"
#include "call.h"

namespace qkv::python {
namespace {

// Indices in the tuple, in the order of _functions.py.
enum ResultPlace {
  kWeights,
  kScores,
  kLse,
  kRowMax,
  kColumnSums,
  kTop,
  kRows,
  kResults,
  kResultPlaces
};

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

}  // namespace

nb::object attend(const char* function, const CallArguments& call, nb::handle like,
                  const nb::tuple& wanted,
                  const std::function<void(double work, const Outputs&)>& run) {
  const ResultShapes shapes = in_layout(call, [&] { return result_shapes(call.inputs); });
  const ResultMaker maker(like);
  Extras extras(function, wanted, maker);
  Outputs outputs;
  nb::object out;
  if (call.inputs.v.given()) {
    View view;
    out = maker.make(call.inputs.q.dtype(), in_memory(shapes.out, call.layout), view);
    outputs.out = as_heads_first(view, call.layout, call.layout.heads);
  }
  extras.make(shapes, call.inputs.q.dtype(), outputs);
  run(work_of(call, shapes), outputs);
  return extras.with(out);
}

Extras::Extras(const char* function, const nb::tuple& wanted, const ResultMaker& maker)
    : function_(function), wanted_(wanted), maker_(maker) {
  if (nb::len(wanted) != kResultPlaces) throw nb::type_error("qkv: results of another version");
}

void Extras::add(const char* name, DType dtype, const Dims& shape, View& view) {
  names_.push_back(name);
  results_.push_back(maker_.make(dtype, shape, view));
}

void Extras::add_matrix(const char* name, DType dtype, const Dims& shape, Rows& rows) {
  Dims named = shape;
  if (rows_.view.given() && shape.rank() >= 2) named[shape.rank() - 2] = rows_.view.element_count();
  rows.rows = rows_.view;
  add(name, dtype, named, rows.matrix);
}

void Extras::make_weights(const Dims& shape, DType dtype, Outputs& outputs) {
  const nb::handle weights = at(kWeights);
  const Name name{function_, "return_weights"};
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
  const Name name{function_, "return_scores"};
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

void Extras::make_top(const Dims& rows, DType dtype, Outputs& outputs) {
  const Name name{function_, "return_top"};
  Top& top = outputs.top;
  top.count = index_of(at(kTop), name);
  if (top.count == 0) return;
  if (top.count < 0) throw_value_error(name, "must be 0 (off) or more, got " + describe(at(kTop)));
  Dims shape = rows;
  shape.push_back(top.count);
  add("top", dtype, shape, top.weights);
  add("top", DType::kInt64, shape, top.keys);
  top_ = true;
}

void Extras::make(const ResultShapes& shapes, DType q, Outputs& outputs) {
  const DType dtype = accumulator_of(q);
  const Name rows{function_, "rows", kIntegers};
  rows_ = array_or_sequence(at(kRows), rows, DType::kNone);
  make_weights(shapes.matrix, dtype, outputs);
  make_scores(shapes.matrix, dtype, outputs);
  if (rows_.view.given() && results_.empty()) {
    throw_value_error(rows, "names the queries of weights or scores, but neither is asked for");
  }
  if (flag_of(at(kLse), {function_, "return_lse"})) add("lse", dtype, shapes.rows, outputs.lse);
  if (flag_of(at(kRowMax), {function_, "return_row_max"})) {
    add("row_max", dtype, shapes.rows, outputs.row_max);
  }
  if (flag_of(at(kColumnSums), {function_, "return_column_sums"})) {
    add("column_sums", dtype, shapes.keys, outputs.column_sums);
  }
  make_top(shapes.rows, dtype, outputs);
}

nb::object Extras::with(const nb::object& first) const {
  if (first.is_valid() && results_.empty()) return maker_.finish(first);
  nb::list names, all;
  const auto append = [&](const char* name, const nb::object& value) {
    names.append(nb::str(name));
    all.append(value);
  };
  if (first.is_valid()) append("out", maker_.finish(first));
  const std::size_t alone = results_.size() - (top_ ? 2 : 0);
  for (std::size_t n = 0; n < alone; ++n) append(names_[n], maker_.finish(results_[n]));
  if (top_) {
    append("top",
           nb::make_tuple(maker_.finish(results_[alone]), maker_.finish(results_[alone + 1])));
  }
  return at(kResults)(nb::tuple(names), nb::tuple(all));
}

void bind_attention(nb::module_& module) {
  module.def("attention", attention_call, nb::arg().none(), nb::arg().none(), nb::arg().none(),
             nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace qkv::python
