// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <variant>

#include "tests/attention/frozen/call.h"

// The results requested from a frozen call, and running it.
namespace qkv::test::frozen {
namespace {

constexpr Index kMostMatrix = 60'000;  // elements of a matrix of all rows
constexpr double kUntouched = -777;

}  // namespace

// A buffer for a result, filled with a number that no result has.
View Call::result(const char* name, DType dtype, const Dims& shape) {
  Tensor x(dtype, shape);
  for (Index n = 0; !only_named_ && n < x.element_count(); ++n) {
    core::store(dtype, x.view().data(), n, kUntouched);
  }
  const Order order = draw_order(draw_);
  const View view = lay_out(std::move(x), order);
  results_.push_back(view);
  note(name);
  return view;
}

// Row numbers in any order, some of them twice.
View Call::rows_named(Index count) {
  const DType dtype = draw_.chance(50) ? DType::kInt64 : DType::kInt32;
  return whole_numbers(dtype, Dims(count), 0, Tq - 1);
}

void Call::want_matrix(const char* name, Rows& rows) {
  if (element_count(matrix_) <= kMostMatrix && draw_.chance(60)) {
    rows = result(name, sums(), matrix_);
    return;
  }
  const Index count = draw_.whole(1, 4);
  Dims shape = matrix_;
  shape[shape.rank() - 2] = count;
  const View named = rows_named(count);
  rows = {named, result(name, sums(), shape)};
  features_.insert("named rows");
}

void Call::draw_outputs() {
  const ResultShapes shapes = result_shapes(inputs_);
  words_ += " ->";
  if (backward_ || draw_.chance(90)) {
    outputs_.out = result("out", dtype_, shapes.out);
  } else {
    inputs_.v = {};
    features_.insert("without v");
  }
  if (backward_ || !outputs_.out.given() || draw_.chance(60)) {
    outputs_.lse = result("lse", sums(), shapes.rows);
  }
  if (draw_.chance(40)) outputs_.row_max = result("row_max", sums(), shapes.rows);
  if (draw_.chance(40)) outputs_.column_sums = result("column_sums", sums(), shapes.keys);
  if (draw_.chance(35)) {
    const Index count = draw_.whole(1, 8);
    Dims shape = shapes.rows;
    shape.push_back(count);
    outputs_.top.count = count;
    outputs_.top.weights = result("top", sums(), shape);
    const DType dtype = draw_.chance(50) ? DType::kInt32 : DType::kInt64;
    outputs_.top.keys = result("keys", dtype, shape);
  }
  if (packed_) return;
  if (draw_.chance(30)) want_matrix("weights", outputs_.weights);
  if (draw_.chance(30)) want_matrix("dropped", outputs_.dropped_weights);
  if (draw_.chance(30)) want_matrix("raw", outputs_.raw_scores);
  if (draw_.chance(30)) want_matrix("capped", outputs_.capped_scores);
  if (draw_.chance(30)) want_matrix("masked", outputs_.masked_scores);
}

// ---- backward -------------------------------------------------------------------------------

void Call::draw_dweights() {
  features_.insert("dweights");
  if (element_count(matrix_) <= kMostMatrix && draw_.chance(50)) {
    sources_.weights = ConstView(make(sums(), matrix_, 0.5));
    words_ += " dweights";
    return;
  }
  const Index count = draw_.whole(1, 4);
  Dims shape = matrix_;
  shape[shape.rank() - 2] = count;
  const View named = rows_named(count);
  sources_.weights = {named, ConstView(make(sums(), shape, 0.5))};
  note("dweights of rows");
}

// A buffer for the gradient of `of`; occasionally none.
View Call::gradient(const char* name, const ConstView& of) {
  if (!of.given() || draw_.chance(15)) return {};
  return result_or_sum(name, of);
}

// A buffer that is overwritten or, if gradients are accumulated, holds numbers.
View Call::result_or_sum(const char* name, const ConstView& of) {
  if (gradients_.write == Write::kOverwrite) return result(name, of.dtype(), of.shape());
  const View view = make(of.dtype(), of.shape());
  results_.push_back(view);
  note(name);
  return view;
}

void Call::draw_backward() {
  words_ += " <-";
  saved_ = {.out = outputs_.out, .lse = outputs_.lse};
  const ResultShapes shapes = result_shapes(inputs_);
  if (!packed_ && draw_.chance(35)) draw_dweights();
  if (draw_.chance(90) || !sources_.weights.matrix.given()) {
    sources_.out = make(dtype_, shapes.out);
    note("dout");
  }
  if (draw_.chance(35)) {
    sources_.lse = make(sums(), shapes.rows);
    note("dlse");
  }
  if (draw_.chance(30)) {
    gradients_.write = Write::kAccumulate;
    note("added to");
  }
  gradients_.q = result_or_sum("dq", inputs_.q);
  gradients_.k = gradient("dk", inputs_.k);
  gradients_.v = gradient("dv", inputs_.v);
  if (options_.qk_norm) {
    gradients_.qk_norm.q = gradient("dgain_q", options_.qk_norm->q);
    gradients_.qk_norm.k = gradient("dgain_k", options_.qk_norm->k);
  }
  if (const auto* bilinear = std::get_if<Bilinear>(&score_)) {
    gradients_.score = BilinearGradient{gradient("dW", bilinear->w)};
  } else if (const auto* additive = std::get_if<Additive>(&score_)) {
    AdditiveGradient to;
    to.wq = gradient("dWq", additive->wq);
    to.wk = gradient("dWk", additive->wk);
    to.v = gradient("dv_u", additive->v);
    to.b = gradient("db", additive->b);
    gradients_.score = to;
  }
  gradients_.bias = gradient("dbias", options_.bias);
  gradients_.alibi = gradient("dalibi", options_.alibi);
  gradients_.sinks = gradient("dsinks", options_.sinks);
}

void Call::run(Context& context, Hash& hash) {
  attention(inputs_, options_, outputs_, context);
  if (backward_) {
    attention_backward(inputs_, options_, saved_, sources_, gradients_, context);
  }
  for (const View& x : results_) hash.add(x);
}

}  // namespace qkv::test::frozen
