// SPDX-License-Identifier: Apache-2.0
#include "attention.h"

#include "areas.h"
#include "arguments.h"
#include "call.h"

namespace qkv::python {
namespace {

// The places in the tuple: the order of _functions.py.
enum ResultPlace { kWeights, kScores, kLse, kRowMax, kColumnSums, kTop, kResultPlaces };

constexpr const char* kAttention = "attention";

nb::object attention_call(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& options,
                          const nb::tuple& wanted, nb::handle threads) {
  const CallArguments call = call_arguments(kAttention, q, k, v, options);
  const int thread_count = threads_of(kAttention, threads);
  const ResultShapes shapes = in_layout(call.layout, [&] { return result_shapes(call.inputs); });
  const ResultMaker maker(q);
  Extras extras(kAttention, wanted, maker);
  Outputs outputs;
  nb::object out;
  if (call.inputs.v.given()) {
    Dims shape = shapes.out;
    if (call.layout == Layout::kBthd) std::swap(shape[1], shape[2]);
    View view;
    out = maker.make(call.inputs.q.dtype(), shape, view);
    outputs.out = as_heads_first(view, call.layout);
  }
  extras.make(shapes, call.inputs.q.dtype(), outputs);
  run_call(thread_count, work_of(call, shapes), [&](Context& context) {
    in_layout(call.layout, [&] { attention(call.inputs, call.options, outputs, context); });
  });
  return extras.with(out);
}

}  // namespace

Extras::Extras(const char* function, const nb::tuple& wanted, const ResultMaker& maker)
    : function_(function), wanted_(wanted), maker_(maker) {
  if (nb::len(wanted) != kResultPlaces) throw nb::type_error("qkv: results of another version");
}

void Extras::add(DType dtype, const Dims& shape, View& view) {
  results_.push_back(maker_.make(dtype, shape, view));
}

void Extras::make_matrices(const Dims& shape, DType dtype, Outputs& outputs) {
  const nb::handle weights = at(kWeights);
  if (nb::isinstance<nb::str>(weights)) {
    word_of(weights, {function_, "return_weights"}, {"dropped"}, "False, True");
    add(dtype, shape, outputs.dropped_weights.matrix);
  } else if (!is_flag(weights)) {
    throw_type_error({function_, "return_weights"},
                     "must be False, True or \"dropped\", got " + describe(weights));
  } else if (flag_of(weights, {function_, "return_weights"})) {
    add(dtype, shape, outputs.weights.matrix);
  }
  const nb::handle scores = at(kScores);
  if (scores.is_none()) return;
  Rows* const kinds[] = {&outputs.raw_scores, &outputs.capped_scores, &outputs.masked_scores};
  const int kind =
      word_of(scores, {function_, "return_scores"}, {"raw", "capped", "masked"}, "None");
  add(dtype, shape, kinds[kind]->matrix);
}

void Extras::make_top(const Dims& rows, DType dtype, Outputs& outputs) {
  const Name name{function_, "return_top"};
  Top& top = outputs.top;
  top.count = index_of(at(kTop), name);
  if (top.count == 0) return;
  if (top.count < 0) throw_value_error(name, "must be 0 (off) or more, got " + describe(at(kTop)));
  Dims shape = rows;
  shape.push_back(top.count);
  add(dtype, shape, top.weights);
  add(DType::kInt64, shape, top.keys);
  top_ = true;
}

void Extras::make(const ResultShapes& shapes, DType q, Outputs& outputs) {
  const DType dtype = accumulator_of(q);
  make_matrices(shapes.matrix, dtype, outputs);
  if (flag_of(at(kLse), {function_, "return_lse"})) add(dtype, shapes.rows, outputs.lse);
  if (flag_of(at(kRowMax), {function_, "return_row_max"})) {
    add(dtype, shapes.rows, outputs.row_max);
  }
  if (flag_of(at(kColumnSums), {function_, "return_column_sums"})) {
    add(dtype, shapes.keys, outputs.column_sums);
  }
  make_top(shapes.rows, dtype, outputs);
}

nb::object Extras::with(const nb::object& first) const {
  if (first.is_valid() && results_.empty()) return maker_.finish(first);
  nb::list all;
  if (first.is_valid()) all.append(maker_.finish(first));
  const std::size_t alone = results_.size() - (top_ ? 2 : 0);
  for (std::size_t n = 0; n < alone; ++n) all.append(maker_.finish(results_[n]));
  if (top_) {
    all.append(nb::make_tuple(maker_.finish(results_[alone]), maker_.finish(results_[alone + 1])));
  }
  return nb::tuple(all);
}

void bind_attention(nb::module_& module) {
  module.def("attention", attention_call, nb::arg().none(), nb::arg().none(), nb::arg().none(),
             nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace qkv::python
