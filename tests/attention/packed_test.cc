// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/attention/paths.h"

// Results and gradients of packed sequences are bit-identical with those of a padded call with key
// lengths.
namespace qkv::test {
namespace {

// Sequences of 5, 0, 17 and 1 queries, and of 9, 4, 530 and 0 keys.
const std::vector<Index> kCuQ{0, 5, 5, 22, 23};
const std::vector<Index> kCuK{0, 9, 13, 543, 543};
constexpr Index kSequences = 4;

Index length(const std::vector<Index>& cu, Index b) {
  const auto n = static_cast<std::size_t>(b);
  return cu[n + 1] - cu[n];
}

// Rows of sequence b of a packed array [sum T,H,C] as [1,H,T,C].
ConstView packed_rows(const ConstView& x, const std::vector<Index>& cu, Index b) {
  const auto n = static_cast<std::size_t>(b);
  const ConstView rows = permute(slice(x, 0, cu[n], cu[n + 1]), {1, 0, 2});
  return broadcast_to(rows, {1, rows.size(0), rows.size(1), rows.size(2)});
}

// Rows of sequence b of a padded array [B,H,T,C], as a view.
View padded_rows(const View& x, Index b, Index rows) {
  return slice(slice(x, 0, b, b + 1), 2, 0, rows);
}

// Converts [sum T,H,C] to [B,H,rows,C], with `filler` in rows past a sequence's end.
Tensor pad(const Tensor& x, const std::vector<Index>& cu, Index rows, float filler) {
  Tensor to(DType::kFloat32, {kSequences, x.size(1), rows, x.size(2)});
  for (float& value : to.values<float>()) value = filler;
  for (Index b = 0; b < kSequences; ++b) {
    if (length(cu, b) > 0) copy(packed_rows(x, cu, b), padded_rows(to.view(), b, length(cu, b)));
  }
  return to;
}

TEST(Packed, EqualsPaddedForwardAndBackward) {
  const Tensor q = normal({23, 4, 6}, 31);
  const Tensor k = normal({543, 2, 6}, 32);
  const Tensor v = normal({543, 2, 3}, 33);
  const Tensor dout = normal({23, 4, 3}, 34);
  const Tensor slopes = normal({4}, 35);
  const Options options{.softcap = 8, .alibi = slopes, .masks = {Causal{}}, .dropout = {0.2, 3}};
  Tensor out(DType::kFloat32, {23, 4, 3});
  Tensor lse(DType::kFloat32, {4, 23});
  Tensor dq(DType::kFloat32, q.shape());
  Tensor dk(DType::kFloat32, k.shape());
  Tensor dv(DType::kFloat32, v.shape());
  const Inputs packed{q, k, v, kCuQ, kCuK};
  attention(packed, options, {.out = out, .lse = lse});
  attention_backward(packed, options, {out, lse}, {.out = dout}, {.q = dq, .k = dk, .v = dv});

  // Keys past the end of a sequence hold NaN, which lengths mask; queries past it have no gradient.
  const Tensor q2 = pad(q, kCuQ, 17, 0.5F);
  const Tensor k2 = pad(k, kCuK, 530, NAN);
  const Tensor v2 = pad(v, kCuK, 530, NAN);
  const Tensor dout2 = pad(dout, kCuQ, 17, 0);
  std::vector<Index> offsets;
  std::vector<Index> lengths;
  for (Index b = 0; b < kSequences; ++b) {
    offsets.push_back(length(kCuK, b) - length(kCuQ, b));
    lengths.push_back(length(kCuK, b));
  }
  Options padded = options;
  padded.diagonal = Offsets{offsets};
  padded.masks.emplace_back(KeyLengths{lengths});
  Tensor out2(DType::kFloat32, {4, 4, 17, 3});
  Tensor lse2(DType::kFloat32, {4, 4, 17});
  Tensor dq2(DType::kFloat32, q2.shape());
  Tensor dk2(DType::kFloat32, k2.shape());
  Tensor dv2(DType::kFloat32, v2.shape());
  const Inputs inputs{q2, k2, v2};
  attention(inputs, padded, {.out = out2, .lse = lse2});
  attention_backward(inputs, padded, {out2, lse2}, {.out = dout2}, {.q = dq2, .k = dk2, .v = dv2});
  int compared = 0;
  for (Index b = 0; b < kSequences; ++b) {
    SCOPED_TRACE(b);
    const Index queries = length(kCuQ, b);
    const Index keys = length(kCuK, b);
    if (queries > 0) {
      EXPECT_TRUE(same_bits(packed_rows(out, kCuQ, b), padded_rows(out2, b, queries)));
      EXPECT_TRUE(same_bits(packed_rows(dq, kCuQ, b), padded_rows(dq2, b, queries)));
      const auto n = static_cast<std::size_t>(b);
      const ConstView packed_lse = slice(ConstView(lse.view()), 1, kCuQ[n], kCuQ[n + 1]);
      EXPECT_TRUE(
          same_bits(broadcast_to(packed_lse, {1, 4, queries}), padded_rows(lse2, b, queries)));
      ++compared;
    }
    if (keys > 0) {
      EXPECT_TRUE(same_bits(packed_rows(dk, kCuK, b), padded_rows(dk2, b, keys)));
      EXPECT_TRUE(same_bits(packed_rows(dv, kCuK, b), padded_rows(dv2, b, keys)));
      ++compared;
    }
  }
  EXPECT_EQ(compared, 6);
}

// Sequences on both sides of the boundaries of blocks, panels and chunks, forward on every path.
TEST(Packed, EqualsPaddedOnEveryPath) {
  const std::vector<Index> cu_q{0, 49, 49, 149, 150};
  const std::vector<Index> cu_k{0, 513, 514, 1544, 1608};
  const Tensor q = normal({150, 4, 17}, 41);
  const Tensor k = normal({1608, 2, 17}, 42);
  const Tensor v = normal({1608, 2, 9}, 43);
  const Tensor q2 = pad(q, cu_q, 100, 0.5F);
  const Tensor k2 = pad(k, cu_k, 1030, NAN);
  const Tensor v2 = pad(v, cu_k, 1030, NAN);
  const Tensor slopes = normal({4}, 44);
  const std::vector<Index> lengths{500, 1, 1030, 33};
  const std::vector<Index> offsets{500, 7, 900, 63};
  const Options options{.softcap = 8,
                        .diagonal = Offsets{offsets},
                        .alibi = slopes,
                        .masks = {Window{600, 40}, KeyLengths{lengths}},
                        .dropout = {0.2, 3}};
  for (const std::string& path : all_paths()) {
    SCOPED_TRACE(path);
    Context context = context_on(path);
    Tensor out(DType::kFloat32, {150, 4, 9});
    Tensor lse(DType::kFloat32, {4, 150});
    attention({q, k, v, cu_q, cu_k}, options, {.out = out, .lse = lse}, context);
    Tensor out2(DType::kFloat32, {4, 4, 100, 9});
    Tensor lse2(DType::kFloat32, {4, 4, 100});
    attention({q2, k2, v2}, options, {.out = out2, .lse = lse2}, context);
    for (Index b : {0, 2, 3}) {
      SCOPED_TRACE(b);
      const auto n = static_cast<std::size_t>(b);
      const Index queries = length(cu_q, b);
      EXPECT_TRUE(same_bits(packed_rows(out, cu_q, b), padded_rows(out2, b, queries)));
      const ConstView packed_lse = slice(ConstView(lse.view()), 1, cu_q[n], cu_q[n + 1]);
      EXPECT_TRUE(
          same_bits(broadcast_to(packed_lse, {1, 4, queries}), padded_rows(lse2, b, queries)));
    }
  }
}

// Writing to cu_seqlens during a call has no effect: a call reads them once, before its tasks.
TEST(Packed, ReadsItsSequencesOnceOnEveryPath) {
  const Tensor q = normal({23, 4, 6}, 31);
  const Tensor k = normal({543, 2, 6}, 32);
  for (const std::string& path : all_paths()) {
    SCOPED_TRACE(path);
    std::vector<Index> cu_q = kCuQ;
    std::vector<Index> cu_k = kCuK;
    bool writes = false;
    const Options options{.masks = {mask_mod([&](At) {
                            if (writes) cu_q[2] = 6, cu_k[2] = 12;
                            return true;
                          })}};
    Context context = context_on(path);
    const auto out = [&] {
      Tensor to(DType::kFloat32, {23, 4, 6});
      attention({q, k, k, cu_q, cu_k}, options, {.out = to}, context);
      return to;
    };
    const Tensor alone = out();
    writes = true;
    const Tensor disturbed = out();
    EXPECT_EQ(cu_k[2], 12);
    EXPECT_TRUE(same_bits(alone, disturbed));
  }
}

// With one long sequence among many empty ones, scratch is sized by the actual number of keys.
TEST(Packed, ScratchFollowsTheKeysNotTheLongestSequence) {
  std::vector<int> lengths(401, 0);
  lengths.back() = 4000;
  const Tensor x = normal({4000, 1, 8}, 1);
  Tensor out(DType::kFloat32, {4000, 1, 8});
  Context context;
  attention({x, x, x, lengths, lengths}, {}, {.out = out}, context);
  EXPECT_LT(context.scratch_bytes(), std::size_t{3} << 20);
}

}  // namespace
}  // namespace qkv::test
