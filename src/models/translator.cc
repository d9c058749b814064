// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <qkv/app/translator.h>
#include <qkv/app/vocabulary.h>
#include <qkv/error.h>

#include "models/search.h"
#include "models/source_memory.h"
#include "models/translator_pass.h"

namespace qkv::app {
namespace {

constexpr std::string_view kName = "Translator";

void check(bool holds, std::string_view argument, const std::string& rule) {
  if (!holds) throw Error(kName, argument, rule);
}

TranslatorConfig checked(const TranslatorConfig& c) {
  const auto at_least = [](std::string_view name, Index value, Index least) {
    check(value >= least, name, fmt::format("must be at least {}, got {}", least, value));
  };
  constexpr Index kLeastTokens = 4;  // padding, start, end, unknown
  at_least("source_tokens", c.source_tokens, kLeastTokens);
  at_least("target_tokens", c.target_tokens, kLeastTokens);
  at_least("embedding", c.embedding, 1);
  at_least("hidden", c.hidden, 1);
  at_least("units", c.units, 1);
  at_least("heads", c.heads, 1);
  constexpr Index kMost = Index{1} << 24;
  for (const Index size : {c.source_tokens, c.target_tokens, c.embedding, c.hidden, c.units}) {
    check(size <= kMost, "config", fmt::format("must have sizes up to {}, got {}", kMost, size));
  }
  if (c.attention == TranslatorAttention::kMultiHead) {
    check(c.hidden % c.heads == 0, "heads",
          fmt::format("must divide hidden, got {} heads for {}", c.heads, c.hidden));
  }
  check(c.dropout >= 0 && c.dropout < 1, "dropout",
        fmt::format("must be in [0,1), got {}", c.dropout));
  check(c.label_smoothing >= 0 && c.label_smoothing < 1, "label_smoothing",
        fmt::format("must be in [0,1), got {}", c.label_smoothing));
  return c;
}

std::optional<Linear> linear_if(bool wanted, const TranslatorConfig& c, Index in, bool bias) {
  if (!wanted) return std::nullopt;
  return Linear(in, c.hidden, bias, c.dtype);
}

TranslatorLayers layers_of(const TranslatorConfig& c) {
  const Index H = c.hidden;
  const Index seen = context_width(c);
  const bool heads = c.attention == TranslatorAttention::kMultiHead;
  const bool dot =
      c.attention == TranslatorAttention::kDot || c.attention == TranslatorAttention::kScaledDot;
  std::optional<AdditiveAttention> additive;
  std::optional<BilinearAttention> bilinear;
  if (c.attention == TranslatorAttention::kAdditive) {
    additive.emplace(H, 2 * H, c.units, 0.0, c.dtype);
  }
  if (c.attention == TranslatorAttention::kBilinear) bilinear.emplace(H, 2 * H, 0.0, c.dtype);
  return {
      .source_embedding = Embedding(c.source_tokens, c.embedding, Vocabulary::kPadding, c.dtype),
      .encoder = Gru({c.embedding, H, true, true, c.dtype}),
      .start = Linear(H, H, true, c.dtype),
      .additive = std::move(additive),
      .bilinear = std::move(bilinear),
      .query = linear_if(heads, c, H, true),
      .key = linear_if(heads || dot, c, 2 * H, heads),
      .value = linear_if(heads, c, 2 * H, true),
      .merge = linear_if(heads, c, H, true),
      .target_embedding = Embedding(c.target_tokens, c.embedding, Vocabulary::kPadding, c.dtype),
      .decoder = GruCell(seen + c.embedding, H, true, c.dtype),
      .readout = Linear(H + seen + c.embedding, 2 * H, true, c.dtype),
      .output = Linear(H, c.target_tokens, true, c.dtype),
  };
}

template <class Layer>
auto zeros_of(const std::optional<Layer>& layer) {
  return layer ? std::optional(layer->zero_gradients()) : std::nullopt;
}

}  // namespace

Translator::Translator(const TranslatorConfig& config)
    : config_(checked(config)), layers_(layers_of(config_)) {}

TranslatorGradients Translator::zero_gradients() const {
  return {.source_embedding = layers_.source_embedding.zero_gradients(),
          .encoder = layers_.encoder.zero_gradients(),
          .start = layers_.start.zero_gradients(),
          .additive = zeros_of(layers_.additive),
          .bilinear = zeros_of(layers_.bilinear),
          .query = zeros_of(layers_.query),
          .key = zeros_of(layers_.key),
          .value = zeros_of(layers_.value),
          .merge = zeros_of(layers_.merge),
          .target_embedding = layers_.target_embedding.zero_gradients(),
          .decoder = layers_.decoder.zero_gradients(),
          .readout = layers_.readout.zero_gradients(),
          .output = layers_.output.zero_gradients()};
}

TranslationLoss Translator::loss(std::span<const TokenPair> pairs, RunState& run,
                                 Context& context) const {
  TranslatorPass pass(config_, layers_, pairs, context);
  return pass.forward(run);
}

TranslationLoss Translator::loss_and_gradients(std::span<const TokenPair> pairs, RunState& run,
                                               TranslatorGradients& gradients,
                                               Context& context) const {
  TranslatorPass pass(config_, layers_, pairs, context);
  return pass.forward_and_backward(run, gradients);
}

std::vector<Translation> Translator::translate(
    std::span<const std::span<const std::int32_t>> sources, const SearchOptions& options,
    Context& context) const {
  return search(config_, layers_, sources, options, context);
}

}  // namespace qkv::app
