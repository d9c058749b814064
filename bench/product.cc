// SPDX-License-Identifier: Apache-2.0
#include "product.h"

#include <algorithm>
#include <cmath>

#include "check.h"
#include "problem.h"

namespace qkv::bench {
namespace {

Dims dims_of_result(const Product& p) {
  if (p.gives == Gives::kWeightGradient) return {p.out, p.in};
  return {p.rows, p.gives == Gives::kOutput ? p.out : p.in};
}

// The number of terms in the sum that gives each element of the result.
Index length_of(const Product& p) {
  if (p.gives == Gives::kWeightGradient) return p.rows;
  return p.gives == Gives::kOutput ? p.in : p.out;
}

// The allowed error of sums of `length` terms, if the largest sum has the magnitude `largest`:
// eight standard deviations of a random walk of `length` float32 rounding errors.
double bound_of(Index length, double largest) {
  return 8 * std::sqrt(static_cast<double>(length)) * 0x1p-24 * largest;
}

// The product whose result is `count` rows of the result of `whole`, from row `first` on.
Product part_of(const Product& whole, Index first, Index count) {
  const bool weight = whole.gives == Gives::kWeightGradient;
  Product part(whole.gives, weight ? whole.rows : count, whole.in, weight ? count : whole.out);
  copy(slice(whole.dy.view(), weight ? 1 : 0, first, first + count), part.dy.view());
  if (weight) {
    copy(whole.x.view(), part.x.view());
  } else {
    copy(slice(whole.x.view(), 0, first, first + count), part.x.view());
    copy(whole.layer.parameters().weight.view(), part.layer.parameters().weight.view());
    copy(whole.layer.parameters().bias.view(), part.layer.parameters().bias.view());
  }
  return part;
}

}  // namespace

Product::Product(Gives which, Index row_count, Index inputs, Index outputs)
    : gives(which),
      rows(row_count),
      in(inputs),
      out(outputs),
      layer(inputs, outputs),
      x(DType::kFloat32, {row_count, inputs}),
      dy(DType::kFloat32, {row_count, outputs}) {
  fill_random(x, 1);
  fill_random(dy, 2);
  const auto width = static_cast<double>(gives == Gives::kInputGradient ? outputs : inputs);
  fill_random(layer.parameters().weight, 3, 1 / std::sqrt(width));
  fill_random(layer.parameters().bias, 4);
  Tensor& written = gives == Gives::kWeightGradient ? gradients.weight : result;
  written = Tensor(DType::kFloat32, dims_of_result(*this));
}

double work_of(const Product& p) {
  return 2 * static_cast<double>(p.rows) * static_cast<double>(p.in) * static_cast<double>(p.out);
}

void run(Product& p, Context& context) {
  Linear::Saved saved{p.x};
  switch (p.gives) {
    case Gives::kOutput:
      p.layer.forward(p.x, saved, p.result, context);
      break;
    case Gives::kInputGradient:
      p.layer.backward(saved, p.dy, p.result, p.gradients, Write::kOverwrite, context);
      break;
    case Gives::kWeightGradient:
      p.layer.backward(saved, p.dy, {}, p.gradients, Write::kOverwrite, context);
      break;
  }
}

std::string fault_of(const Product& product, const ConstView& result) {
  constexpr Index kSome = 4;
  Context reference;
  reference.force_path("reference");
  const Index rows = result.size(0);
  const Index count = std::min(kSome, rows);
  for (const Index first : {Index{0}, (rows - count) / 2, rows - count}) {
    Product part = part_of(product, first, count);
    run(part, reference);
    const double bound = bound_of(length_of(product), most_of(part.to()));
    std::string fault = difference(slice(result, 0, first, first + count), part.to(), bound);
    if (!fault.empty()) return fault;
  }
  return "";
}

}  // namespace qkv::bench
