// SPDX-License-Identifier: Apache-2.0
#include "tests/app/translator/translator_oracle.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include <qkv/app/vocabulary.h>

#include "tests/support/compare.h"

namespace qkv::test {

namespace {

using Vector = TranslatorOracle::Vector;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t n = 0; n < a.size(); ++n) sum += a[n] * b[n];
  return sum;
}

Vector join(std::initializer_list<Vector> parts) {
  Vector all;
  for (const Vector& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Vector log_softmax(Vector x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double value : x) sum += std::exp(value - largest);
  for (double& value : x) value -= largest + std::log(sum);
  return x;
}

Vector softmax(const Vector& x) {
  Vector p = log_softmax(x);
  for (double& value : p) value = std::exp(value);
  return p;
}

// The weighted mean sum_j weights_j rows_j.
Vector mean_of(const std::vector<Vector>& rows, const Vector& weights) {
  Vector mean(rows.front().size());
  for (std::size_t j = 0; j < rows.size(); ++j) {
    for (std::size_t n = 0; n < mean.size(); ++n) mean[n] += weights[j] * rows[j][n];
  }
  return mean;
}

Vector part_of(const Vector& all, std::size_t first, std::size_t count) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

TranslatorOracle::TranslatorOracle(const Translator& translator) : config_(translator.config()) {
  for_each_parameter(translator, [&](const auto& p) {
    const auto rows = static_cast<std::size_t>(p.value.size(0));
    const std::size_t columns = p.value.rank() > 1 ? static_cast<std::size_t>(p.value.size(1)) : 1;
    parameters_[p.name] = {rows, columns, values_of(p.value)};
  });
}

Vector TranslatorOracle::Matrix::operator*(const Vector& x) const {
  Vector y(rows);
  for (std::size_t r = 0; r < rows; ++r) y[r] = dot(row(static_cast<std::int32_t>(r)), x);
  return y;
}

Vector TranslatorOracle::Matrix::row(std::int32_t index) const {
  return part_of(values, static_cast<std::size_t>(index) * columns, columns);
}

Vector TranslatorOracle::linear(const std::string& name, const Vector& x) const {
  Vector y = at(name + ".weight") * x;
  const auto bias = parameters_.find(name + ".bias");
  if (bias == parameters_.end()) return y;
  for (std::size_t n = 0; n < y.size(); ++n) y[n] += bias->second.values[n];
  return y;
}

Vector TranslatorOracle::gru(const std::string& name, const std::string& suffix, const Vector& x,
                             const Vector& h) const {
  const Vector of_x = at(name + ".weight_ih" + suffix) * x;
  const Vector of_h = at(name + ".weight_hh" + suffix) * h;
  const Vector& bias_x = at(name + ".bias_ih" + suffix).values;
  const Vector& bias_h = at(name + ".bias_hh" + suffix).values;
  const std::size_t H = h.size();
  Vector next(H);
  for (std::size_t u = 0; u < H; ++u) {
    const std::size_t R = u, Z = H + u, N = 2 * H + u;
    const double r = sigmoid(of_x[R] + bias_x[R] + of_h[R] + bias_h[R]);
    const double z = sigmoid(of_x[Z] + bias_x[Z] + of_h[Z] + bias_h[Z]);
    const double n = std::tanh(of_x[N] + bias_x[N] + r * (of_h[N] + bias_h[N]));
    next[u] = (1 - z) * n + z * h[u];
  }
  return next;
}

TranslatorOracle::Layer TranslatorOracle::read(const std::vector<Vector>& x,
                                               const std::string& suffix) const {
  const std::size_t T = x.size();
  const auto H = static_cast<std::size_t>(config_.hidden);
  Layer layer{std::vector<Vector>(T), std::vector<Vector>(T)};
  Vector h(H, 0.0);
  for (std::size_t j = 0; j < T; ++j) {
    layer.forward[j] = h = gru("encoder", suffix, x[j], h);
  }
  h.assign(H, 0.0);
  for (std::size_t j = T; j-- > 0;) {
    layer.backward[j] = h = gru("encoder", suffix + "_reverse", x[j], h);
  }
  return layer;
}

TranslatorOracle::Source TranslatorOracle::encode(const Tokens& source) const {
  Source encoded;
  for (const std::int32_t token : source) {
    encoded.states.push_back(at("source_embedding.weight").row(token));
  }
  Layer layer;
  for (Index n = 0; n < config_.encoder_layers; ++n) {
    layer = read(encoded.states, "_l" + std::to_string(n));
    for (std::size_t j = 0; j < source.size(); ++j) {
      encoded.states[j] = join({layer.forward[j], layer.backward[j]});
    }
  }
  encoded.last = join({layer.forward.back(), layer.backward.front()});
  encoded.start = linear("start", layer.backward.front());
  for (double& value : encoded.start) value = std::tanh(value);
  return encoded;
}

Vector TranslatorOracle::scores(const Source& source, const Vector& state) const {
  Vector scores;
  for (const Vector& h : source.states) {
    switch (config_.attention) {
      case TranslatorAttention::kAdditive: {
        const Vector of_s = at("attention.W_q") * state;
        const Vector of_h = at("attention.W_k") * h;
        double sum = 0;
        for (std::size_t u = 0; u < of_s.size(); ++u) {
          sum += at("attention.v").values[u] * std::tanh(of_s[u] + of_h[u]);
        }
        scores.push_back(sum);
        break;
      }
      case TranslatorAttention::kDot:
        scores.push_back(dot(state, linear("attention.k", h)));
        break;
      case TranslatorAttention::kScaledDot:
        scores.push_back(dot(state, linear("attention.k", h)) /
                         std::sqrt(static_cast<double>(config_.hidden)));
        break;
      case TranslatorAttention::kBilinear:
        scores.push_back(dot(state, at("attention.W") * h));
        break;
      case TranslatorAttention::kMultiHead:
      case TranslatorAttention::kNone:
        break;  // look() does not use scores here
    }
  }
  return scores;
}

// Multi-head attention: each head has its own part of the channels (Vaswani et al. 2017, section
// 3.2.2).
Vector TranslatorOracle::look_with_heads(const Source& source, const Vector& state,
                                         Vector& weights) const {
  const auto heads = static_cast<std::size_t>(config_.heads);
  const std::size_t D = static_cast<std::size_t>(config_.hidden) / heads;
  const Vector query = linear("attention.q", state);
  weights.assign(source.states.size(), 0.0);
  Vector results;
  for (std::size_t head = 0; head < heads; ++head) {
    Vector scores;
    std::vector<Vector> values;
    for (const Vector& h : source.states) {
      const Vector key = linear("attention.k", h);
      scores.push_back(dot(part_of(query, head * D, D), part_of(key, head * D, D)) /
                       std::sqrt(static_cast<double>(D)));
      values.push_back(part_of(linear("attention.v", h), head * D, D));
    }
    const Vector of_head = softmax(scores);
    results = join({results, mean_of(values, of_head)});
    for (std::size_t j = 0; j < weights.size(); ++j) {
      weights[j] += of_head[j] / static_cast<double>(heads);
    }
  }
  return linear("attention.o", results);
}

Vector TranslatorOracle::look(const Source& source, const Vector& state, Vector& weights) const {
  if (config_.attention == TranslatorAttention::kNone) return source.last;
  if (config_.attention == TranslatorAttention::kMultiHead) {
    return look_with_heads(source, state, weights);
  }
  weights = softmax(scores(source, state));
  return mean_of(source.states, weights);
}

// The logits of the readout t_i. With tied embeddings, the output's matrix is the target embedding.
TranslatorOracle::Vector TranslatorOracle::logits(const Vector& readout) const {
  if (config_.tied_embeddings == app::TiedEmbeddings::kNone) return linear("output", readout);
  Vector y = at("target_embedding.weight") * readout;
  for (std::size_t n = 0; n < y.size(); ++n) y[n] += at("output.bias").values[n];
  return y;
}

TranslatorOracle::Step TranslatorOracle::step(const Source& source, const Vector& state,
                                              std::int32_t token) const {
  Step step;
  const Vector context = look(source, state, step.attention);
  const Vector before = at("target_embedding.weight").row(token);
  step.state = gru("decoder", "", join({context, before}), state);
  const Vector pairs = linear("readout", join({step.state, context, before}));
  Vector larger;
  for (std::size_t n = 0; n < pairs.size(); n += 2) {
    larger.push_back(std::max(pairs[n], pairs[n + 1]));
  }
  step.log_probabilities = log_softmax(logits(larger));
  return step;
}

TranslatorOracle::Target TranslatorOracle::force(const Tokens& source, const Tokens& target) const {
  const Source encoded = encode(source);
  const double smoothing = config_.label_smoothing;
  Target result;
  Vector state = encoded.start;
  std::int32_t before = app::Vocabulary::kStart;
  for (const std::int32_t token : target) {
    const Step one = step(encoded, state, before);
    double mean = 0;
    for (const double p : one.log_probabilities) {
      mean += p / static_cast<double>(one.log_probabilities.size());
    }
    const double of_token = one.log_probabilities[static_cast<std::size_t>(token)];
    result.log_probability += of_token;
    result.loss -= (1 - smoothing) * of_token + smoothing * mean;
    if (!one.attention.empty()) result.attention.push_back(one.attention);
    state = one.state;
    before = token;
  }
  return result;
}

}  // namespace qkv::test
