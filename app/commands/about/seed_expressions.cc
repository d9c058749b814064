// SPDX-License-Identifier: Apache-2.0
#include "commands/about/seed_expressions.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <qkv/qkv.h>

namespace {

using qkv::batch_dot;
using qkv::ConstView;
using qkv::contiguous;
using qkv::copy;
using qkv::Dims;
using qkv::Index;
using qkv::reshape;
using qkv::slice;
using qkv::Tensor;
using qkv::transpose;
using qkv::View;

// ---- arrays ---------------------------------------------------------------------------------

Tensor zeros(const Dims& shape) { return {qkv::DType::kFloat64, shape}; }

Tensor full(const Dims& shape, double value) {
  Tensor result = zeros(shape);
  copy(ConstView(&value, {1}), result);
  return result;
}

// An array of arbitrary numbers, used where a document draws random ones. The printed results do
// not depend on them.
Tensor any(const Dims& shape) {
  Tensor result = zeros(shape);
  double n = 0;
  for (double& x : result.values<double>()) x = std::sin(++n);
  return result;
}

// Puts two arrays of one shape together as the two entries of a new first axis, like torch.stack.
Tensor stack(const ConstView& a, const ConstView& b) {
  Dims shape(2);
  for (Index size : a.shape()) shape.push_back(size);
  Tensor result = zeros(shape);
  copy(a, slice(result.view(), 0, 0, 1));
  copy(b, slice(result.view(), 0, 1, 2));
  return result;
}

Tensor flat(const ConstView& view) {
  const Tensor copied = contiguous(view);
  return contiguous(reshape(ConstView(copied), {-1}));
}

Tensor numbers(const Dims& sizes) {
  Tensor result = zeros(sizes.rank());
  std::size_t axis = 0;
  for (Index size : sizes) result.values<double>()[axis++] = static_cast<double>(size);
  return result;
}

Tensor product(const ConstView& a, const ConstView& b) {
  Tensor result = zeros({a.size(0), b.size(1)});
  batch_dot(a, b, result);
  return result;
}

Tensor softmax(const ConstView& x) {
  Tensor result = zeros(x.shape());
  qkv::softmax(x, result);
  return result;
}

Tensor sum(const Tensor& x) {
  const Index n = x.element_count();
  return flat(product(reshape(ConstView(x), {1, n}), full({n, 1}, 1)));
}

// ---- 000: one query of ones, keys of twos and of ones, values of threes and of fours ----------

Tensor q1() { return full({2}, 1); }
Tensor k1() { return full({2}, 2); }
Tensor v1() { return full({2}, 3); }
Tensor k2() { return full({2}, 1); }
Tensor v2() { return full({2}, 4); }

Tensor compatibility(const Tensor& q, const Tensor& k) {
  return flat(product(reshape(ConstView(q), {1, -1}), reshape(ConstView(k), {-1, 1})));
}
Tensor c1() { return compatibility(q1(), k1()); }
Tensor c2() { return compatibility(q1(), k2()); }
Tensor both_c() { return flat(stack(c1(), c2())); }
Tensor p_attn() { return softmax(both_c()); }

// Weight n of p_attn times a value vector.
Tensor weighted(Index n, const Tensor& v) {
  const Tensor p = p_attn();
  return flat(
      product(reshape(slice(ConstView(p), 0, n, n + 1), {1, 1}), reshape(ConstView(v), {1, -1})));
}

struct Attended {
  Tensor scores;
  Tensor weights;
  Tensor out;
};

// The call of seed document 000, one query over two keys, at any width of queries, keys and values.
Attended attend(Index width, const qkv::Options& options) {
  const Tensor q = full({1, width}, 1);
  const Tensor k = stack(full({width}, 2), full({width}, 1));
  const Tensor v = stack(full({width}, 3), full({width}, 4));
  Attended result{zeros({1, 2}), zeros({1, 2}), zeros({1, width})};
  qkv::attention(
      {q, k, v}, options,
      {.out = result.out, .weights = View(result.weights), .raw_scores = View(result.scores)});
  return {flat(result.scores), flat(result.weights), flat(result.out)};
}
Attended dot(Index width) { return attend(width, {.score = qkv::Dot{}}); }
Attended scaled_dot(Index width) { return attend(width, {}); }

Tensor halved_scores() { return attend(2, {.score = qkv::Dot{}, .scale = 0.5}).scores; }

Tensor broadcast_size() {
  const Tensor q = full({3, 8, 4}, 1);
  const Tensor k = full({3, 3, 8, 4}, 1);
  Tensor out = zeros({3, 3, 8, 4});
  qkv::attention({q, k, k}, {}, {.out = out});  // throws unless `out` has this shape
  return numbers(out.shape());
}

// ---- 001: six words of 50 numbers each ----------------------------------------------------------

Tensor words() { return any({6, 50}); }
Tensor sentence() { return contiguous(reshape(ConstView(words()), {1, 6, 50})); }

Tensor self_attention_weights() {
  const Tensor x = sentence();
  qkv::SelfAttention layer(x.size(2), x.dtype());
  qkv::initialise(layer, 0);
  qkv::RunState run;
  qkv::SelfAttention::Saved saved;
  Tensor out = zeros(x.shape());
  Tensor weights = zeros({x.size(0), x.size(1), x.size(1)});
  layer.forward({x}, run, saved, {.out = out, .weights = View(weights)});
  return weights;
}

struct WideForm {
  Tensor queries;  // projected
  Tensor keys;
  Tensor out;
};

WideForm wide_form() {
  const Tensor x = sentence();
  qkv::MultiHeadAttention layer(
      {.width = x.size(2), .heads = 8, .form = qkv::HeadForm::kWide, .dtype = x.dtype()});
  qkv::initialise(layer, 0);
  qkv::RunState run;
  qkv::MultiHeadAttention::Saved saved;
  Tensor out = zeros(x.shape());
  layer.forward({x, x, x}, run, saved, {.out = out});
  return {contiguous(saved.q), contiguous(saved.k), std::move(out)};
}

// Splits the heads of projected queries or keys: [1,6,400] -> [1,6,8,50].
ConstView with_heads(const Tensor& projected) {
  return reshape(ConstView(projected), {1, projected.size(1), -1, 50});
}
// Splits the heads and makes them the first axis: [1,6,400] -> [8,6,50].
Tensor heads_first(const Tensor& projected) {
  const Tensor transposed = contiguous(transpose(with_heads(projected), 1, 2));
  return contiguous(reshape(ConstView(transposed), {-1, projected.size(1), 50}));
}

Dims head_weights_shape() {
  const WideForm wide = wide_form();
  const Tensor q = heads_first(wide.queries);
  const Tensor k = heads_first(wide.keys);
  Tensor weights = zeros({q.size(0), q.size(1), k.size(1)});
  batch_dot(q, k, weights, qkv::Transpose::kNo, qkv::Transpose::kYes);
  return weights.shape();
}

// ---- 002 ----------------------------------------------------------------------------------------

// The weights that masked_softmax() gives to scores [2,2,4] beyond the key lengths 2 and 3 of the
// two batch entries.
Tensor masked_weights() {
  const std::vector<std::int64_t> lengths{2, 3};
  Tensor weights = zeros({2, 2, 4});
  qkv::masked_softmax(any({2, 2, 4}), lengths, weights);
  std::vector<double> beyond;
  for (Index b = 0; b < 2; ++b) {
    for (Index i = 0; i < 2; ++i) {
      for (Index j = lengths[static_cast<std::size_t>(b)]; j < 4; ++j) {
        beyond.push_back(weights.view().at<double>({b, i, j}));
      }
    }
  }
  return contiguous(ConstView(beyond));
}

Tensor product_of_ones() {
  Tensor result = zeros({2, 1, 2});
  batch_dot(full({2, 1, 3}, 1), full({2, 3, 2}, 1), result);
  return result;
}

// The output of a layer in evaluation. All keys are equal. Each batch entry has the values 0 to 39,
// in ten rows of four; the query attends to the first 2 rows in entry 0, to the first 6 in entry 1.
template <class Layer>
Tensor toy(const Layer& layer) {
  const Tensor q = full({2, 1, 2}, 1);
  const Tensor k = full({2, 10, 2}, 1);
  Tensor v = zeros({2, 10, 4});
  Index n = 0;
  for (double& x : v.values<double>()) x = static_cast<double>(n++ % 40);
  const std::vector<std::int64_t> lengths{2, 6};
  qkv::RunState run;
  typename Layer::Saved saved;
  Tensor out = zeros({2, 1, 4});
  layer.forward({q, k, v, lengths}, run, saved, {.out = out});
  return out;
}

Tensor mlp_toy() {
  qkv::MLPAttention layer(2, 2, 8, 0.1, qkv::DType::kFloat64);
  qkv::initialise(layer, 0);
  return toy(layer);
}

// ---- 003 ----------------------------------------------------------------------------------------

// The sum of the weights that one query gives to seven keys.
Tensor sum_of_weights(const qkv::Score& score) {
  const Tensor q = any({1, 5});
  const Tensor k = any({7, 5});
  Tensor weights = zeros({1, 7});
  qkv::attention({q, k}, {.score = score}, {.weights = View(weights)});
  return sum(weights);
}

// The sum of the weights for the additive score v^T tanh(W [h; s]).
Tensor sum_of_additive_weights() {
  const Tensor w = any({4, 10});
  const Tensor v = any({4});
  return sum_of_weights(qkv::Additive::concat(w, 5, v));
}

// The width of a user's vector of 10000 books after its projection.
Tensor taste_size() {
  const double one = 1;
  const ConstView books(&one, {1, 10000}, {0, 0});
  const ConstView projection(&one, {10000, 100}, {0, 0});
  const Tensor taste = product(books, projection);
  return numbers(taste.size(1));
}

// Multi-head attention of the original transformer: the split form, 512 wide, 8 heads.
qkv::MultiHeadAttention split_form() { return qkv::MultiHeadAttention({.width = 512, .heads = 8}); }

struct HeadResults {
  Index count = 0;  // the number of heads H, from lse [B,H,T]
  Index width = 0;  // the width D of a head, from the merged heads [B,T,H*D]
};

HeadResults head_results() {
  const auto layer = split_form();
  const Tensor x(layer.config().dtype, {1, 2, 512});
  qkv::RunState run;
  qkv::MultiHeadAttention::Saved saved;
  Tensor out(x.dtype(), x.shape());
  layer.forward({x, x, x}, run, saved, {.out = out});
  const Index count = saved.lse.size(1);
  return {count, reshape(ConstView(saved.heads), {1, 2, count, -1}).size(3)};
}

// ---- the names ----------------------------------------------------------------------------------

struct Expression {
  std::string_view name;
  Tensor (*compute)();
};

constexpr Expression kExpressions[] = {
    // 000
    {"q1", &q1},
    {"k1", &k1},
    {"v1", &v1},
    {"k2", &k2},
    {"v2", &v2},
    {"C1", &c1},
    {"C2", &c2},
    {"C1, C2", &both_c},
    {"C1, C2 halved", &halved_scores},
    {"p_attn", &p_attn},
    {"sum of p_attn", [] { return sum(p_attn()); }},
    {"softmax of C1, C2 halved", [] { return softmax(halved_scores()); }},
    {"p_attn[0] * v1", [] { return weighted(0, v1()); }},
    {"p_attn[1] * v2", [] { return weighted(1, v2()); }},
    {"output", [] { return dot(2).out; }},
    {"Q",
     [] {
       return flat(reshape(ConstView(q1()), {1, 2}));
     }},
    {"K", [] { return stack(k1(), k2()); }},
    {"V", [] { return stack(v1(), v2()); }},
    {"dot, d 2: scores", [] { return dot(2).scores; }},
    {"dot, d 2: weights", [] { return dot(2).weights; }},
    {"dot, d 2: out", [] { return dot(2).out; }},
    {"dot, d 8: scores", [] { return dot(8).scores; }},
    {"dot, d 8: weights", [] { return dot(8).weights; }},
    {"dot, d 8: out", [] { return dot(8).out; }},
    {"scaled dot, d 8: scores", [] { return scaled_dot(8).scores; }},
    {"scaled dot, d 8: weights", [] { return scaled_dot(8).weights; }},
    {"scaled dot, d 8: out", [] { return scaled_dot(8).out; }},
    {"size of (3,8,4) attending to (3,3,8,4)", &broadcast_size},
    // 001
    {"words: size", [] { return numbers(words().shape()); }},
    {"sentence: size", [] { return numbers(sentence().shape()); }},
    {"self-attention weights: size", [] { return numbers(self_attention_weights().shape()); }},
    {"weights transposed: strides",
     [] {
       const Tensor weights = self_attention_weights();
       return numbers(transpose(ConstView(weights), 1, 2).strides());
     }},
    {"weights transposed: contiguous",
     [] {
       const Tensor weights = self_attention_weights();
       return full({1}, transpose(ConstView(weights), 1, 2).is_contiguous() ? 1 : 0);
     }},
    {"weights transposed and copied: strides",
     [] {
       const Tensor weights = self_attention_weights();
       return numbers(ConstView(contiguous(transpose(ConstView(weights), 1, 2))).strides());
     }},
    {"weights transposed and copied: contiguous",
     [] {
       const Tensor weights = self_attention_weights();
       const Tensor copied = contiguous(transpose(ConstView(weights), 1, 2));
       return full({1}, copied.view().is_contiguous() ? 1 : 0);
     }},
    {"wide form, queries: size", [] { return numbers(wide_form().queries.shape()); }},
    {"wide form, queries with heads: size",
     [] { return numbers(with_heads(wide_form().queries).shape()); }},
    {"wide form, heads first: size",
     [] { return numbers(heads_first(wide_form().queries).shape()); }},
    {"wide form, weights: size", [] { return numbers(head_weights_shape()); }},
    {"wide form, out: size", [] { return numbers(wide_form().out.shape()); }},
    // 002
    {"masked_softmax beyond the lengths", &masked_weights},
    {"batch_dot of ones", &product_of_ones},
    {"DotProductAttention toy", [] { return toy(qkv::DotProductAttention(0.5)); }},
    {"MLPAttention toy", &mlp_toy},
    // 003
    {"sum of additive weights", &sum_of_additive_weights},
    {"sum of dot weights", [] { return sum_of_weights(qkv::Dot{}); }},
    {"sum of scaled dot weights", [] { return sum_of_weights(qkv::ScaledDot{}); }},
    {"projected books: size", &taste_size},
    {"split form: results of heads", [] { return numbers(head_results().count); }},
    {"split form: head width", [] { return numbers(head_results().width); }},
    {"split form: dropout", [] { return full({1}, split_form().config().dropout.value()); }},
};

// Splits "NAME[2]" into "NAME" and 2. The number is -1 if no "[NUMBER]" is at the end.
std::pair<std::string_view, Index> entry_of(std::string_view expression) {
  const std::size_t open = expression.rfind('[');
  if (open == std::string_view::npos || !expression.ends_with(']')) return {expression, -1};
  const char* const last = expression.data() + expression.size() - 1;
  Index entry = 0;
  const auto [end, error] = std::from_chars(expression.data() + open + 1, last, entry);
  if (error != std::errc() || end != last || entry < 0) return {expression, -1};
  return {expression.substr(0, open), entry};
}

}  // namespace

std::vector<std::string_view> seed_expressions() {
  std::vector<std::string_view> names;
  for (const Expression& expression : kExpressions) names.push_back(expression.name);
  return names;
}

std::vector<double> seed_values(std::string_view expression) {
  const auto [name, entry] = entry_of(expression);
  for (const Expression& known : kExpressions) {
    if (known.name != name) continue;
    const Tensor computed = known.compute();
    ConstView view = computed;
    if (entry >= view.size(0)) break;
    if (entry >= 0) view = slice(view, 0, entry, entry + 1);
    const Tensor values = contiguous(view);
    return {values.values<double>().begin(), values.values<double>().end()};
  }
  throw std::runtime_error("no seed expression '" + std::string(expression) + "'");
}
