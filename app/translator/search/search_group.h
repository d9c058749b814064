// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_SEARCH_SEARCH_GROUP_H_
#define QKV_TRANSLATOR_SEARCH_SEARCH_GROUP_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <qkv/app/translator.h>

#include "translator/passes/source_memory.h"
#include "translator/passes/token_batch.h"
#include "translator/passes/translator_pass.h"
#include "translator/search/continuations.h"
#include "translator/search/hypotheses.h"

namespace qkv::app {

// The public function, in errors.
inline constexpr std::string_view kTranslate = "Translator::translate";

// What all parts of one call of search() know.
struct SearchModel {
  const TranslatorConfig& config;
  const TranslatorLayers& layers;
  const SearchOptions& options;
  const GruStack::Packed& encoder;
};

// Sources that were encoded together, and their hypotheses. Their decoder's steps are taken with
// those of other groups: a hypothesis that is continued is a row of s_i, c_i, E y_{i-1}.
class SearchGroup {
 public:
  // `places` are where the translations go.
  SearchGroup(const SearchModel& model, TokenBatch sources, std::vector<std::size_t> places,
              Context& context);
  SearchGroup(const SearchGroup&) = delete;
  SearchGroup& operator=(const SearchGroup&) = delete;

  // Sources whose translation is not known yet.
  Index waiting() const noexcept { return waiting_; }
  // All hypotheses that are continued.
  Index live() const;

  // Looks at the sources; writes of each live hypothesis s_{i-1} to a row of `states`, c_i and
  // E y_{i-1} to one of `rows`, from row `first` on.
  void begin_step(const View& rows, const View& states, Index first);
  // Continues source b. `logits` are those of the group's rows, as are their normalisers.
  template <class T>
  void advance(Index b, const T* logits, std::span<const Normaliser> normalisers,
               const kernels::ChoiceKernels<T>& by);
  // After all sources that were not done have been continued: takes the states from the rows that
  // begin_step() wrote to; translations that are known go to their places in `results`.
  void end_step(const View& rows, std::vector<Translation>& results);

  Index sources() const noexcept { return static_cast<Index>(hypotheses_.size()); }

 private:
  Hypotheses& of(Index b) { return hypotheses_[static_cast<std::size_t>(b)]; }
  const Hypotheses& of(Index b) const { return hypotheses_[static_cast<std::size_t>(b)]; }
  Index row(Index b) const { return rows_[static_cast<std::size_t>(b)]; }
  Index length(Index b) const { return lengths_[static_cast<std::size_t>(b)]; }
  // f(b) for each source that is not done.
  template <class F>
  void for_each_waiting(const F& f) const;
  bool sees_unknown(std::span<const Continuation> best) const;
  template <class T>
  std::vector<float> attention(Index b) const;
  Index most_live() const;

  const SearchModel& model_;
  std::vector<std::size_t> places_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int32_t> seen_lengths_;  // 0 for those that are done: nothing is looked at
  EncoderPass encoder_;
  std::optional<SourceMemory> memory_;
  std::vector<Hypotheses> hypotheses_{};
  std::vector<Index> rows_;  // of each source: the row of its first hypothesis
  Index first_ = 0;          // the group's first row
  Index waiting_ = 0;
  Tensor states_;   // [beam,B,hidden]: s_{i-1}
  Tensor seen_;     // [beam,B,C]: c_i
  Tensor weights_;  // [B,heads,beam,Ts], if anything asks for them
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_SEARCH_SEARCH_GROUP_H_
