// SPDX-License-Identifier: Apache-2.0
#include "dense/row_softmax.h"

#include <algorithm>
#include <type_traits>

#include "core/integers.h"
#include "core/storage.h"

namespace qkv::dense {
namespace {

using core::kKeyChunk;
using kernels::kPanel;

constexpr Index kMostTogether = 16;

Index whole_panels(Index n) { return core::round_up(n, kPanel); }

// Loads x_j for begin <= j < end as T.
template <class T, class Stored>
void load(const SoftmaxRow<Stored>& row, Index begin, Index end, T* to) {
  const Stored* const from = row.x + begin * row.x_stride;
  const Index n = end - begin;
  if (row.x_stride == 1) {
    for (Index j = 0; j < n; ++j) to[j] = core::to_accumulator<T>(from[j]);
  } else {
    for (Index j = 0; j < n; ++j) to[j] = core::to_accumulator<T>(from[j * row.x_stride]);
  }
}

// Stores the results for begin <= j < end.
template <class T, class Stored>
void store(const T* from, Index begin, Index end, const SoftmaxRow<Stored>& row) {
  Stored* const to = row.out + begin * row.out_stride;
  const Index n = end - begin;
  for (Index j = 0; j < n; ++j) to[j * row.out_stride] = core::from_accumulator<Stored>(from[j]);
}

template <class Stored>
void store_zeros(Index begin, Index end, const SoftmaxRow<Stored>& row) {
  if (row.out_stride == 1) {
    if (begin < end) std::fill(row.out + begin, row.out + end, Stored());
    return;
  }
  for (Index j = begin; j < end; ++j) row.out[j * row.out_stride] = Stored();
}

// Stores the results e_j / sum for begin <= j < end, where e[0] is e_j for j = begin. May
// overwrite the array e.
template <class T, class Stored>
void put_quotients(const kernels::DotKernels<T>& by, T* e, T sum, Index begin, Index end,
                   const SoftmaxRow<Stored>& row) {
  if constexpr (std::is_same_v<Stored, T>) {
    if (row.out_stride == 1) return by.divide(e, sum, end - begin, row.out + begin);
  }
  by.divide(e, sum, end - begin, e);
  store(e, begin, end, row);
}

// Calls f(j0, j1) for pieces [j0,j1) of [begin,end) that fit into scratch memory.
template <class F>
void for_each_piece(Index begin, Index end, const core::StopPoint& stop, const F& f) {
  constexpr Index kPiece = RowSoftmax<float>::kScratch;
  for (Index j = begin; j < end; j += kPiece) {
    stop();
    f(j, std::min(end, j + kPiece));
  }
}

}  // namespace

template <class Stored>
Index RowSoftmax<Stored>::rows_together(Index count) {
  return std::min(kMostTogether, kScratch / whole_panels(std::max<Index>(count, 1)));
}

template <class Stored>
void RowSoftmax<Stored>::rows(const SoftmaxRow<Stored>* rows, Index n, T* scratch) const {
  Index width = 0;
  for (Index r = 0; r < n; ++r) width = std::max(width, whole_panels(rows[r].length));
  for (Index r = 0; r < n; ++r) {
    T* const x = scratch + r * width;
    load(rows[r], 0, rows[r].length, x);
    std::fill(x + rows[r].length, x + width, -std::numeric_limits<T>::infinity());
  }
  T max[kMostTogether];
  T sum[kMostTogether];
  kernels_.softmax({scratch, width}, n, width, core::kNormalExponent<T>, max, sum);
  for (Index r = 0; r < n; ++r) {
    const SoftmaxRow<Stored>& row = rows[r];
    const Index live = sum[r] == T(0) ? 0 : row.length;
    put_quotients(kernels_, scratch + r * width, sum[r], 0, live, row);
    store_zeros(live, row.count, row);
  }
}

template <class Stored>
void RowSoftmax<Stored>::row(const SoftmaxRow<Stored>& row, T* scratch,
                             const core::StopPoint& stop) const {
  ExpSum<T> total;
  ExpSum<T> sums[kScratch / kKeyChunk];
  for_each_piece(0, row.length, stop, [&](Index begin, Index end) {
    chunk_sums(row, begin, end, sums, scratch, {});
    merge(total, sums, (end - begin + kKeyChunk - 1) / kKeyChunk);
  });
  const Index kept = row.length <= kScratch ? row.length : 0;  // exponentials left in scratch
  for (Index j = 0; j < kept; j += kKeyChunk) {
    const Index end = std::min(kept, j + kKeyChunk);
    if (sums[j / kKeyChunk].max == total.max && total.sum != T(0)) {
      put_quotients(kernels_, scratch + j, total.sum, j, end, row);
    } else {
      put(row, j, end, total, scratch + j, {});
    }
  }
  put(row, kept, row.count, total, scratch, stop);
}

template <class Stored>
void RowSoftmax<Stored>::chunk_sums(const SoftmaxRow<Stored>& row, Index begin, Index end,
                                    ExpSum<T>* sums, T* scratch,
                                    const core::StopPoint& stop) const {
  T max[kScratch / kKeyChunk];
  T sum[kScratch / kKeyChunk];
  for_each_piece(begin, std::min(end, row.length), stop, [&](Index j0, Index j1) {
    load(row, j0, j1, scratch);
    const Index whole = (j1 - j0) / kKeyChunk;
    const Index rest = (j1 - j0) % kKeyChunk;
    if (whole > 0) {
      kernels_.softmax({scratch, kKeyChunk}, whole, kKeyChunk, core::kNormalExponent<T>, max, sum);
    }
    if (rest > 0) {
      T* const x = scratch + whole * kKeyChunk;
      const Index width = whole_panels(rest);
      std::fill(x + rest, x + width, -std::numeric_limits<T>::infinity());
      kernels_.softmax({x, width}, 1, width, core::kNormalExponent<T>, max + whole, sum + whole);
    }
    for (Index c = 0; c < whole + (rest > 0 ? 1 : 0); ++c) *sums++ = {max[c], sum[c]};
  });
}

template <class Stored>
void RowSoftmax<Stored>::merge(ExpSum<T>& total, const ExpSum<T>* sums, Index chunks) const {
  for (Index c = 0; c < chunks; ++c) {
    T total_factor = 0;
    T chunk_factor = 0;
    kernels_.merge(1, {&total.max, &total.sum}, {&sums[c].max, &sums[c].sum}, &total_factor,
                   &chunk_factor);
  }
}

template <class Stored>
void RowSoftmax<Stored>::put(const SoftmaxRow<Stored>& row, Index begin, Index end,
                             const ExpSum<T>& total, T* scratch,
                             const core::StopPoint& stop) const {
  const Index live = total.sum == T(0) ? 0 : row.length;
  for_each_piece(begin, std::min(end, live), stop, [&](Index j0, Index j1) {
    if constexpr (std::is_same_v<Stored, T>) {
      if (row.x_stride == 1 && row.out_stride == 1) {
        kernels_.weights(row.x + j0, j1 - j0, core::kNormalExponent<T>, total.max, total.sum,
                         row.out + j0);
        return;
      }
    }
    load(row, j0, j1, scratch);
    kernels_.weights(scratch, j1 - j0, core::kNormalExponent<T>, total.max, total.sum, scratch);
    store(scratch, j0, j1, row);
  });
  for_each_piece(std::max(begin, live), end, stop,
                 [&](Index j0, Index j1) { store_zeros(j0, j1, row); });
}

template class RowSoftmax<float>;
template class RowSoftmax<double>;
template class RowSoftmax<BFloat16>;
template class RowSoftmax<Float16>;

}  // namespace qkv::dense
