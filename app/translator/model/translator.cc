// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include <qkv/app/translator.h>
#include <qkv/app/vocabulary.h>
#include <qkv/error.h>

#include "translator/passes/attention_form.h"
#include "translator/passes/output_layer.h"
#include "translator/passes/output_pass.h"
#include "translator/passes/source_memory.h"
#include "translator/passes/translator_pass.h"
#include "translator/search/search.h"

namespace qkv::app {
namespace {

constexpr std::string_view kName = "Translator";

void check(bool holds, std::string_view argument, const std::string& rule) {
  if (!holds) throw Error(kName, argument, rule);
}

TranslatorConfig checked(const TranslatorConfig& c) {
  const auto size = [](std::string_view name, Index value, Index least) {
    check(value >= least, name, fmt::format("must be at least {}, got {}", least, value));
    constexpr Index kMost = Index{1} << 24;
    check(value <= kMost, name, fmt::format("must be at most {}, got {}", kMost, value));
  };
  size("source_tokens", c.source_tokens, Vocabulary::kSpecials);
  size("target_tokens", c.target_tokens, Vocabulary::kSpecials);
  size("embedding", c.embedding, 1);
  size("hidden", c.hidden, 1);
  size("encoder_layers", c.encoder_layers, 1);
  size("units", c.units, 1);
  size("heads", c.heads, 1);
  if (form_of(c.attention).has_heads) {
    check(c.hidden % c.heads == 0, "heads",
          fmt::format("must divide hidden, got {} heads for {}", c.heads, c.hidden));
  }
  if (c.dtype != DType::kFloat32 && c.dtype != DType::kFloat64) {
    throw Error(kName, "dtype", fmt::format("must be float32 or float64, got {}", name_of(c.dtype)),
                ErrorKind::kType);
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

// Makes the output layer. With tied embeddings it has no weight: the target embedding's is used.
Linear output_of(const TranslatorConfig& c) {
  Linear output(readout_width(c), c.target_tokens, true, c.dtype);
  if (c.tied_embeddings == TiedEmbeddings::kOutput) output.parameters().weight = Tensor();
  return output;
}

TranslatorLayers layers_of(const TranslatorConfig& c) {
  const Index H = c.hidden;
  const Index context = context_width(c);
  const AttentionForm form = form_of(c.attention);
  const bool heads = form.has_heads;
  std::optional<AdditiveAttention> additive;
  std::optional<BilinearAttention> bilinear;
  if (form.has_units) additive.emplace(H, 2 * H, c.units, 0.0, c.dtype);
  if (form.has_matrix) bilinear.emplace(H, 2 * H, 0.0, c.dtype);
  return {
      .source_embedding = Embedding(c.source_tokens, c.embedding, Vocabulary::kPadding, c.dtype),
      .encoder = GruStack({c.embedding, H, true, true, c.dtype}, c.encoder_layers),
      .start = Linear(H, H, true, c.dtype),
      .additive = std::move(additive),
      .bilinear = std::move(bilinear),
      .query = linear_if(heads, c, H, true),
      .key = linear_if(form.projects_keys, c, 2 * H, heads),
      .value = linear_if(heads, c, 2 * H, true),
      .merge = linear_if(heads, c, H, true),
      .target_embedding = Embedding(c.target_tokens, c.embedding, Vocabulary::kPadding, c.dtype),
      .decoder = GruCell(context + c.embedding, H, true, c.dtype),
      .readout = Linear(H + context + c.embedding, 2 * readout_width(c), true, c.dtype),
      .output = output_of(c),
  };
}

template <class Layer>
auto zeros_of(const std::optional<Layer>& layer) {
  return layer ? std::optional(layer->zero_gradients()) : std::nullopt;
}

// The name, dtype and shape of each parameter, or gradient, that exists.
template <class Parts>
std::vector<std::string> listed(const Parts& parts) {
  std::vector<std::string> all;
  for_each_parameter(parts, [&](const auto& p) {
    all.push_back(fmt::format("{} {}", p.name, describe(p.value)));
  });
  return all;
}

void check_gradients(const TranslatorLayers& layers, const TranslatorGradients& gradients) {
  const std::vector<std::string> want = listed(layers);
  const std::vector<std::string> got = listed(gradients);
  const auto at = std::mismatch(want.begin(), want.end(), got.begin(), got.end());
  const auto shown = [](auto which, const auto& all) {
    return which == all.end() ? "nothing" : *which;
  };
  if (at.first == want.end() && at.second == got.end()) return;
  throw Error("Translator::loss_and_gradients", "gradients",
              fmt::format("must be those of zero_gradients(): expected {}, got {}",
                          shown(at.first, want), shown(at.second, got)));
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

// Computes on a copy of `run`, so that a pass that fails leaves `run` unchanged and the next pass
// draws the same dropout.
TranslationLoss Translator::loss(std::span<const TokenPair> pairs, RunState& run,
                                 Context& context) const {
  TranslatorPass pass("Translator::loss", config_, layers_, pairs, context);
  OutputPass output(config_, layers_, pass.targets(), context);
  RunState after = run;
  const Index tokens = std::ssize(pass.targets());
  pass.forward(after, output.rows(0, tokens));
  const TranslationLoss loss = output.loss();
  run = after;
  return loss;
}

TranslationLoss Translator::loss_and_gradients(std::span<const TokenPair> pairs, RunState& run,
                                               TranslatorGradients& gradients,
                                               Context& context) const {
  check_gradients(layers_, gradients);
  TranslatorPass pass("Translator::loss_and_gradients", config_, layers_, pairs, context);
  OutputPass output(config_, layers_, pass.targets(), context);
  RunState after = run;
  const Index tokens = std::ssize(pass.targets());
  pass.forward(after, output.rows(0, tokens));
  const TranslationLoss loss = output.loss_and_gradients(gradients);
  pass.backward(output.d_rows(0, tokens), gradients, embedding_after_output(config_));
  run = after;
  return loss;
}

std::vector<Translation> Translator::translate(
    std::span<const std::span<const std::int32_t>> sources, const SearchOptions& options,
    Context& context) const {
  return search(config_, layers_, sources, options, context);
}

}  // namespace qkv::app
