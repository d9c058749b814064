// SPDX-License-Identifier: Apache-2.0
#include "translator/search/search.h"

#include <cmath>

#include <fmt/format.h>

#include <qkv/error.h>

#include "runtime/tasks.h"
#include "translator/passes/packed_decoder.h"
#include "translator/search/search_lane.h"

namespace qkv::app {
namespace {

// The least number of hypotheses per thread for which each thread runs its own decoding batch. With
// fewer, there is one decoding batch, each of whose operations uses all threads.
constexpr Index kLeastRowsOfLane = 24;
constexpr Index kMostBeam = 1000;

void check(const SearchOptions& options) {
  if (options.beam < 1 || options.beam > kMostBeam) {
    throw Error(kTranslate, "beam",
                fmt::format("must be in 1..{}, got {}", kMostBeam, options.beam));
  }
  if (options.most_tokens < 0) {
    throw Error(kTranslate, "most_tokens",
                fmt::format("must not be negative, got {}", options.most_tokens));
  }
  if (!(options.length_penalty >= 0) || std::isinf(options.length_penalty)) {
    throw Error(kTranslate, "length_penalty",
                fmt::format("must be finite and at least 0, got {}", options.length_penalty));
  }
}

// The options that suit the model: without attention there are no weights to report, and none that
// show which source token an <unk> comes from.
SearchOptions options_of(const TranslatorConfig& config, SearchOptions options) {
  if (config.attention != TranslatorAttention::kNone) return options;
  options.attention = false;
  options.unknown = UnknownSources::kIgnored;
  return options;
}

// The context of one decoding batch on one thread. Its stop flag and its forced path are those of
// the caller's context.
struct LaneContext {
  explicit LaneContext(const Context& of) {
    context.set_stop_flag(of.stop_flag());
    context.force_path(of.forced_path());
  }
  Context context{};
};

}  // namespace

std::vector<Translation> search(const TranslatorConfig& config, const TranslatorLayers& layers,
                                std::span<const TokenList> sources,
                                const SearchOptions& given_options, Context& context) {
  check(given_options);
  token_batch(kTranslate, "sources", sources, config.source_tokens);  // only checks the sources
  std::vector<Translation> results(sources.size());
  if (sources.empty()) return results;
  const SearchOptions options = options_of(config, given_options);
  const GruStack::Packed encoder = layers.encoder.pack(context);
  const SearchModel model{config, layers, options, encoder};
  const PackedDecoder decoder(config, layers, context);
  const Index threads = context.executor().concurrency();
  const bool is_enough = std::ssize(sources) * options.beam >= threads * kLeastRowsOfLane;
  if (threads == 1 || !is_enough) {
    SearchQueue queue(sources, 1);
    SearchLane(model, decoder, context).run(sources, queue, results);
    return results;
  }
  SearchQueue queue(sources, threads);
  runtime::Call call(context, kTranslate);
  call.for_each_task(threads, [&](Index, runtime::Arena&) {
    LaneContext own(context);
    const PackedDecoder shared(decoder, own.context);
    SearchLane(model, shared, own.context).run(sources, queue, results);
  });
  return results;
}

}  // namespace qkv::app
