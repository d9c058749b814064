// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_SEARCH_SEARCH_LANE_H_
#define QKV_TRANSLATOR_SEARCH_SEARCH_LANE_H_

#include <cstddef>
#include <list>
#include <mutex>
#include <span>
#include <vector>

#include "translator/passes/packed_decoder.h"
#include "translator/search/search_group.h"

namespace qkv::app {

// The sources of a search that have not been taken, longest first: sources taken together then have
// similar lengths, and little work is left when the first decoding batch finds the queue empty.
class SearchQueue {
 public:
  SearchQueue(std::span<const TokenList> sources, Index lanes);

  // Takes at most `most` sources; at least one unless the queue is empty. Returns their indices.
  std::vector<std::size_t> take(Index most);

 private:
  std::span<const TokenList> sources_;
  Index lanes_;
  std::mutex mutex_{};
  std::vector<std::size_t> order_;
  std::size_t next_ = 0;
};

// A decoding batch ("lane"): takes sources from the queue while it has room, and runs each decoder
// step for all its hypotheses together. Several lanes run in parallel, each on a context of its
// own; they share the model, the packed weights and the queue.
class SearchLane {
 public:
  SearchLane(const SearchModel& model, const PackedDecoder& decoder, Context& context);

  // Translates sources until the queue is empty. Writes the translation of sources[n] to
  // results[n].
  void run(std::span<const TokenList> sources, SearchQueue& queue,
           std::vector<Translation>& results);

 private:
  void fill(std::span<const TokenList> sources, SearchQueue& queue);
  void step();
  void read_out(Index count);
  template <class T>
  void choose(Index count);

  const SearchModel& model_;
  const PackedDecoder& decoder_;
  Context& context_;
  std::list<SearchGroup> groups_{};
  std::vector<Index> first_rows_{};  // first row of each group
  std::vector<Normaliser> normalisers_{};
  // [room,hidden+C+embedding], a row for each hypothesis: the decoder state s_i, the context vector
  // c_i, and the embedding E y_{i-1} of the previous token.
  Tensor rows_;
  Tensor states_;   // [room,hidden]: s_{i-1}
  Tensor pairs_;    // [room, 2 readout_width()]: the readout layer's output
  Tensor largest_;  // [room, readout_width()]: the readouts t_i
  Tensor logits_;   // [room, target_tokens]
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_SEARCH_SEARCH_LANE_H_
