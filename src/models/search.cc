// SPDX-License-Identifier: Apache-2.0
#include "models/search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include <qkv/app/vocabulary.h>
#include <qkv/error.h>

#include "models/hypotheses.h"
#include "models/output_layer.h"
#include "models/translator_pass.h"
#include "models/values.h"

namespace qkv::app {
namespace {

constexpr std::string_view kFunction = "Translator::translate";
constexpr Index kRowsAtOnce = 96;  // hypotheses of sources that are translated together
constexpr Index kMostBeam = 1000;

void check(const SearchOptions& options) {
  if (options.beam < 1 || options.beam > kMostBeam) {
    throw Error(kFunction, "beam",
                fmt::format("must be in 1..{}, got {}", kMostBeam, options.beam));
  }
  if (options.most_tokens < 0) {
    throw Error(kFunction, "most_tokens",
                fmt::format("must not be negative, got {}", options.most_tokens));
  }
  if (!(options.length_penalty >= 0) || std::isinf(options.length_penalty)) {
    throw Error(kFunction, "length_penalty",
                fmt::format("must be a number from 0, got {}", options.length_penalty));
  }
}

// Several sources, each with `beam` rows: arrays are [beam,B,.].
class BlockSearch {
 public:
  BlockSearch(const TranslatorConfig& config, const TranslatorLayers& layers, TokenBatch sources,
              const SearchOptions& options, Context& context)
      : config_(config),
        layers_(layers),
        wants_attention_(options.attention),
        K_(options.beam),
        B_(sources.count),
        Ts_(sources.longest),
        lengths_(sources.lengths),
        context_(context),
        encoder_(config, layers, std::move(sources), context),
        cell_(layers.decoder, context),
        readout_(layers.readout.parameters(), context),
        output_(packed_output(config, layers, context)) {
    const Index H = config.hidden;
    rows_ = Tensor(config.dtype, {K_, B_, H + context_width(config) + config.embedding});
    states_ = Tensor(config.dtype, {K_, B_, H});
    pairs_ = Tensor(config.dtype, {K_ * B_, 2 * readout_width(config)});
    largest_ = Tensor(config.dtype, {K_ * B_, readout_width(config)});
    logits_ = Tensor(config.dtype, {K_ * B_, config.target_tokens});
    if (config.attention != TranslatorAttention::kNone) {
      weights_ = Tensor(config.dtype, {B_, head_count(config), K_, Ts_});
    }
    for (const std::int32_t length : lengths_) {
      const Index most = options.most_tokens > 0 ? options.most_tokens : 2 * Index{length} + 10;
      hypotheses_.emplace_back(options, most);
    }
  }

  std::vector<Translation> run() {
    RunState evaluate;
    encoder_.forward(evaluate);
    SourceMemory memory(config_, layers_, encoder_.result(), 0, context_);
    encoder_.start(entry(states_.view(), 0));
    while (!all_done()) {
      step(memory);
      for (Index b = 0; b < B_; ++b) advance(b);
      follow_parents();
    }
    std::vector<Translation> results;
    for (Index b = 0; b < B_; ++b) {
      results.push_back(of(b).best(length(b), keeps_attention()));
    }
    return results;
  }

 private:
  Hypotheses& of(Index b) { return hypotheses_[static_cast<std::size_t>(b)]; }
  bool keeps_attention() const { return weights_.given() && wants_attention_; }
  Index length(Index b) const { return lengths_[static_cast<std::size_t>(b)]; }
  bool all_done() const {
    return std::all_of(hypotheses_.begin(), hypotheses_.end(),
                       [](const Hypotheses& one) { return one.done(); });
  }

  // The logits of the next token of every hypothesis.
  void step(SourceMemory& memory) {
    const Index H = config_.hidden;
    const Index seen = H + context_width(config_);
    std::vector<std::int32_t> before(static_cast<std::size_t>(K_ * B_), Vocabulary::kStart);
    for (Index b = 0; b < B_; ++b) {
      for (Index k = 0; k < of(b).live(); ++k) {
        before[static_cast<std::size_t>(k * B_ + b)] = of(b).last_token(k);
      }
    }
    Embedding::Saved ids;
    layers_.target_embedding.forward(ConstView(before.data(), {K_, B_}), ids,
                                     slice(rows_, 2, seen, seen + config_.embedding), context_);
    memory.look(states_, slice(rows_, 2, H, seen), weights_);
    cell_.forward(rows_of(slice(rows_, 2, H, rows_.size(2))), rows_of(states_.view()),
                  rows_of(slice(rows_, 2, 0, H)), {});
    readout_.forward(rows_of(rows_.view()), pairs_);
    larger_of_pairs(pairs_, largest_);
    output_.forward(largest_, logits_);
  }

  // Logits of hypotheses of source b to log-probabilities [live,V].
  template <class T>
  std::vector<double> log_probabilities(Index b) {
    const Index V = config_.target_tokens;
    std::vector<double> result;
    result.reserve(static_cast<std::size_t>(of(b).live() * V));
    for (Index k = 0; k < of(b).live(); ++k) {
      const auto row = logits_.values<T>().subspan(static_cast<std::size_t>((k * B_ + b) * V),
                                                   static_cast<std::size_t>(V));
      const auto largest = static_cast<double>(*std::max_element(row.begin(), row.end()));
      double sum = 0;
      for (const T value : row) sum += std::exp(static_cast<double>(value) - largest);
      const double normaliser = largest + std::log(sum);
      for (const T value : row) result.push_back(static_cast<double>(value) - normaliser);
    }
    return result;
  }

  // The attention of hypotheses of source b [live,Ts of b]: the mean over heads.
  template <class T>
  std::vector<float> attention(Index b) {
    if (!keeps_attention()) return {};
    const Index heads = weights_.size(1);
    std::vector<float> result;
    for (Index k = 0; k < of(b).live(); ++k) {
      for (Index j = 0; j < length(b); ++j) {
        T sum = 0;
        for (Index h = 0; h < heads; ++h) {
          sum +=
              weights_.values<T>()[static_cast<std::size_t>(((b * heads + h) * K_ + k) * Ts_ + j)];
        }
        result.push_back(static_cast<float>(sum / static_cast<T>(heads)));
      }
    }
    return result;
  }

  void advance(Index b) {
    if (of(b).done()) return;
    with_type(config_.dtype, [&]<class T>() {
      of(b).advance(log_probabilities<T>(b), config_.target_tokens, attention<T>(b), length(b));
    });
  }

  // The states of the live hypotheses.
  void follow_parents() {
    const View from = slice(rows_, 2, 0, config_.hidden);
    with_type(config_.dtype, [&]<class T>() {
      for (Index b = 0; b < B_; ++b) {
        for (Index k = 0; k < of(b).live(); ++k) {
          std::copy_n(row_at<T>(from, of(b).parent(k), b), config_.hidden,
                      row_at<T>(states_.view(), k, b));
        }
      }
    });
  }

  const TranslatorConfig& config_;
  const TranslatorLayers& layers_;
  bool wants_attention_;
  Index K_;
  Index B_;
  Index Ts_;
  std::vector<std::int32_t> lengths_;
  Context& context_;
  EncoderPass encoder_;
  GruCell::Steps cell_;
  PackedLinear readout_;
  PackedLinear output_;
  std::vector<Hypotheses> hypotheses_;
  Tensor rows_;    // [beam,B,hidden+C+embedding]: s_i, c_i, E y_{i-1}
  Tensor states_;  // [beam,B,hidden]: s_{i-1}
  Tensor pairs_, largest_, logits_, weights_;
};

}  // namespace

std::vector<Translation> search(const TranslatorConfig& config, const TranslatorLayers& layers,
                                std::span<const TokenList> sources, const SearchOptions& options,
                                Context& context) {
  check(options);
  token_batch(kFunction, "sources", sources, config.source_tokens);  // before anything is computed
  // Groups sources of similar lengths.
  std::vector<std::size_t> order(sources.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return sources[a].size() < sources[b].size();
  });
  std::vector<Translation> results(sources.size());
  const auto together = static_cast<std::size_t>(std::max<Index>(1, kRowsAtOnce / options.beam));
  for (std::size_t first = 0; first < order.size(); first += together) {
    const std::size_t count = std::min(together, order.size() - first);
    std::vector<TokenList> lists;
    for (std::size_t n = 0; n < count; ++n) lists.push_back(sources[order[first + n]]);
    BlockSearch block(config, layers,
                      token_batch(kFunction, "sources", lists, config.source_tokens), options,
                      context);
    std::vector<Translation> some = block.run();
    for (std::size_t n = 0; n < count; ++n) results[order[first + n]] = std::move(some[n]);
  }
  return results;
}

}  // namespace qkv::app
