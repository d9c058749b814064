// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_SEARCH_SEARCH_GROUP_H_
#define QKV_TRANSLATOR_SEARCH_SEARCH_GROUP_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <qkv/app/translator.h>

#include "translator/passes/encoder_pass.h"
#include "translator/passes/source_memory.h"
#include "translator/passes/token_batch.h"
#include "translator/passes/translator_pass.h"
#include "translator/search/continuations.h"
#include "translator/search/hypotheses.h"

namespace qkv::app {

// The public function that errors name.
inline constexpr std::string_view kTranslate = "Translator::translate";

// The model and the options of a search, which all groups and lanes share. `encoder` has the
// encoder's packed weights.
struct SearchModel {
  const TranslatorConfig& config;
  const TranslatorLayers& layers;
  const SearchOptions& options;
  const GruStack::Packed& encoder;
};

// Sources that were encoded together, and their hypotheses. A decoding batch (SearchLane) takes the
// decoder steps of several groups together: each live hypothesis is one row of s_i, c_i, E y_{i-1}.
class SearchGroup {
 public:
  // `source_indices` are the sources' indices in the search, and in its results.
  SearchGroup(const SearchModel& model, TokenBatch sources, std::vector<std::size_t> source_indices,
              Context& context);
  SearchGroup(const SearchGroup&) = delete;
  SearchGroup& operator=(const SearchGroup&) = delete;

  // The number of sources whose translation is not known yet.
  Index waiting() const noexcept { return waiting_; }
  // The number of live hypotheses of all waiting sources.
  Index live() const;

  // Attends to the sources. Gives each live hypothesis one row index, from `first` on: writes its
  // s_{i-1} to that row of `states`, and its c_i and E y_{i-1} to that row of `rows`.
  void begin_step(const View& rows, const View& states, Index first);
  // Continues the hypotheses of source b. `logits` [rows,target_tokens] and `normalisers` [rows]
  // begin with the group's first row.
  template <class T>
  void advance(Index b, const T* logits, std::span<const Normaliser> normalisers,
               const kernels::LogitKernels<T>& by);
  // Ends a step after advance() for all sources: takes the new states s_i from the rows that
  // begin_step() wrote to, and writes each translation that is now complete to its source's element
  // of `results`.
  void end_step(const View& rows, std::vector<Translation>& results);

  Index sources() const noexcept { return static_cast<Index>(hypotheses_.size()); }

 private:
  Hypotheses& of(Index b) { return hypotheses_[static_cast<std::size_t>(b)]; }
  const Hypotheses& of(Index b) const { return hypotheses_[static_cast<std::size_t>(b)]; }
  Index row(Index b) const { return rows_[static_cast<std::size_t>(b)]; }
  Index length(Index b) const { return lengths_[static_cast<std::size_t>(b)]; }
  // Calls f(b) for each source that is not done.
  template <class F>
  void for_each_waiting(const F& f) const;
  // True if a continuation is by <unk> and the sources of <unk> are requested.
  bool needs_unknown_source(std::span<const Continuation> best) const;
  template <class T>
  std::vector<float> attention(Index b) const;
  Index most_live() const;

  const SearchModel& model_;
  std::vector<std::size_t> source_indices_;
  std::vector<std::int32_t> lengths_;
  // The sources' lengths for attention; 0 for a source that is done, so that it costs no more work.
  std::vector<std::int32_t> attended_lengths_;
  EncoderPass encoder_;
  std::optional<SourceMemory> memory_;
  std::vector<Hypotheses> hypotheses_{};
  std::vector<Index> rows_;  // the row of each source's first hypothesis
  Index first_ = 0;          // the group's first row
  Index waiting_ = 0;
  Tensor states_;   // [beam,B,hidden]: s_{i-1}
  Tensor seen_;     // [beam,B,C]: c_i
  Tensor weights_;  // [B,heads,beam,Ts], if weights or the sources of <unk> are requested
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_SEARCH_SEARCH_GROUP_H_
