// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SEEDS_LISTINGS_H_
#define QKV_TESTS_SEEDS_LISTINGS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include <qkv/qkv.h>

// The listings of the four documents (docs/seeds.md) in float64, step by step and with their
// errors. batch_dot stands for torch.bmm and matmul.
namespace qkv::test {

inline Tensor zeros(const Dims& shape) { return {DType::kFloat64, shape}; }

// Returns normally distributed numbers that depend only on the seed.
inline Tensor any(const Dims& shape, std::uint64_t seed) {
  Tensor result = zeros(shape);
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (double& x : result.values<double>()) x = normal(random);
  return result;
}

// Multiplies a [..,n,l] by b [..,l,m] (transposed: [..,m,l]).
inline Tensor bmm(const ConstView& a, const ConstView& b, Transpose transpose_b = Transpose::kNo) {
  Dims shape = a.shape();
  shape[a.rank() - 1] = b.size(transpose_b == Transpose::kNo ? -1 : -2);
  Tensor result = zeros(shape);
  batch_dot(a, b, result, Transpose::kNo, transpose_b);
  return result;
}

inline Tensor softmax_of(const ConstView& x) {
  Tensor result = zeros(x.shape());
  softmax(x, result);
  return result;
}

inline Tensor divided(Tensor x, double divisor) {
  for (double& value : x.values<double>()) value /= divisor;
  return x;
}

// nn.Linear: x W^T + b.
inline Tensor linear(const ConstView& x, const Tensor& weight, const Tensor& bias = {}) {
  Tensor y = bmm(x, weight, Transpose::kYes);
  if (!bias.given()) return y;
  const std::span<double> values = y.values<double>();
  const std::span<const double> b = bias.values<double>();
  for (std::size_t n = 0; n < values.size(); ++n) values[n] += b[n % b.size()];
  return y;
}

// x.transpose(1, 2).contiguous().view(shape)
inline Tensor transposed(const ConstView& x, const Dims& shape) {
  const Tensor copied = contiguous(transpose(x, 1, 2));
  return contiguous(reshape(ConstView(copied), shape));
}

// ---- 001, multi-head self-attention of x [1,T,n], inputs 13 to 18 -------------------------------

struct WideForm {
  Tensor meant;    // the heads of [1*H,T,n] merged as [1,H,T,n] -> [1,T,H,n] -> [1,T,H*n]
  Tensor literal;  // as typed: [1*H,T,n].transpose(1, 2).contiguous().view(1, T, H*n)
};

inline WideForm literal_wide_form(const Tensor& x, const MultiHeadAttention::Parameters& p) {
  const Index T = x.size(1);
  const Index n = x.size(2);
  const Index H = p.q.weight.size(0) / n;
  const auto heads_of = [&](const LinearParameters& projection) {
    const Tensor projected = linear(x, projection.weight);
    return transposed(reshape(ConstView(projected), {1, T, H, n}), {H, T, n});
  };
  const double root = std::pow(static_cast<double>(n), 0.25);
  const Tensor queries = divided(heads_of(p.q), root);
  const Tensor keys = divided(heads_of(p.k), root);
  const Tensor weights = softmax_of(bmm(queries, keys, Transpose::kYes));
  const Tensor out = bmm(weights, heads_of(p.v));
  const Tensor merged = transposed(reshape(ConstView(out), {1, H, T, n}), {1, T, H * n});
  const Tensor typed = transposed(out, {1, T, H * n});
  return {linear(merged, p.o.weight, p.o.bias), linear(typed, p.o.weight, p.o.bias)};
}

// ---- 002, PyTorch -------------------------------------------------------------------------------

// masked_softmax of X [B,T,N]: fills the rows of X beyond their lengths [B] in place.
inline Tensor literal_masked_softmax(Tensor& X, const std::vector<std::int64_t>& lengths) {
  const Index rows_each = X.size(1);
  const View rows = reshape(X.view(), {-1, X.size(2)});
  for (Index row = 0; row < rows.size(0); ++row) {
    for (Index j = lengths[static_cast<std::size_t>(row / rows_each)]; j < rows.size(1); ++j) {
      rows.at<double>({row, j}) = -1e6;
    }
  }
  return softmax_of(X);
}

// v^T tanh(queries_i + keys_j) of projected queries [B,Tq,U] and keys [B,Tk,U].
inline Tensor scores_of_features(const Tensor& queries, const Tensor& keys, const Tensor& v) {
  Tensor scores = zeros({queries.size(0), queries.size(1), keys.size(1)});
  for (Index b = 0; b < scores.size(0); ++b) {
    for (Index i = 0; i < scores.size(1); ++i) {
      for (Index j = 0; j < scores.size(2); ++j) {
        double& score = scores.view().at<double>({b, i, j});
        for (Index u = 0; u < v.size(0); ++u) {
          score +=
              v.values<double>()[static_cast<std::size_t>(u)] *
              std::tanh(queries.view().at<double>({b, i, u}) + keys.view().at<double>({b, j, u}));
        }
      }
    }
  }
  return scores;
}

// MLPAttention with its tanh, which the listing omits: query, key = self.W_k(query), self.W_q(key).
inline Tensor literal_mlp_scores(const Tensor& query, const Tensor& key,
                                 const AdditiveAttention::Parameters& p) {
  return scores_of_features(linear(query, p.w_k), linear(key, p.w_q), p.v);
}

// Equation 10.1.7.
inline Tensor equation_7(const Tensor& query, const Tensor& key,
                         const AdditiveAttention::Parameters& p) {
  return scores_of_features(linear(query, p.w_q), linear(key, p.w_k), p.v);
}

// ---- 003, MultiheadAttentionLayer ---------------------------------------------------------------

// The layer for x [B,T,n] without padding. `dropout` stands for F.dropout.
inline Tensor literal_split_form(const Tensor& x, const MultiHeadAttention::Parameters& p,
                                 Index heads, const Dropout& dropout) {
  const Dims with_heads{x.size(0), x.size(1), heads, x.size(2) / heads};
  const auto heads_of = [&](const LinearParameters& projection) {
    const Tensor projected = linear(x, projection.weight, projection.bias);
    return contiguous(permute(reshape(ConstView(projected), with_heads), {0, 2, 1, 3}));
  };
  const Tensor Q = heads_of(p.q);
  const Tensor K = heads_of(p.k);
  const Tensor V = heads_of(p.v);
  Tensor alpha = zeros({x.size(0), heads, x.size(1), x.size(1)});
  attention({Q, K, V}, {.dropout = dropout}, {.dropped_weights = View(alpha)});
  const Tensor a = bmm(alpha, V);
  return linear(transposed(a, x.shape()), p.o.weight, p.o.bias);
}

}  // namespace qkv::test

#endif  // QKV_TESTS_SEEDS_LISTINGS_H_
