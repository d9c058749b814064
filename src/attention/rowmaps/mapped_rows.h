// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_ROWMAPS_MAPPED_ROWS_H_
#define QKV_ATTENTION_ROWMAPS_MAPPED_ROWS_H_

#include "attention/rowmaps/additive_keys.h"

// Turns a score with row maps into a problem that the stages of a fused pass can run without
// knowing the score: queries and keys are replaced by their mapped rows, computed once. For the
// additive score
//   left_i = exp(2 (Wq q_i + b)) by units       right_j: attention/rowmaps/additive_keys.h
namespace qkv::attn {

template <class T>
class MappedRows {
 public:
  // `made`, if given, has been prepared and belongs to this problem's keys.
  MappedRows(const Problem& p, kernels::Target target, const AdditiveKeys<T>* made = nullptr)
      : p_(p),
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

  // The problem of the mapped rows, its scores (null: dot products), and the tools of the original
  // problem.
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
  void prepare(runtime::Call& call);

 private:
  bool maps_queries() const { return !queries_.maps.is_identity(); }
  bool maps_keys() const { return !keys_.maps.is_identity(); }
  bool makes_additive_keys() const { return is_additive_ && &additive_keys_ == &own_keys_; }
  const RowProduct<T>& query_product() const {
    return is_additive_ ? additive_keys_.query_product() : query_product_;
  }
  void prepare_additive(runtime::Call& call);
  void make_plain(const InputRows<T>& input, const RowProduct<T>& by, T* to,
                  runtime::Call& call) const;

  const Problem& p_;
  const bool is_additive_;
  FusedCall<T> tools_;
  Problem inner_;
  InputRows<T> queries_, keys_;
  AdditiveScores<T> scores_;
  RowProduct<T> query_product_, key_product_;  // of dot products
  AdditiveKeys<T> own_keys_;
  const AdditiveKeys<T>& additive_keys_;
  T* left_ = nullptr;
  T* right_ = nullptr;
  Range* ranges_ = nullptr;
};

template <class T>
template <class AnyArena>
void MappedRows<T>::take(AnyArena& arena) {
  if (maps_queries()) left_ = arena.template take<T>(queries_.count() * inner_.Dq).data();
  queries_.turns.take(arena);
  if (is_additive_) {
    ranges_ = arena.template take<Range>(queries_.count()).data();
    if (makes_additive_keys()) own_keys_.take(p_, arena);
    return;
  }
  if (maps_keys()) right_ = arena.template take<T>(keys_.count() * inner_.Dk).data();
  keys_.turns.take(arena);
  query_product_.take(arena);
  key_product_.take(arena);
}

template <class T>
void MappedRows<T>::prepare(runtime::Call& call) {
  take(call.shared());
  tools_.stop = call.stop_point();
  if (maps_queries()) inner_.q.data = left_;
  if (is_additive_) return prepare_additive(call);
  if (maps_queries()) make_plain(queries_, query_product_, left_, call);
  if (!maps_keys()) return;
  make_plain(keys_, key_product_, right_, call);
  inner_.k.data = right_;
}

template <class T>
void MappedRows<T>::make_plain(const InputRows<T>& input, const RowProduct<T>& by, T* to,
                               runtime::Call& call) const {
  const Index width = input.mapped_width();
  by.pack(tools_, call);
  input.turns.prepare(tools_, call);
  input.make(tools_, by, call,
             [&](Index b, Index h, Index row, Index count, const RowsOf<const T>& made) {
               T* rows = to + input.places.of(b, h, row) * width;
               for (Index r = 0; r < count; ++r) {
                 std::copy_n(made.data + r * made.stride, width, rows + r * width);
               }
             });
}

template <class T>
void MappedRows<T>::prepare_additive(runtime::Call& call) {
  if (makes_additive_keys()) own_keys_.prepare(tools_, call);
  const RowPlaces& places = queries_.places;
  queries_.turns.prepare(tools_, call);
  queries_.make(tools_, query_product(), call,
                [&](Index b, Index h, Index row, Index count, const RowsOf<const T>& made) {
                  scores_.put_exponentials(made, count, places.of(b, h, row), left_, ranges_);
                });
  inner_.k.data = additive_keys_.rows();
  scores_ = additive_keys_.scores();
  scores_.queries = places;
  scores_.query_ranges = ranges_;
  scores_.most = std::max(scores_.most, *std::max_element(ranges_, ranges_ + queries_.count()));
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_ROWMAPS_MAPPED_ROWS_H_
