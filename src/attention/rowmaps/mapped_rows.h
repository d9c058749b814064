// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_ROWMAPS_MAPPED_ROWS_H_
#define QKV_ATTENTION_ROWMAPS_MAPPED_ROWS_H_

#include "attention/rowmaps/additive_keys.h"
#include "core/integers.h"

// Reduces a score with input transforms (row maps) to a problem that a fused pass can run without
// knowing the transforms: queries and keys are replaced by their transformed rows, each computed
// once, for all or some batch entries at a time. For the additive score these are
//   left_i = exp(2 (Wq q_i + b))     right_j = exp(2 Wk k_j), see attention/rowmaps/additive_keys.h
namespace qkv::attn {

template <class T>
class MappedRows {
 public:
  // `made`, if given, are prepared keys of this problem. `with` tells which rows of a batch entry
  // have to fit in memory and caches: the transformed rows, or also their gradients.
  enum class With { kRows, kRowsAndGradients };
  MappedRows(const Problem& p, kernels::Target target, With with,
             const AdditiveKeys<T>* made = nullptr)
      : p_(p),
        with_(with),
        bytes_of_entry_(bytes_of_entry(p, with)),
        entries_(most_entries()),
        is_additive_(p.product == core::PairProduct::kTanh),
        tools_(p, target),
        inner_(p),
        queries_(InputRows<T>::of_queries(p)),
        keys_(InputRows<T>::of_keys(p)),
        query_product_(queries_.product()),
        key_product_(keys_.product()),
        own_keys_(p, target),
        additive_keys_(made == nullptr ? own_keys_ : *made) {
    inner_.Dq = inner_.Dk = (is_additive_ ? 2 : 1) * queries_.mapped_width();
    if (maps_queries()) inner_.q = rows_operand<const T>(p, queries_.places, inner_.Dq, nullptr);
    if (!maps_keys()) return;
    inner_.k = rows_operand<const T>(p, keys_.places, inner_.Dk, nullptr);
    inner_.G = keys_.places.heads;
    if (is_additive_) scores_ = own_keys_.scores();
  }
  MappedRows(const MappedRows&) = delete;
  MappedRows& operator=(const MappedRows&) = delete;

  // The problem of the transformed rows, its additive scores (null: dot products), and the tools of
  // the original problem.
  const Problem& problem() const { return inner_; }
  const AdditiveScores<T>* scores() const { return is_additive_ ? &scores_ : nullptr; }
  const FusedCall<T>& tools() const { return tools_; }
  const InputRows<T>& queries() const { return queries_; }
  const InputRows<T>& keys() const { return makes_additive_keys() ? own_keys_.keys() : keys_; }

  template <class AnyArena>
  void take(AnyArena& arena);
  std::size_t worker_bytes() const {
    const Index units = std::max(query_product().padded_units(), key_product_.padded_units());
    return std::max(queries_.worker_bytes(units), keys_.worker_bytes(units));
  }
  // Number of batch entries whose rows (see With) fit in about 32 MiB, but at least one; all if
  // sequences are packed or keys are in pages.
  Index entries() const { return entries_; }
  void prepare(runtime::Call& call);
  // Takes as many batch entries at a time as stay in the caches of the threads: computes their
  // transformed rows, which replace those of earlier entries, and then calls f(entries).
  template <class F>
  void for_each_entries(runtime::Call& call, const F& f);

 private:
  bool maps_queries() const { return !queries_.maps.is_identity(); }
  bool maps_keys() const { return !keys_.maps.is_identity(); }
  bool makes_additive_keys() const { return is_additive_ && &additive_keys_ == &own_keys_; }
  const RowProduct<T>& query_product() const {
    return is_additive_ ? additive_keys_.query_product() : query_product_;
  }
  static Index bytes_of_entry(const Problem& p, With with);
  Index most_entries() const;
  Index entries_at_once(int threads) const;
  void make(const Entries& entries, runtime::Call& call);
  void make_additive(const Entries& entries, runtime::Call& call);
  const T* make_plain(const InputRows<T>& input, const RowProduct<T>& by, const Entries& entries,
                      T* to, runtime::Call& call) const;

  const Problem& p_;
  const With with_;
  const Index bytes_of_entry_;
  const Index entries_;
  const bool is_additive_;
  FusedCall<T> tools_;
  Problem inner_;
  InputRows<T> queries_, keys_;
  AdditiveScores<T> scores_;
  RowProduct<T> query_product_, key_product_;  // used if scores are dot products
  AdditiveKeys<T> own_keys_;
  const AdditiveKeys<T>& additive_keys_;
  T* left_ = nullptr;
  T* right_ = nullptr;
  ExponentialForm* forms_ = nullptr;
};

template <class T>
template <class AnyArena>
void MappedRows<T>::take(AnyArena& arena) {
  if (maps_queries()) left_ = arena.template take<T>(queries_.count(entries_) * inner_.Dq).data();
  queries_.angles.take(arena);
  if (is_additive_) {
    forms_ = arena.template take<ExponentialForm>(queries_.count(entries_)).data();
    if (makes_additive_keys()) own_keys_.take(p_, entries_, arena);
    return;
  }
  if (maps_keys()) right_ = arena.template take<T>(keys_.count(entries_) * inner_.Dk).data();
  keys_.angles.take(arena);
  query_product_.take(arena);
  key_product_.take(arena);
}

template <class T>
Index MappedRows<T>::bytes_of_entry(const Problem& p, With with) {
  const Index copies =
      (p.product == core::PairProduct::kTanh ? 2 : 1) + (with == With::kRowsAndGradients ? 1 : 0);
  const auto values = [&](const InputRows<T>& input) {
    const bool are_mapped = !input.maps.is_identity();
    return are_mapped ? input.count(1) * copies * input.mapped_width() : 0;
  };
  const Index all = values(InputRows<T>::of_queries(p)) + values(InputRows<T>::of_keys(p));
  return std::max<Index>(all * static_cast<Index>(sizeof(T)), 1);
}

template <class T>
Index MappedRows<T>::most_entries() const {
  const Index all = std::max<Index>(p_.B, 1);
  if (p_.packed() || p_.paged()) return all;
  constexpr Index kBudget = Index{32} << 20;
  return std::clamp(kBudget / bytes_of_entry_, Index{1}, all);
}

template <class T>
Index MappedRows<T>::entries_at_once(int threads) const {
  if (p_.packed() || p_.paged()) return entries_;
  constexpr Index kBudget = Index{2} << 20;  // per thread
  Index some = threads * kBudget / bytes_of_entry_;
  if (with_ == With::kRows || threads == 1) return std::clamp(some, Index{1}, entries_);
  // In the backward pass a task is a block of keys: with enough entries, each thread gets at least
  // two tasks, and all threads get the same number of tasks.
  const Index blocks = keys_.places.heads * core::divide_up(p_.k_rows, core::kGradientBlock);
  some =
      std::clamp(std::max(some, core::divide_up(Index{2} * threads, blocks)), Index{1}, entries_);
  return some > threads && some < p_.B ? some - some % threads : some;
}

template <class T>
void MappedRows<T>::prepare(runtime::Call& call) {
  take(call.shared());
  tools_.stop = call.stop_point();
  queries_.angles.prepare(tools_, call);
  if (is_additive_) {
    if (makes_additive_keys()) own_keys_.prepare(tools_, call);
    return;
  }
  if (maps_queries()) query_product_.pack(tools_, call);
  if (!maps_keys()) return;
  key_product_.pack(tools_, call);
  keys_.angles.prepare(tools_, call);
}

template <class T>
template <class F>
void MappedRows<T>::for_each_entries(runtime::Call& call, const F& f) {
  const Index some = entries_at_once(call.concurrency());
  for (Index b = 0; b < p_.B; b += some) {
    const Entries entries{b, std::min(b + some, p_.B)};
    make(entries, call);
    f(entries);
  }
}

template <class T>
void MappedRows<T>::make(const Entries& entries, runtime::Call& call) {
  if (is_additive_) return make_additive(entries, call);
  if (maps_queries()) inner_.q.data = make_plain(queries_, query_product_, entries, left_, call);
  if (maps_keys()) inner_.k.data = make_plain(keys_, key_product_, entries, right_, call);
}

// Computes the transformed rows of q or k; returns the address that entry 0 would have.
template <class T>
const T* MappedRows<T>::make_plain(const InputRows<T>& input, const RowProduct<T>& by,
                                   const Entries& entries, T* to, runtime::Call& call) const {
  const Index width = input.mapped_width();
  const RowPlaces places = input.places.from(entries.begin);
  input.make(tools_, by, entries, call,
             [&](Index b, Index h, Index row, Index count, const RowsOf<const T>& made) {
               T* rows = to + places.of(b, h, row) * width;
               for (Index r = 0; r < count; ++r) {
                 std::copy_n(made.data + r * made.stride, width, rows + r * width);
               }
             });
  return origin(to, places, width);
}

template <class T>
void MappedRows<T>::make_additive(const Entries& entries, runtime::Call& call) {
  if (makes_additive_keys()) own_keys_.make(tools_, entries, call);
  const RowPlaces places = queries_.places.from(entries.begin);
  queries_.make(tools_, query_product(), entries, call,
                [&](Index b, Index h, Index row, Index count, const RowsOf<const T>& made) {
                  scores_.put_exponentials(made, count, places.of(b, h, row), left_, forms_);
                });
  inner_.q.data = origin(left_, places, inner_.Dq);
  inner_.k.data = additive_keys_.rows();
  scores_ = additive_keys_.scores();
  scores_.queries = places;
  scores_.query_forms = forms_;
  const Index all = places.count(entries.size());
  scores_.most = std::max(scores_.most, *std::max_element(forms_, forms_ + all));
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_ROWMAPS_MAPPED_ROWS_H_
