// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_ROWMAPS_ADDITIVE_KEYS_H_
#define QKV_ATTENTION_ROWMAPS_ADDITIVE_KEYS_H_

#include <cmath>

#include "attention/rowmaps/input_rows.h"
#include "attention/tiles/additive_scores.h"

// The part of the additive score that does not depend on queries: its packed parameters, and for
// each key j and query head a row of exponentials, right_j = exp(2 Wk k_j), one for each unit.
namespace qkv::attn {

template <class T>
class AdditiveKeys {
 public:
  AdditiveKeys(const Problem& p, kernels::Target target)
      : keys_(InputRows<T>::of_keys(p)),
        query_product_(InputRows<T>::of_queries(p).product()),
        key_product_(keys_.product()) {
    scores_.kernels = &kernels::additive_kernels<T>(target);
    scores_.units = p.U;
    scores_.queries = RowPlaces::of_queries(p);
    scores_.keys = keys_.places;
  }

  // Takes memory for the rows of `entries` batch entries at a time.
  template <class AnyArena>
  void take(const Problem& p, Index entries, AnyArena& arena);
  std::size_t worker_bytes() const { return keys_.worker_bytes(key_product_.padded_units()); }
  // Packs the parameters. `tools` must be those of the problem given to the constructor.
  void prepare(const FusedCall<T>& tools, runtime::Call& call);
  // Computes the rows of the keys of `entries`. They replace the rows that earlier calls computed.
  void make(const FusedCall<T>& tools, const Entries& entries, runtime::Call& call);

  // The additive scores, of which only the arrays of keys are set, not those of queries.
  const AdditiveScores<T>& scores() const { return scores_; }
  const InputRows<T>& keys() const { return keys_; }
  const RowProduct<T>& query_product() const { return query_product_; }
  // [B,H,k_rows][2 units]; only the rows of the entries of the last make() may be read.
  const T* rows() const { return origin(rows_, scores_.keys, 2 * scores_.units); }

 private:
  void load_parameters(const Problem& p);

  AdditiveScores<T> scores_;
  InputRows<T> keys_;
  RowProduct<T> query_product_, key_product_;
  T* rows_ = nullptr;
  T* v_ = nullptr;
  std::uint8_t* non_finite_v_ = nullptr;
  ExponentialForm* forms_ = nullptr;
};

template <class T>
template <class AnyArena>
void AdditiveKeys<T>::take(const Problem& p, Index entries, AnyArena& arena) {
  const auto take = [&]<class V>(V*& to, Index n) { to = arena.template take<V>(n).data(); };
  query_product_.take(arena);
  key_product_.take(arena);
  keys_.angles.take(arena);
  take(rows_, keys_.count(entries) * 2 * p.U);
  take(v_, p.H * p.U);
  take(non_finite_v_, p.H);
  take(forms_, keys_.count(entries));
  scores_.v = v_;
  scores_.non_finite_v = non_finite_v_;
  scores_.key_forms = forms_;
}

template <class T>
void AdditiveKeys<T>::prepare(const FusedCall<T>& tools, runtime::Call& call) {
  const Problem& p = tools.p;
  load_parameters(p);
  query_product_.pack(tools, call);
  key_product_.pack(tools, call);
  keys_.angles.prepare(tools, call);
}

template <class T>
void AdditiveKeys<T>::make(const FusedCall<T>& tools, const Entries& entries, runtime::Call& call) {
  scores_.keys = keys_.places.from(entries.begin);
  const Index all = keys_.count(entries.size());
  if (tools.p.paged()) std::fill_n(forms_, all, ExponentialForm::kSmall);
  keys_.make(tools, key_product_, entries, call,
             [&](Index b, Index h, Index row, Index count, const RowsOf<const T>& made) {
               scores_.put_exponentials(made, count, scores_.keys.of(b, h, row), rows_, forms_);
             });
  scores_.most = *std::max_element(forms_, forms_ + all);
}

template <class T>
void AdditiveKeys<T>::load_parameters(const Problem& p) {
  for (Index h = 0; h < p.H; ++h) {
    T* v = v_ + h * p.U;
    load_values(p.score_v, core::offset_of(p.score_v, 0, h, 0, 0), p.score_v.col_stride, p.U, v);
    non_finite_v_[h] = static_cast<std::uint8_t>(
        !std::all_of(v, v + p.U, [](T value) { return std::isfinite(value); }));
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_ROWMAPS_ADDITIVE_KEYS_H_
