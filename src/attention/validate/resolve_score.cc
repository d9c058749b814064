// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <variant>

#include <qkv/error.h>
#include <qkv/scores.h>
#include <qkv/tensor.h>

#include "attention/validate/resolve.h"
#include "attention/validate/shapes.h"
#include "core/message.h"

namespace qkv::attn {
namespace {

using core::PairProduct;
using core::shown;
using core::text;

// Checks that queries and keys have one width, as their dot products need.
void expect_one_width(const Inputs& inputs, const Problem& p) {
  if (p.Dq == p.Dk) return;
  throw Error(p.function, "k",
              text("has D = ", p.Dk, " but q has D = ", p.Dq, " (", shown("q", inputs.q), ", ",
                   shown("k", inputs.k), ")"));
}

// Each overload adds the input transforms of its score and sets the pair product. Before the call,
// the transforms are the norm and rotation of the options, and the pair product is kDot.
void resolve_kind(const ScaledDot&, const Inputs& inputs, Problem& p) {
  expect_one_width(inputs, p);
}

void resolve_kind(const Dot&, const Inputs& inputs, Problem& p) { expect_one_width(inputs, p); }

void resolve_kind(const Cosine&, const Inputs& inputs, Problem& p) {
  expect_one_width(inputs, p);
  p.query_maps.add(core::UnitRows{});
  p.key_maps.add(core::UnitRows{});
}

void resolve_kind(const Bilinear& score, const Inputs&, Problem& p) {
  p.query_maps.product = {
      .w = parameter_operand(p, "bilinear.w", score.w, {p.Dq, p.Dk}, "Dq,Dk", p.H),
      .transposed = true,
      .b = {},
      .units = p.Dk};
}

void resolve_kind(const Additive& score, const Inputs&, Problem& p) {
  const Operand wq = parameter_operand(p, "additive.wq", score.wq, {Index{-1}, p.Dq}, "U,Dq", p.H);
  p.U = score.wq.size(-2);
  if (p.U < 1) {
    throw Error(p.function, "additive.wq",
                text("must have U = 1 or more, got ", describe(score.wq)));
  }
  p.query_maps.product = {.w = wq, .transposed = false, .b = {}, .units = p.U};
  p.key_maps.product = p.query_maps.product;
  p.key_maps.product.w = parameter_operand(p, "additive.wk", score.wk, {p.U, p.Dk}, "U,Dk", p.H);
  p.product = PairProduct::kTanh;
  p.score_v = parameter_operand(p, "additive.v", score.v, Dims(p.U), "U", p.H);
  if (score.b.given()) {
    p.query_maps.product.b = parameter_operand(p, "additive.b", score.b, Dims(p.U), "U", p.H);
  }
}

}  // namespace

void resolve_score(const Inputs& inputs, const Options& options, Problem& p) {
  p.product = PairProduct::kDot;
  p.score_v = {};
  p.U = 0;
  const auto resolve_one = [&]<class S>(const S& score) {
    resolve_kind(score, inputs, p);
    p.scale = S::default_scale(p.Dq);
  };
  std::visit(resolve_one, options.score);
  if (options.scale.has_value()) p.scale = *options.scale;
  if (!std::isfinite(p.scale)) {
    throw Error(p.function, "scale", text("must be finite, got ", p.scale));
  }
}

}  // namespace qkv::attn

namespace qkv {

Additive Additive::concat(const ConstView& w, Index key_width, const ConstView& v,
                          const ConstView& b) {
  const char* function = "Additive::concat";
  if (!w.given()) throw Error(function, "w", "is absent but the score needs it");
  if (w.rank() < 2 || w.rank() > 3) {
    throw Error(function, "w",
                core::text("must have the shape [U,Dk+Dq] or [H,U,Dk+Dq], got ", describe(w)));
  }
  if (key_width < 1 || key_width >= w.size(-1)) {
    throw Error(function, "key_width",
                core::text("must be 1 or more and below the width of w, got ", key_width, " for ",
                           describe(w)));
  }
  return {
      .wq = slice(w, -1, key_width, w.size(-1)), .wk = slice(w, -1, 0, key_width), .v = v, .b = b};
}

}  // namespace qkv
