// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_ROWMAPS_MAPPED_FORWARD_H_
#define QKV_ATTENTION_ROWMAPS_MAPPED_FORWARD_H_

#include "attention/forward/forward.h"
#include "attention/rowmaps/mapped_rows.h"

// The forward pass of a score with input transforms (row maps): it transforms the rows of some
// batch entries, runs the steps of FusedForward on them, and continues with the next entries, so
// that transformed rows stay in the caches.
namespace qkv::attn {

template <class T>
class MappedForward {
 public:
  // `made`: prepared keys, or null; see attention/rowmaps/mapped_rows.h.
  MappedForward(const Problem& p, const Results& to, kernels::Target target,
                const AdditiveKeys<T>* made = nullptr)
      : rows_(p, target, MappedRows<T>::With::kRows, made),
        stages_(rows_.problem(), to, target, rows_.scores(), rows_.entries() * rows_.problem().G) {}

  template <class AnyArena>
  void take_shared(AnyArena& arena) {
    rows_.take(arena);
    stages_.take_shared(arena);
  }
  std::size_t worker_bytes() const {
    return std::max(rows_.worker_bytes(), stages_.worker_bytes());
  }
  void run(runtime::Call& call) {
    rows_.prepare(call);
    stages_.start(call);
    const Index heads = rows_.problem().G;
    rows_.for_each_entries(call, [&](const Entries& entries) {
      stages_.run_units(call, entries.begin * heads, entries.end * heads);
    });
  }

 private:
  MappedRows<T> rows_;
  FusedForward<T> stages_;
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_ROWMAPS_MAPPED_FORWARD_H_
