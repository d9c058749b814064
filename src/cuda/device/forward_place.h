// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_FORWARD_PLACE_H_
#define QKV_CUDA_DEVICE_FORWARD_PLACE_H_

#include "cuda/device/arguments.h"
#include "cuda/device/arrays.h"
#include "cuda/device/forward_shape.h"
#include "cuda/device/words.h"

// The rows and keys of a block of the forward, inspection and gradient kernels.
namespace qkv::cuda {

QKV_DEVICE std::int64_t at_least(std::int64_t x, std::int64_t low) { return x < low ? low : x; }
QKV_DEVICE std::int64_t at_most(std::int64_t x, std::int64_t high) { return x > high ? high : x; }
QKV_DEVICE int smaller(int x, int y) { return x < y ? x : y; }
QKV_DEVICE int larger(int x, int y) { return x > y ? x : y; }

// The rows of queries and keys of one block.
struct BlockPlace {
  int b = 0;
  int h = 0;
  std::int64_t q0 = 0, k0 = 0;  // the sequence's first rows in q and k
  int Tq = 0, Tk = 0;
  int first = 0;              // first query of the block, in the sequence
  std::int64_t diagonal = 0;  // o of j = i + o
};

template <class Shape>
QKV_DEVICE std::uint32_t shared_chunk(std::uint32_t tile, int row, int chunk) {
  // Chunks of 16 bytes are swizzled so that eight rows' chunks lie in different banks.
  return tile + static_cast<std::uint32_t>(row * Shape::kPitch + (chunk ^ (row & 7)) * 16);
}

// The address `count` chunks further in a row, for a chunk whose index has no bit in common with
// `count`.
QKV_DEVICE std::uint32_t other_chunk(std::uint32_t address, int count) {
  return address ^ static_cast<std::uint32_t>(count * 16);
}

// The first row of packed sequence b in q or k, whose `starts` are a.starts_q or a.starts_k. The
// host does not check the numbers in `starts`: whatever they are, rows lie inside of q and k.
QKV_DEVICE int start_of(const DeviceArray& starts, int b, int rows) {
  return static_cast<int>(
      at_most(at_least(integer_at(starts.type, starts.data, b * starts.row), 0), rows));
}

// Sets q0, k0, Tq and Tk of `place` to those of packed sequence place.b.
QKV_DEVICE void find_rows(const ForwardArguments& a, BlockPlace& place) {
  place.q0 = start_of(a.starts_q, place.b, a.Tq);
  place.k0 = start_of(a.starts_k, place.b, a.Tk);
  place.Tq = larger(start_of(a.starts_q, place.b + 1, a.Tq) - static_cast<int>(place.q0), 0);
  place.Tk = larger(start_of(a.starts_k, place.b + 1, a.Tk) - static_cast<int>(place.k0), 0);
}

// Finds the packed sequence that has block `n` of a head, and sets n to the block's index in that
// sequence. `starts` (a.starts_q or a.starts_k) gives the sequences, each of which has blocks of
// kRows rows. Returns false if there is no such block.
template <int kRows>
QKV_DEVICE bool find_sequence(const ForwardArguments& a, const DeviceArray& starts, int limit,
                              int& n, BlockPlace& place) {
  int b = 0;
  for (; b < a.B; ++b) {
    const int rows = start_of(starts, b + 1, limit) - start_of(starts, b, limit);
    const int blocks = (rows + kRows - 1) / kRows;
    if (n < blocks) break;
    n -= larger(blocks, 0);
  }
  if (b == a.B) return false;
  place.b = b;
  find_rows(a, place);
  return true;
}

QKV_DEVICE std::int64_t diagonal_of(const ForwardArguments& a, const BlockPlace& place) {
  switch (a.corner) {
    case Corner::kBottomRight:
      return place.Tk - place.Tq;
    case Corner::kGiven:
      return a.offset;
    case Corner::kArray:
      break;
  }
  return integer_at(a.offsets.type, a.offsets.data, place.b * a.offsets.row);
}

// Finds the place of this block of queries, one of the row_blocks of a head. Returns false if it
// has no queries.
template <class Shape>
QKV_DEVICE bool find_place(const ForwardArguments& a, int row_blocks, BlockPlace& place) {
  const int n = block_index() / row_blocks;
  int block = block_index() % row_blocks;
  place.h = n % a.H;
  if (a.starts_q.data == nullptr) {
    place.b = n / a.H;
    place.Tq = a.Tq;
    place.Tk = a.Tk;
    // With a causal mask the last queries have the most keys: their blocks start first.
    if (a.right != kUnbounded) block = row_blocks - 1 - block;
  } else if (!find_sequence<Shape::kRows>(a, a.starts_q, a.Tq, block, place)) {
    return false;
  }
  place.first = block * Shape::kRows;
  place.diagonal = diagonal_of(a, place);
  return place.first < place.Tq;
}

// Finds the place of this block of keys, one of the a.key_blocks of head place.h of `heads` heads,
// and the block's first key. Returns false if it has no keys.
template <class Shape>
QKV_DEVICE bool find_key_place(const ForwardArguments& a, int heads, BlockPlace& place,
                               int& first_key) {
  const int n = block_index() / a.key_blocks;
  int block = block_index() % a.key_blocks;
  place.h = n % heads;
  if (a.starts_q.data == nullptr) {
    place.b = n / heads;
    place.Tq = a.Tq;
    place.Tk = a.Tk;
  } else if (!find_sequence<Shape::kKeys>(a, a.starts_k, a.Tk, block, place)) {
    return false;
  }
  first_key = block * Shape::kKeys;
  place.diagonal = diagonal_of(a, place);
  return first_key < place.Tk;
}

// The head of k that query head place.h reads, and the head of v that is read with key_head.
QKV_DEVICE int key_head_of(const ForwardArguments& a, const BlockPlace& place) {
  return static_cast<int>(static_cast<std::int64_t>(place.h) * a.G / a.H);
}
QKV_DEVICE int value_head_of(const ForwardArguments& a, int key_head) {
  return static_cast<int>(static_cast<std::int64_t>(key_head) * a.value_heads / a.G);
}

// The index of the sequence's query i among the queries of all heads of all batch entries.
QKV_DEVICE std::int64_t row_number(const ForwardArguments& a, const BlockPlace& place, int i) {
  const int entry = a.starts_q.data == nullptr ? place.b : 0;
  return (static_cast<std::int64_t>(entry) * a.H + place.h) * a.Tq + place.q0 + i;
}

QKV_DEVICE RowStatistics& statistics_of(const ForwardArguments& a, const BlockPlace& place, int i) {
  return a.statistics[row_number(a, place, i)];
}

// The keys begin .. end-1.
struct KeyBounds {
  int begin;
  int end;
};

// The keys that causal mask, window and lengths allow for query i.
QKV_DEVICE KeyBounds bounds_of(const ForwardArguments& a, const BlockPlace& place, int i) {
  if (i >= place.Tq) return {0, 0};
  const std::int64_t diagonal = i + at_least(at_most(place.diagonal, kUnbounded), -kUnbounded);
  std::int64_t begin = 0;
  std::int64_t end = place.Tk;
  if (a.left != kUnbounded) begin = at_least(diagonal - a.left, 0);
  if (a.right != kUnbounded) end = at_most(diagonal + a.right + 1, end);
  QKV_UNROLL
  for (int n = 0; n < kMaxLengths; ++n) {
    const DeviceArray& x = a.lengths[n];
    if (x.data == nullptr) continue;
    end = at_most(integer_at(x.type, x.data, place.b * x.entry + i * x.row), end);
  }
  if (begin >= end) return {0, 0};
  return {static_cast<int>(begin), static_cast<int>(end)};
}

// The keys of a block's queries: no query may attend to keys before first_begin or from last_end
// on; all queries may attend to the keys last_begin .. first_end-1.
struct BlockBounds {
  int first_begin;
  int last_end;
  int last_begin;
  int first_end;
};

// Writes the bounds of each row to shared memory and returns those of the block.
template <class Shape>
QKV_DEVICE BlockBounds find_bounds(const ForwardArguments& a, const BlockPlace& place) {
  constexpr int kNone = 0x7FFFFFFF;
  const int t = thread_index();
  BlockBounds all{kNone, 0, 0, kNone};
  static_assert(Shape::kRows <= Shape::kThreads);
  if (t < Shape::kRows) {
    const KeyBounds x = bounds_of(a, place, place.first + t);
    store_shared(Shape::kBounds + t * 8, static_cast<std::uint32_t>(x.begin));
    store_shared(Shape::kBounds + t * 8 + 4, static_cast<std::uint32_t>(x.end));
    if (x.begin < x.end) all.first_begin = x.begin;
    all.last_end = x.end;
    if (place.first + t < place.Tq) {
      all.last_begin = x.begin;
      all.first_end = x.end;
    }
  }
  QKV_UNROLL
  for (int mask = 1; mask < kLanes; mask *= 2) {
    all.first_begin = smaller(all.first_begin, exchange(all.first_begin, mask));
    all.last_end = larger(all.last_end, exchange(all.last_end, mask));
    all.last_begin = larger(all.last_begin, exchange(all.last_begin, mask));
    all.first_end = smaller(all.first_end, exchange(all.first_end, mask));
  }
  if (t % kLanes == 0) {
    store_shared(Shape::kWarpBounds + t / kLanes * 16,
                 Words4{{static_cast<std::uint32_t>(all.first_begin),
                         static_cast<std::uint32_t>(all.last_end),
                         static_cast<std::uint32_t>(all.last_begin),
                         static_cast<std::uint32_t>(all.first_end)}});
  }
  sync_threads();
  all = {kNone, 0, 0, kNone};
  QKV_UNROLL
  for (int warp = 0; warp < Shape::kWarps; ++warp) {
    const Words4 x = load_shared_words(Shape::kWarpBounds + warp * 16);
    all.first_begin = smaller(all.first_begin, static_cast<int>(x.w[0]));
    all.last_end = larger(all.last_end, static_cast<int>(x.w[1]));
    all.last_begin = larger(all.last_begin, static_cast<int>(x.w[2]));
    all.first_end = smaller(all.first_end, static_cast<int>(x.w[3]));
  }
  return all;
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_FORWARD_PLACE_H_
