// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_ROWMAPS_ROW_GRADIENTS_H_
#define QKV_ATTENTION_ROWMAPS_ROW_GRADIENTS_H_

#include "attention/backward/gradient_rows.h"
#include "attention/rowmaps/input_rows.h"
#include "core/integers.h"
#include "kernels/gradient_kernels.h"

// Computes the gradients of rows and of the transforms' parameters from the gradients of the
// transformed rows. Rows without an unmasked pair are skipped, whatever they hold. Sums continue
// from one group of batch entries to the next, so that they are bit-identical however many entries
// are taken at a time.
namespace qkv::attn {

using core::GradientResults;
using core::kGradientBlock;

// Gradients of the transformed rows of q or k of some batch entries. `places` computes the index of
// a row in both arrays.
template <class T>
struct MadeGradients {
  const InputRows<T>& input;
  const T* rows = nullptr;             // [rows][width]
  const std::uint8_t* live = nullptr;  // [rows]: whether the row counts as live
  Entries entries;
  RowPlaces places = input.places.from(entries.begin);

  Index width() const { return input.mapped_width(); }
  RowsOf<const T> from(Index b, Index h, Index row) const {
    return {rows + places.of(b, h, row) * width(), width()};
  }
  const std::uint8_t* live_from(Index b, Index h, Index row) const {
    return live + places.of(b, h, row);
  }
};

template <class T>
class RowGradients {
 public:
  RowGradients(const FusedCall<T>& tools, const kernels::GradientKernels<T>& kernels,
               const GradientResults& to)
      : tools_(tools), p_(tools.p), kernels_(kernels), own_(tools.p, to) {}

  // The accumulators. The caller clears them before the first sum and delivers them after the last.
  core::OwnGradients<T>& own() { return own_; }
  std::size_t worker_bytes(Index padded_units) const {
    core::MeasuringArena arena;
    take_worker(arena, padded_units);
    return arena.bytes();
  }

  // Computes the gradients of the rows from those of the transformed rows. `by` is
  // RowProduct::back(), on which pack() has been called.
  void map_back(const MadeGradients<T>& made, const RowProduct<T>& by, const GradientRows<T>& to,
                runtime::Call& call);
  // Adds to the accumulator of a norm's gain: blocks of rows in ascending order, each summed from
  // zero. `sums` is scratch memory of gain_values() elements for the entries of `made`.
  void gain(const MadeGradients<T>& made, const RowProduct<T>& by, T* sums,
            const GradientTarget& to, runtime::Call& call);
  static Index gain_values(const Problem& p, const InputRows<T>& input, Index entries) {
    return input.places.entries(entries) * input.places.heads * gain_blocks(p, input) * input.width;
  }
  // Adds sums over rows of a_r b_c to the accumulator of dW_rc: blocks of rows in ascending order,
  // each summed from zero. `first` says whether a is dy or the input of the projection; b is the
  // other.
  enum class First { kGradients, kInput };
  void parameter(const MadeGradients<T>& made, First first, const GradientTarget& to,
                 runtime::Call& call);
  // Adds sums over rows of dy to the accumulator of db: blocks of rows as in parameter().
  void sum_rows(const MadeGradients<T>& made, const GradientTarget& to, runtime::Call& call);
  // Calls f(b, h, spare, sum) for the heads of the entries, to add their rows of `width` elements
  // to the accumulator `sum`. `spare` is scratch memory of `width` elements.
  template <class F>
  void head_sums(const Entries& entries, const GradientTarget& to, Index width, runtime::Call& call,
                 const F& f);

 private:
  struct Worker {
    T* copy = nullptr;   // [kGradientBlock][width]: rows of an input
    T* made = nullptr;   // [kProductRows][padded width]: gradients
    T* spare = nullptr;  // [transforms][width]: a row for each transform
  };
  template <class AnyArena>
  Worker take_worker(AnyArena& arena, Index padded_units) const {
    const Index width = std::max(p_.Dq, p_.Dk);
    const auto maps = std::max(p_.query_maps.maps().size(), p_.key_maps.maps().size());
    Worker w;
    w.copy = arena.template take<T>(kGradientBlock * width).data();
    w.made = arena.template take<T>(kProductRows * std::max(padded_units, width)).data();
    w.spare = arena.template take<T>(static_cast<Index>(maps) * width).data();
    return w;
  }
  Index parameter_heads(const GradientTarget& to) const {
    return to.own.head_stride == 0 ? 1 : p_.H;
  }
  template <class F>
  void for_each_head(const Entries& entries, const GradientTarget& to, Index head,
                     const F& f) const;
  void block_back(const MadeGradients<T>& made, const RowProduct<T>& by, Index b, Index h,
                  Index row, Index count, const Worker& w, const RowsOf<T>& to,
                  T* dg = nullptr) const;
  // The number of blocks of a head's rows; for packed sequences, each of which starts a block, an
  // upper bound.
  static Index gain_blocks(const Problem& p, const InputRows<T>& input) {
    return input.places.packed ? input.places.rows / kProductRows + p.B + 1
                               : core::divide_up(input.places.rows, kProductRows);
  }
  // The index of the first block of head h of batch entry or sequence b.
  Index first_gain_block(const MadeGradients<T>& made, Index b, Index h) const {
    const InputRows<T>& input = made.input;
    const Index blocks = gain_blocks(p_, input);
    if (!input.places.packed) return ((b - made.entries.begin) * input.places.heads + h) * blocks;
    return h * blocks + input.of_sequence(b).first / kProductRows + b;
  }
  RowsOf<const T> live_rows(const MadeGradients<T>& made, Index b, Index h, Index row, Index count,
                            T* copy) const;

  const FusedCall<T>& tools_;
  const Problem& p_;
  const kernels::GradientKernels<T>& kernels_;
  core::OwnGradients<T> own_;
};

// Computes the gradients of `count` rows from (b, h, row) on. Adds the rows' terms of the gain's
// gradient to `dg`, if given.
template <class T>
void RowGradients<T>::block_back(const MadeGradients<T>& made, const RowProduct<T>& by, Index b,
                                 Index h, Index row, Index count, const Worker& w,
                                 const RowsOf<T>& to, T* dg) const {
  const InputRows<T>& input = made.input;
  const RowsOf<const T> dy = made.from(b, h, row);
  if (by.given()) {
    by.apply(tools_, h, dy, count, to);
  } else {
    for (Index r = 0; r < count; ++r) {
      std::copy_n(dy.data + r * dy.stride, input.width, to.data + r * to.stride);
    }
  }
  const std::uint8_t* live = made.live_from(b, h, row);
  for (Index r = 0; r < count; ++r) {
    if (live[r] == 0) std::fill_n(to.data + r * to.stride, input.width, T(0));
  }
  const auto maps = input.maps.maps();
  if (maps.empty()) return;
  const RowsOf<const T> x = input.plain(b, h, row, count, w.copy);
  for (Index r = 0; r < count; ++r) {
    if (live[r] == 0) continue;
    T* d = to.data + r * to.stride;
    // A masked key may count as live, if all keys of its block are finite. Its gradient must be +0
    // even then, but the transforms would make some zeros -0.
    if (std::all_of(d, d + input.width, [](T value) { return value == T(0); })) {
      std::fill_n(d, input.width, T(0));
      continue;
    }
    reference::change_back(maps, input.at(b, h, row + r), x.data + r * x.stride, input.width, d,
                           w.spare, dg);
  }
}

template <class T>
void RowGradients<T>::map_back(const MadeGradients<T>& made, const RowProduct<T>& by,
                               const GradientRows<T>& to, runtime::Call& call) {
  const Index units = by.padded_units();
  const Index stride = by.given() ? units : made.input.width;
  const RowPlaces& places = made.places;
  if (!to.is_summed()) {
    for_each_row_block(call, places, made.entries,
                       [&](Index b, Index h, Index row, Index count, core::Arena& arena) {
                         const Worker w = take_worker(arena, units);
                         block_back(made, by, b, h, row, count, w, {w.made, stride});
                         to.put(b, h, row, count, {w.made, stride}, call.stop_point());
                       });
    return;
  }
  // Sums over broadcast axes take b, and for each b the heads, in ascending order.
  call.for_each_task(
      core::divide_up(places.rows, kProductRows), [&](Index task, core::Arena& arena) {
        const Worker w = take_worker(arena, units);
        const Index row = task * kProductRows;
        const Index count = std::min(kProductRows, places.rows - row);
        for (Index n = 0; n < places.entries(made.entries.size()) * places.heads; ++n) {
          const Index b = made.entries.begin + n / places.heads;
          const Index h = n % places.heads;
          block_back(made, by, b, h, row, count, w, {w.made, stride});
          for (Index r = 0; r < count; ++r) to.add_to(own_, b, h, row + r, w.made + r * stride);
        }
      });
}

template <class T>
void RowGradients<T>::gain(const MadeGradients<T>& made, const RowProduct<T>& by, T* sums,
                           const GradientTarget& to, runtime::Call& call) {
  const InputRows<T>& input = made.input;
  const RowPlaces& places = made.places;
  const Index width = input.width;
  const Index units = by.padded_units();
  const Index stride = by.given() ? units : width;
  const Index longest = places.packed ? (input.are_keys ? p_.Tk : p_.Tq) : places.rows;
  const Index most = core::divide_up(longest, kProductRows);
  call.for_each_task(made.entries.size() * places.heads * most,
                     [&](Index task, core::Arena& arena) {
                       const Index b = made.entries.begin + task / most / places.heads;
                       const Index h = task / most % places.heads;
                       const Index block = task % most;
                       const SequenceRows all = input.of_sequence(b);
                       const Index count = std::min(kProductRows, all.count - block * kProductRows);
                       if (count <= 0) return;
                       T* dg = sums + (first_gain_block(made, b, h) + block) * width;
                       std::fill_n(dg, width, T(0));
                       const Worker w = take_worker(arena, units);
                       block_back(made, by, places.packed ? 0 : b, h,
                                  all.first + block * kProductRows, count, w, {w.made, stride}, dg);
                     });
  for (Index b = made.entries.begin; b < made.entries.end; ++b) {
    for (Index h = 0; h < places.heads; ++h) {
      T* total = own_.at(to, 0, input.input_head(h), 0, 0);
      const T* from = sums + first_gain_block(made, b, h) * width;
      for (Index n = 0; n < core::divide_up(input.of_sequence(b).count, kProductRows); ++n) {
        tools_.stop();
        kernels_.add(total, from + n * width, width);
      }
    }
  }
}

// Calls f(b, h) for the entries and for the heads that share head `head` of a parameter's gradient,
// in ascending order.
template <class T>
template <class F>
void RowGradients<T>::for_each_head(const Entries& entries, const GradientTarget& to, Index head,
                                    const F& f) const {
  const bool shared = parameter_heads(to) == 1;
  for (Index b = entries.begin; b < entries.end; ++b) {
    for (Index h = shared ? 0 : head; h < (shared ? p_.H : head + 1); ++h) {
      tools_.stop();
      f(b, h);
    }
  }
}

// The input rows of the projection; a row without an unmasked pair is replaced by zeros.
template <class T>
RowsOf<const T> RowGradients<T>::live_rows(const MadeGradients<T>& made, Index b, Index h,
                                           Index row, Index count, T* copy) const {
  const Index width = made.input.width;
  const std::uint8_t* live = made.live_from(b, h, row);
  const RowsOf<const T> x = made.input.changed(b, h, row, count, copy);
  if (std::find(live, live + count, std::uint8_t{0}) == live + count) return x;
  for (Index r = 0; r < count; ++r) {
    T* to = copy + r * width;
    if (live[r] == 0) {
      std::fill_n(to, width, T(0));
    } else if (x.data != copy) {
      std::copy_n(x.data + r * x.stride, width, to);
    }
  }
  return {copy, width};
}

template <class T>
void RowGradients<T>::parameter(const MadeGradients<T>& made, First first, const GradientTarget& to,
                                runtime::Call& call) {
  const bool gradients_first = first == First::kGradients;
  const Index rows = gradients_first ? made.width() : made.input.width;
  const Index columns = gradients_first ? made.input.width : made.width();
  const Index blocks = core::divide_up(rows, kProductRows);
  call.for_each_task(parameter_heads(to) * blocks, [&](Index task, core::Arena& arena) {
    T* copy = take_worker(arena, 0).copy;
    const Index begin = task % blocks * kProductRows;
    const Index end = std::min(rows, begin + kProductRows);
    for_each_head(made.entries, to, task / blocks, [&](Index b, Index h) {
      const auto [first_row, all] = made.input.of_sequence(b);
      for (Index n = first_row; n < first_row + all; n += kGradientBlock) {
        tools_.stop();
        const Index count = std::min(kGradientBlock, first_row + all - n);
        const RowsOf<const T> gradients = made.from(b, h, n);
        const RowsOf<const T> input = live_rows(made, b, h, n, count, copy);
        const RowsOf<const T>& left = gradients_first ? gradients : input;
        const RowsOf<const T>& right = gradients_first ? input : gradients;
        for (Index r = begin; r < end; r += kTileRows) {
          kernels_.transposed_sum({left.data + r, left.stride}, std::min(kTileRows, end - r), right,
                                  count, columns, {own_.at(to, 0, h, r, 0), to.own.row_stride});
        }
      }
    });
  });
}

template <class T>
void RowGradients<T>::sum_rows(const MadeGradients<T>& made, const GradientTarget& to,
                               runtime::Call& call) {
  const Index width = made.width();
  head_sums(made.entries, to, width, call, [&](Index b, Index h, T* block, T* sums) {
    const auto [first, count] = made.input.of_sequence(b);
    for (Index n0 = first; n0 < first + count; n0 += kGradientBlock) {
      tools_.stop();
      std::fill_n(block, width, T(0));
      for (Index n = n0; n < std::min(first + count, n0 + kGradientBlock); ++n) {
        kernels_.add(block, made.from(b, h, n).data, width);
      }
      kernels_.add(sums, block, width);
    }
  });
}

template <class T>
template <class F>
void RowGradients<T>::head_sums(const Entries& entries, const GradientTarget& to, Index width,
                                runtime::Call& call, const F& f) {
  call.for_each_task(parameter_heads(to), [&](Index head, core::Arena& arena) {
    T* spare = arena.template take<T>(width).data();
    for_each_head(entries, to, head,
                  [&](Index b, Index h) { f(b, h, spare, own_.at(to, 0, h, 0, 0)); });
  });
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_ROWMAPS_ROW_GRADIENTS_H_
