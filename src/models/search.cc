// SPDX-License-Identifier: Apache-2.0
#include "models/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include <qkv/app/vocabulary.h>
#include <qkv/error.h>

#include "layers/packed.h"
#include "layers/row_kernels.h"
#include "models/hypotheses.h"
#include "models/output_layer.h"
#include "models/parallel.h"
#include "models/translator_pass.h"
#include "models/values.h"

namespace qkv::app {
namespace {

constexpr std::string_view kFunction = "Translator::translate";
constexpr Index kRowsAtOnce = 192;  // hypotheses of sources that are translated together
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

// The decoder's weights as its products take them, for all sources.
struct PackedDecoder {
  PackedDecoder(const TranslatorConfig& config, const TranslatorLayers& layers, Context& context)
      : cell(layers.decoder, context),
        readout(layers.readout.parameters(), context),
        output(packed_output(config, layers, context)) {}

  GruCell::Steps cell;
  PackedLinear readout;
  PackedLinear output;
};

// x_v - log(sum of e^x_v), in float64. `scratch` has room for n numbers in whole panels.
template <class T>
void log_softmax(const T* x, Index n, const layers::RowKernels<double>& by,
                 std::vector<double>& scratch, double* to) {
  constexpr Index kWhole = layers::RowKernels<double>::kWhole;
  scratch.resize(static_cast<std::size_t>((n + kWhole - 1) / kWhole * kWhole));
  std::copy_n(x, n, scratch.begin());
  std::fill(scratch.begin() + n, scratch.end(), -std::numeric_limits<double>::infinity());
  double largest = 0;
  double sum = 0;
  by.softmax(scratch.data(), std::ssize(scratch), &largest, &sum);
  const double normaliser = largest + std::log(sum);
  for (Index v = 0; v < n; ++v) to[v] = static_cast<double>(x[v]) - normaliser;
}

// Several sources, each with `beam` rows: arrays are [beam,B,.].
class BlockSearch {
 public:
  BlockSearch(const TranslatorConfig& config, const TranslatorLayers& layers,
              const PackedDecoder& decoder, TokenBatch sources, const SearchOptions& options,
              Context& context)
      : config_(config),
        layers_(layers),
        decoder_(decoder),
        K_(options.beam),
        B_(sources.count),
        Ts_(sources.longest),
        lengths_(sources.lengths),
        context_(context),
        encoder_(config, layers, std::move(sources), context),
        row_kernels_(layers::kernels_in_use<double>(context, kFunction).dot),
        scores_(static_cast<std::size_t>(B_)) {
    const Index H = config.hidden;
    rows_ = Tensor(config.dtype, {K_, B_, H + context_width(config) + config.embedding});
    states_ = Tensor(config.dtype, {K_, B_, H});
    live_rows_ = Tensor(config.dtype, {K_ * B_, rows_.size(2)});
    pairs_ = Tensor(config.dtype, {K_ * B_, 2 * readout_width(config)});
    largest_ = Tensor(config.dtype, {K_ * B_, readout_width(config)});
    logits_ = Tensor(config.dtype, {K_ * B_, config.target_tokens});
    if (options.attention && config.attention != TranslatorAttention::kNone) {
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
      models::for_each_task(context_.executor(), B_, [&](Index b) { advance(b); });
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
  bool keeps_attention() const { return weights_.given(); }
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
    memory.look(states_, slice(rows_, 2, H, seen), weights_.given() ? weights_.view() : View());
    decoder_.cell.forward(rows_of(slice(rows_, 2, H, rows_.size(2))), rows_of(states_.view()),
                          rows_of(slice(rows_, 2, 0, H)), {});
    read_out(gather_live_rows());
  }

  // The rows of hypotheses that are continued, one after another: the readout and the output layer
  // are most of the work. Returns how many.
  Index gather_live_rows() {
    Index count = 0;
    with_type(config_.dtype, [&]<class T>() {
      for (Index b = 0; b < B_; ++b) {
        first_live_[static_cast<std::size_t>(b)] = count;
        if (of(b).done()) continue;
        for (Index k = 0; k < of(b).live(); ++k, ++count) {
          std::copy_n(row_at<const T>(ConstView(rows_), k, b), rows_.size(2),
                      live_rows_.values<T>().data() + count * rows_.size(2));
        }
      }
    });
    return count;
  }

  void read_out(Index count) {
    const View pairs = slice(pairs_, 0, 0, count);
    const View largest = slice(largest_, 0, 0, count);
    decoder_.readout.forward(slice(ConstView(live_rows_), 0, 0, count), pairs);
    larger_of_pairs(pairs, largest);
    decoder_.output.forward(largest, slice(logits_, 0, 0, count));
  }

  // Logits of hypotheses of source b to log-probabilities [live,V].
  template <class T>
  std::span<const double> log_probabilities(Index b) {
    const Index V = config_.target_tokens;
    Scores& scores = scores_[static_cast<std::size_t>(b)];
    scores.log_probabilities.resize(static_cast<std::size_t>(of(b).live() * V));
    const T* const logits =
        logits_.values<T>().data() + first_live_[static_cast<std::size_t>(b)] * V;
    for (Index k = 0; k < of(b).live(); ++k) {
      log_softmax(logits + k * V, V, row_kernels_, scores.scratch,
                  scores.log_probabilities.data() + k * V);
    }
    return scores.log_probabilities;
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

  struct Scores {
    std::vector<double> log_probabilities;  // [live,V]
    std::vector<double> scratch;
  };

  const TranslatorConfig& config_;
  const TranslatorLayers& layers_;
  const PackedDecoder& decoder_;
  Index K_;
  Index B_;
  Index Ts_;
  std::vector<std::int32_t> lengths_;
  Context& context_;
  EncoderPass encoder_;
  layers::RowKernels<double> row_kernels_;
  std::vector<Scores> scores_;  // of each source, which are continued in parallel
  std::vector<Index> first_live_ = std::vector<Index>(static_cast<std::size_t>(B_));
  std::vector<Hypotheses> hypotheses_;
  Tensor rows_;       // [beam,B,hidden+C+embedding]: s_i, c_i, E y_{i-1}
  Tensor states_;     // [beam,B,hidden]: s_{i-1}
  Tensor live_rows_;  // of those that are continued; so are the next three
  Tensor pairs_, largest_, logits_;
  Tensor weights_;  // [B,heads,beam,Ts], if wanted
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
  if (sources.empty()) return results;
  const PackedDecoder decoder(config, layers, context);
  const auto together = static_cast<std::size_t>(std::max<Index>(1, kRowsAtOnce / options.beam));
  for (std::size_t first = 0; first < order.size(); first += together) {
    const std::size_t count = std::min(together, order.size() - first);
    std::vector<TokenList> lists;
    for (std::size_t n = 0; n < count; ++n) lists.push_back(sources[order[first + n]]);
    BlockSearch block(config, layers, decoder,
                      token_batch(kFunction, "sources", lists, config.source_tokens), options,
                      context);
    std::vector<Translation> some = block.run();
    for (std::size_t n = 0; n < count; ++n) results[order[first + n]] = std::move(some[n]);
  }
  return results;
}

}  // namespace qkv::app
