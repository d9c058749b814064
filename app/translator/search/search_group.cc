// SPDX-License-Identifier: Apache-2.0
#include "translator/search/search_group.h"

#include <algorithm>
#include <utility>

#include <qkv/app/vocabulary.h>

#include "core/storage.h"
#include "translator/passes/values.h"

namespace qkv::app {

SearchGroup::SearchGroup(const SearchModel& model, TokenBatch sources,
                         std::vector<std::size_t> source_indices, Context& context)
    : model_(model),
      source_indices_(std::move(source_indices)),
      lengths_(sources.lengths),
      attended_lengths_(sources.lengths),
      encoder_(model.config, model.layers, std::move(sources), context),
      rows_(lengths_.size()),
      waiting_(std::ssize(lengths_)) {
  const auto& [config, layers, options, encoder] = model;
  const Index B = waiting_;
  const Index K = options.beam;
  encoder_.evaluate(encoder);
  EncodedSources encoded = encoder_.result();
  encoded.lengths = attended_lengths_;
  memory_.emplace(config, layers, encoded, 0, context);
  states_ = Tensor(config.dtype, {K, B, config.hidden});
  seen_ = Tensor(config.dtype, {K, B, context_width(config)});
  encoder_.start(entry(states_.view(), 0));
  if (options.attention || options.unknown == UnknownSources::kFound) {
    weights_ = Tensor(config.dtype, {B, head_count(config), K, encoded.states.size(1)});
  }
  for (const std::int32_t length : lengths_) {
    const Index most = options.most_tokens > 0 ? options.most_tokens : 2 * Index{length} + 10;
    hypotheses_.emplace_back(options, most);
  }
}

template <class F>
void SearchGroup::for_each_waiting(const F& f) const {
  for (Index b = 0; b < sources(); ++b) {
    if (!of(b).done()) f(b);
  }
}

Index SearchGroup::live() const {
  Index count = 0;
  for_each_waiting([&](Index b) { count += of(b).live(); });
  return count;
}

// The largest number of live hypotheses of a waiting source.
Index SearchGroup::most_live() const {
  Index most = 0;
  for_each_waiting([&](Index b) { most = std::max(most, of(b).live()); });
  return most;
}

void SearchGroup::begin_step(const View& rows, const View& states, Index first) {
  const Index H = model_.config.hidden;
  const Index C = context_width(model_.config);
  const Index E = model_.config.embedding;
  const Index K = most_live();
  memory_->look(slice(ConstView(states_), 0, 0, K), slice(seen_, 0, 0, K),
                weights_.given() ? slice(weights_, 2, 0, K) : View());
  first_ = first;
  Index r = first;
  core::dispatch(model_.config.dtype, [&]<class T>() {
    const T* const table = model_.layers.target_embedding.parameters().weight.values<T>().data();
    for_each_waiting([&](Index b) {
      rows_[static_cast<std::size_t>(b)] = r;
      for (Index k = 0; k < of(b).live(); ++k, ++r) {
        T* const to = rows.as<T>() + r * rows.stride(0) + H;
        std::copy_n(row_at<const T>(ConstView(states_), k, b), H,
                    states.as<T>() + r * states.stride(0));
        std::copy_n(row_at<const T>(ConstView(seen_), k, b), C, to);
        std::copy_n(table + of(b).last_token(k) * E, E, to + C);
      }
    });
  });
}

bool SearchGroup::needs_unknown_source(std::span<const Continuation> best) const {
  return model_.options.unknown == UnknownSources::kFound &&
         std::ranges::find(best, Vocabulary::kUnknown, &Continuation::token) != best.end();
}

// The attention weights of the live hypotheses of source b [live,Ts of b]: the means over heads.
template <class T>
std::vector<float> SearchGroup::attention(Index b) const {
  const Index heads = weights_.size(1);
  const Index K = weights_.size(2);
  const Index Ts = weights_.size(3);
  const T* const all = weights_.values<T>().data();
  std::vector<float> result;
  for (Index k = 0; k < of(b).live(); ++k) {
    for (Index j = 0; j < length(b); ++j) {
      T sum = 0;
      for (Index h = 0; h < heads; ++h) sum += all[((b * heads + h) * K + k) * Ts + j];
      result.push_back(static_cast<float>(sum / static_cast<T>(heads)));
    }
  }
  return result;
}

template <class T>
void SearchGroup::advance(Index b, const T* logits, std::span<const Normaliser> normalisers,
                          const kernels::LogitKernels<T>& by) {
  if (of(b).done()) return;
  const Index V = model_.config.target_tokens;
  std::vector<ContinuedRow<T>> rows;
  for (Index k = 0; k < of(b).live(); ++k) {
    const Index r = row(b) - first_ + k;
    rows.push_back(
        {logits + r * V, normalisers[static_cast<std::size_t>(r)], of(b).log_probability(k)});
  }
  const std::vector<Continuation> best =
      likeliest<T>(rows, V, Hypotheses::continuations(model_.options), by);
  const bool needs_weights = model_.options.attention || needs_unknown_source(best);
  of(b).advance(best, needs_weights ? attention<T>(b) : std::vector<float>(), length(b));
}

void SearchGroup::end_step(const View& rows, std::vector<Translation>& results) {
  core::dispatch(model_.config.dtype, [&]<class T>() {
    for (Index b = 0; b < sources(); ++b) {
      std::int32_t& attended = attended_lengths_[static_cast<std::size_t>(b)];
      if (of(b).done() && attended > 0) {
        results[source_indices_[static_cast<std::size_t>(b)]] = of(b).best(length(b));
        attended = 0;
        --waiting_;
      }
    }
    for_each_waiting([&](Index b) {
      for (Index k = 0; k < of(b).live(); ++k) {
        std::copy_n(rows.as<T>() + (row(b) + of(b).parent(k)) * rows.stride(0),
                    model_.config.hidden, row_at<T>(states_.view(), k, b));
      }
    });
  });
}

template void SearchGroup::advance(Index, const float*, std::span<const Normaliser>,
                                   const kernels::LogitKernels<float>&);
template void SearchGroup::advance(Index, const double*, std::span<const Normaliser>,
                                   const kernels::LogitKernels<double>&);

}  // namespace qkv::app
