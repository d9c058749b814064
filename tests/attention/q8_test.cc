// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/additive_memory.h>
#include <qkv/attention.h>
#include <qkv/kv_cache.h>
#include <qkv/layers.h>
#include <qkv/q8.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/attention/paths.h"
#include "tests/attention/q8_blocks.h"
#include "tests/support/errors.h"

// Calls with q8 keys and values are bit-identical with calls on their numbers as float32, on every
// path.
namespace qkv::test {
namespace {

Tensor numbers_of(const ConstView& blocks) {
  Dims shape = blocks.shape();
  shape[shape.rank() - 1] *= BlockQ8::kNumbers;
  Tensor numbers(DType::kFloat32, shape);
  dequantize_q8(blocks, numbers);
  return numbers;
}

struct Sizes {
  Index B = 2, H = 4, G = 2, Tq = 1, Tk = 530, D = 64, E = 96;
};

struct Call {
  Tensor q, k, v;  // k and v are q8
  explicit Call(const Sizes& s, std::uint64_t seed = 61)
      : q(normal({s.B, s.H, s.Tq, s.D}, seed)),
        k(quantized(normal({s.B, s.G, s.Tk, s.D}, seed + 1))),
        v(quantized(normal({s.B, s.G, s.Tk, s.E}, seed + 2))) {}
};

struct Results {
  std::vector<Tensor> all;  // out, lse, row_max, and with `everything` the others
};

Results results_of(const Inputs& inputs, const Options& options, const std::string& path,
                   bool everything) {
  Context context = context_on(path, 2);
  const ResultShapes shapes = result_shapes(inputs);
  Results x;
  for (const Dims& shape : {shapes.out, shapes.rows, shapes.rows}) {
    x.all.emplace_back(DType::kFloat32, shape);
  }
  if (!everything) {
    attention(inputs, options, {.out = x.all[0], .lse = x.all[1], .row_max = x.all[2]}, context);
    return x;
  }
  x.all.emplace_back(DType::kFloat32, shapes.rows);
  x.all.emplace_back(DType::kFloat32, shapes.keys);
  x.all.emplace_back(DType::kFloat32, shapes.keys);
  for (int n = 0; n < 4; ++n) x.all.emplace_back(DType::kFloat32, shapes.matrix);
  attention(inputs, options,
            {.out = x.all[0],
             .lse = x.all[1],
             .row_max = x.all[2],
             .entropy = x.all[3],
             .column_sums = {x.all[4]},
             .value_sums = x.all[5],
             .weights = {{}, x.all[6]},
             .raw_scores = {{}, x.all[7]},
             .capped_scores = {{}, x.all[8]},
             .masked_scores = {{}, x.all[9]}},
            context);
  return x;
}

void expect_bits_of_float32(const Inputs& inputs, const Options& options, const std::string& path,
                            bool everything = false) {
  SCOPED_TRACE(path);
  const Tensor k = numbers_of(inputs.k), v = numbers_of(inputs.v);
  Inputs plain = inputs;
  plain.k = k;
  plain.v = v;
  const Results got = results_of(inputs, options, path, everything);
  const Results want = results_of(plain, options, path, everything);
  for (std::size_t n = 0; n < got.all.size(); ++n) {
    EXPECT_TRUE(same_bits(got.all[n], want.all[n])) << "result " << n;
  }
}

// For few rows a path reads blocks as they are stored; for more it copies values; for many it also
// packs keys. Widths are one q8 block (32), a block of channels (64) and more. The last key is
// often the first of a panel or chunk.
TEST(Q8Attention, HasTheBitsOfFloat32) {
  for (const std::string& path : all_paths()) {
    for (const Index Tq : {1, 2, 4, 7, 9, 40}) {
      for (const Index width : {32, 64, 96, 128, 256}) {
        const Call x({.Tq = Tq, .Tk = 1 + width * 3, .D = width, .E = 288 - width});
        expect_bits_of_float32({x.q, x.k, x.v}, {}, path);
      }
    }
  }
}

TEST(Q8Attention, EveryOptionHasTheBitsOfFloat32) {
  const std::vector<std::int64_t> lengths{400, 77};
  const Tensor slopes = normal({4}, 64), sinks = normal({4}, 65), offsets = normal({4, 1, 530}, 66);
  Tensor keep(DType::kBool, {2, 1, 1, 530});
  for (Index n = 0; n < 1060; ++n) keep.values<bool>()[static_cast<std::size_t>(n)] = n % 3 != 0;
  std::vector<Options> list(9);
  list[0].masks = {Causal{}};
  list[1].masks = {Window{100, 3}};
  list[2].masks = {KeyLengths{lengths}};
  list[3].masks = {Keep{keep}, Causal{}};
  list[4].alibi = slopes;
  list[5].softcap = 2;
  list[6].sinks = sinks;
  list[7].dropout = {0.3, 9};
  list[8].bias = offsets;
  for (const Index Tq : {1, 4, 40}) {
    const Call x({.Tq = Tq});
    for (const std::string& path : all_paths()) {
      for (std::size_t n = 0; n < list.size(); ++n) {
        SCOPED_TRACE(n);
        expect_bits_of_float32({x.q, x.k, x.v}, list[n], path);
      }
      expect_bits_of_float32({x.q, x.k, x.v}, list[0], path, true);
    }
  }
}

// Tests each kind of score, and for one query also with a norm and a rotation before it.
TEST(Q8Attention, EveryScoreHasTheBitsOfFloat32) {
  for (const Index Tq : {1, 40}) {
    const Call x({.B = 1, .Tq = Tq, .Tk = 270});
    for (const ScoreKind kind : kScoreKinds) {
      const SeededScore score(kind, {.H = 4, .Dq = 64, .Dk = 64, .U = 24}, DType::kFloat32);
      for (const std::string& path : all_paths(kind)) {
        expect_bits_of_float32({x.q, x.k, x.v}, {.score = score.score()}, path);
        if (Tq > 1) continue;
        expect_bits_of_float32({x.q, x.k, x.v},
                               {.qk_norm = QkNorm{}, .rotary = Rotary{}, .score = score.score()},
                               path);
      }
    }
  }
}

// Layouts are [B,T,G,D] with k as a slice of wider rows, keys in reverse, a broadcast batch, one
// head, and packed sequences.
TEST(Q8Attention, AnyLayoutHasTheBitsOfFloat32) {
  const Tensor k = quantized(normal({2, 300, 2, 128}, 71)),
               v = quantized(normal({2, 300, 2, 64}, 72));
  for (const std::string& path : all_paths()) {
    for (const Index Tq : {1, 40}) {
      const Tensor q = normal({2, 4, Tq, 64}, 73);
      const ConstView keys = slice(permute(k.view(), {0, 2, 1, 3}), -1, 1, 3);
      const ConstView values = permute(v.view(), {0, 2, 1, 3});
      expect_bits_of_float32({q, keys, values}, {}, path);
      expect_bits_of_float32({q, slice(keys, 2, 299, -1, -1), slice(values, 2, 299, -1, -1)}, {},
                             path);
      expect_bits_of_float32({q, slice(keys, 0, 1, 2), slice(values, 0, 1, 2)}, {}, path);
      expect_bits_of_float32({slice(q, 1, 0, 1), slice(keys, 1, 0, 1), slice(values, 1, 0, 1)}, {},
                             path);
    }
    const std::vector<std::int32_t> queries{0, 3, 3, 30}, rows{0, 20, 21, 300};
    const Tensor packed = normal({30, 4, 128}, 74);
    expect_bits_of_float32({.q = packed,
                            .k = ConstView(ConstView(k).as<BlockQ8>(), {300, 2, 4}),
                            .v = ConstView(ConstView(v).as<BlockQ8>(), {300, 2, 2}),
                            .cu_seqlens_q = queries,
                            .cu_seqlens_k = rows},
                           {.masks = {Causal{}}}, path);
  }
}

TEST(Q8Attention, PagesHaveTheBitsOfFloat32) {
  const std::vector<std::int64_t> lengths{70, 0, 128};
  const std::vector<std::int32_t> tables{7, 2, 5, 4, 0, 6, 1, 3, 2, 7, 0, 1};  // [3,4]
  for (const Index page : {16, 32}) {
    const Tensor k = quantized(normal({8, page, 2, 96}, 81)),
                 v = quantized(normal({8, page, 2, 32}, 82));
    const std::vector<std::int64_t> shorter{std::min<Index>(64, page * 3), 0, page * 4};
    for (const Index Tq : {1, 5, 40}) {
      const Tensor q = normal({3, 4, Tq, 96}, 83);
      const Inputs inputs{.q = q,
                          .k = k,
                          .v = v,
                          .block_tables = ConstView(tables.data(), {3, 4}),
                          .context_lens = page == 32 ? lengths : shorter};
      for (const std::string& path : all_paths()) {
        expect_bits_of_float32(inputs, {.masks = {Causal{}}}, path);
      }
    }
  }
}

// A row of a call is bit-identical with the row alone, over the keys that it attends to.
TEST(Q8Attention, DecodeHasTheBitsOfPrefill) {
  const Call x({.B = 1, .Tq = 300, .Tk = 300});
  for (const std::string& path : all_paths()) {
    const Options options{.masks = {Causal{}}};
    const Results all = results_of({x.q, x.k, x.v}, options, path, false);
    for (const Index i : {0, 1, 15, 64, 255, 256, 299}) {
      const Results one =
          results_of({slice(x.q.view(), 2, i, i + 1), slice(x.k.view(), 2, 0, i + 1),
                      slice(x.v.view(), 2, 0, i + 1)},
                     options, path, false);
      EXPECT_TRUE(same_bits(one.all[0], slice(all.all[0].view(), 2, i, i + 1))) << path << " " << i;
    }
  }
}

// Scales of NaN or infinity have no effect in masked keys, and make all rows NaN in unmasked ones.
TEST(Q8Attention, NonFiniteScalesCountInUnmaskedKeysOnly) {
  const Float16 nan(std::nanf("")), infinity(INFINITY);
  for (const std::string& path : all_paths()) {
    for (const Index Tq : {1, 3, 4, 40}) {
      Call x({.B = 1, .Tq = Tq, .Tk = 290});
      const std::vector<std::int64_t> lengths{280};
      const Options options{.masks = {KeyLengths{lengths}}};
      const Results clean = results_of({x.q, x.k, x.v}, options, path, false);
      for (Index g = 0; g < 2; ++g) {
        x.k.view().at<BlockQ8>({0, g, 283, 1}).scale = nan;
        x.v.view().at<BlockQ8>({0, g, 289, 0}).scale = infinity;
      }
      const Results masked = results_of({x.q, x.k, x.v}, options, path, false);
      EXPECT_TRUE(same_bits(masked.all[0], clean.all[0])) << path << " " << Tq;
      EXPECT_TRUE(same_bits(masked.all[1], clean.all[1])) << path << " " << Tq;
      const Results live = results_of({x.q, x.k, x.v}, {}, path, false);
      for (const float y : live.all[0].values<float>()) ASSERT_TRUE(std::isnan(y)) << path;
    }
  }
}

// The error compared with float32 keys and values is small: out is a mean of values whose weights
// change with the error of the scores.
TEST(Q8Attention, ErrorAgainstFloat32IsSmall) {
  const Sizes s{.B = 1, .H = 8, .G = 8, .Tq = 16, .Tk = 2048, .D = 128, .E = 128};
  const Tensor k = normal({s.B, s.G, s.Tk, s.D}, 62), v = normal({s.B, s.G, s.Tk, s.E}, 63);
  const Call x(s);
  Tensor want(DType::kFloat32, {1, 8, 16, 128}), got(DType::kFloat32, {1, 8, 16, 128});
  attention({x.q, k, v}, {}, {.out = want});
  attention({x.q, x.k, x.v}, {}, {.out = got});
  double error = 0, size = 0;
  for (std::size_t n = 0; n < want.values<float>().size(); ++n) {
    const double y = want.values<float>()[n];
    error += std::pow(got.values<float>()[n] - y, 2);
    size += y * y;
  }
  RecordProperty("relative_error", std::to_string(std::sqrt(error / size)));
  EXPECT_LT(std::sqrt(error / size), 0.01);
}

TEST(Q8Attention, PlansRepeat) {
  const Call x({}), y({}, 71);
  Context context;
  Plan plan({x.q, x.k, x.v}, {}, context);
  EXPECT_EQ(plan.backward_path(), "");
  Tensor out(DType::kFloat32, {2, 4, 1, 96});
  for (const Call* call : {&x, &x, &y}) {
    plan.run({call->q, call->k, call->v}, {.out = out});
    EXPECT_TRUE(same_bits(
        out, results_of({call->q, call->k, call->v}, {}, std::string(plan.path()), false).all[0]));
  }
}

TEST(Q8Attention, WrongCallsAreErrors) {
  const Call x({.B = 1, .Tk = 20});
  const Inputs good{x.q, x.k, x.v};
  Tensor out(DType::kFloat32, {1, 4, 1, 96}), lse(DType::kFloat32, {1, 4, 1});
  const auto forward = [&](const Inputs& inputs) {
    return error_of([&] { attention(inputs, {}, {.out = out}); });
  };
  EXPECT_EQ(forward(good), "");
  const Tensor f64 = convert(x.q, DType::kFloat64), f16 = convert(x.q, DType::kFloat16);
  const Tensor values = numbers_of(x.v);
  EXPECT_EQ(forward({f64, x.k, x.v}),
            "TypeError: attention: k must be float64 where q is float64, got q8 [1,2,20,2]");
  EXPECT_EQ(forward({f16, x.k, x.v}),
            "TypeError: attention: k must be float16 where q is float16, got q8 [1,2,20,2]");
  EXPECT_EQ(forward({x.q, x.k, values}),
            "TypeError: attention: v must be q8 where k is q8, got float32 [1,2,20,96]");
  EXPECT_EQ(forward({x.k, x.k, x.v}),
            "TypeError: attention: q must be float64, float32, bfloat16 or float16, got q8 "
            "[1,2,20,2]");
  EXPECT_EQ(forward({x.q, x.v, x.v}),
            "attention: k has D = 96 but q has D = 64 (q [1,4,1,64], k [1,2,20,3])");
  EXPECT_EQ(forward({x.q, slice(x.k.view(), -1, 1, -1, -1), x.v}),
            "attention: k must have the blocks of a row next to each other, got q8 [1,2,20,2] with "
            "strides [80,40,2,-1]");
  EXPECT_EQ(error_of([&] {
              attention_backward(good, {}, {out, lse}, {.out = out}, {.q = lse});
            }),
            "TypeError: attention_backward: k is q8, but keys and values of q8 have no backward "
            "pass");
  Context context;
  EXPECT_EQ(error_of([&] {
              Plan(good, {}, context).backward(good, {out, lse}, {.out = out}, {.q = lse});
            }),
            "TypeError: Plan::backward: k is q8, but keys and values of q8 have no backward pass");
  const SeededScore additive(ScoreKind::kAdditive, {.H = 4, .Dq = 64, .Dk = 64, .U = 8},
                             DType::kFloat32);
  EXPECT_EQ(error_of([&] { AdditiveMemory(x.k, std::get<Additive>(additive.score()), context); }),
            "TypeError: AdditiveMemory: k must be float64, float32, bfloat16 or float16, got q8 "
            "[1,2,20,2]");
}

}  // namespace
}  // namespace qkv::test
