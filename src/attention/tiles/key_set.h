// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_KEY_SET_H_
#define QKV_ATTENTION_TILES_KEY_SET_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "attention/tiles/call.h"

namespace qkv::attn {

// A set of keys of one chunk, by their index in the chunk: a bit for each of kKeyChunk keys. The
// forward and backward passes use such sets for the keys whose values are not finite.
class KeySet {
 public:
  bool none() const { return none_; }
  void insert(Index n) {
    words_[n / kPanel] |= std::uint64_t{1} << n % kPanel;
    none_ = false;
  }
  bool contains(Index n) const { return (words_[n / kPanel] >> n % kPanel & 1U) != 0; }
  // The lowest key of the set in begin .. end-1, or `end` if there is none.
  Index next(Index begin, Index end) const {
    while (begin < end) {
      const std::uint64_t rest = words_[begin / kPanel] >> begin % kPanel;
      if (rest != 0) return std::min(end, begin + std::countr_zero(rest));
      begin = (begin / kPanel + 1) * kPanel;
    }
    return end;
  }

 private:
  static_assert(kPanel == 64);
  std::uint64_t words_[kPanelsPerChunk] = {};
  bool none_ = true;
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_KEY_SET_H_
