// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/additive_memory.h>

#include "tests/attention/path_runner.h"
#include "tests/support/compare.h"

// In the backward pass transformed rows of a large batch and their gradients are computed for some
// entries at a time, as in the forward pass (mapped_entries_test.cc). Gradients of arrays that an
// entry does not share are bit-identical with those of a call with the entry alone. A gradient that
// is a sum over the batch is continued from one group of entries to the next, and is bit-identical
// on any number of threads.
namespace qkv::test {
namespace {

constexpr Index kEntries = 11;
constexpr Index kHeads = 2;
constexpr Index kRows = 50;
// The number of entries that are transformed at a time grows with the threads. On kMostThreads all
// entries are transformed at once, except in kWide, where six are.
constexpr int kThreads[] = {1, 2};
constexpr int kMostThreads = 6;

// Kinds of calls with input transforms, so large that not all entries are transformed at once on
// one thread. kWide has so many units that there is memory for eight entries only.
enum class Maps { kAdditive, kWide, kBilinear, kNormAndRotary };
// Whether each entry has keys and values of its own, or all entries share them.
enum class Keys { kOwn, kShared };

struct Batch {
  Batch(Maps which, Keys keys)
      : maps(which),
        shares_keys(keys == Keys::kShared),
        width(is_additive() ? 8 : 512),
        key_heads(which == Maps::kNormAndRotary ? kHeads : 1),
        q(normal({kEntries, kHeads, kRows, width}, 1)),
        k(normal({shares_keys ? 1 : kEntries, key_heads, kRows, width}, 2)),
        v(normal({shares_keys ? 1 : kEntries, key_heads, kRows, 5}, 3)),
        slopes(normal({kEntries, kHeads}, 4)),
        bias(normal({kHeads, 1, kRows}, 5)),
        sinks(normal(Dims(kHeads), 6)),
        query_gain(normal({kHeads, width}, 7)),
        key_gain(normal(Dims(width), 8)),
        dout_memory(normal({kEntries, kHeads, kRows, 10}, 9)),
        dout(slice(dout_memory, 3, 0, 10, 2)),
        lengths(DType::kInt32, Dims(kEntries)),
        parameters(which == Maps::kBilinear ? ScoreKind::kBilinear : ScoreKind::kAdditive,
                   {.H = kHeads, .Dq = width, .Dk = width, .U = which == Maps::kWide ? 1600 : 256},
                   DType::kFloat32) {
    for (Index b = 0; b < kEntries; ++b) {
      lengths.view().at<std::int32_t>({b}) = static_cast<std::int32_t>(kRows - 1 - b);
    }
    // A key and a query without an unmasked pair are NaN: their rows are skipped.
    k.view().at<float>({shares_keys ? 0 : 7, 0, kRows - 1, 3}) = NAN;
    lengths.view().at<std::int32_t>({9}) = 0;
    q.view().at<float>({9, 1, 30, 2}) = NAN;
    if (!is_additive()) return;
    // Makes the exponentials of a query of one entry and of a key of another so large that their
    // powers of two are stored separately.
    q.view().at<float>({5, 1, 48, 0}) = 1e3F;
    if (!shares_keys) k.view().at<float>({10, 0, 20, 0}) = 1e3F;
  }
  Inputs inputs(Index b0, Index b1) const {
    const auto of_keys = [&](const Tensor& x) {
      return shares_keys ? ConstView(x) : slice(ConstView(x), 0, b0, b1);
    };
    return {slice(q, 0, b0, b1), of_keys(k), of_keys(v)};
  }
  Options options(Index b0, Index b1) const {
    Options x;
    if (maps == Maps::kNormAndRotary) {
      x.qk_norm = QkNorm{query_gain, key_gain};
      x.rotary = Rotary{};
    } else {
      x.score = parameters.score();
    }
    x.bias = bias;
    x.masks = {KeyLengths{slice(lengths, 0, b0, b1)}};
    x.alibi = slice(slopes, 0, b0, b1);
    x.sinks = sinks;
    return x;
  }
  // Results and gradients of entries b0 .. b1-1.
  PathResults run(std::string_view path, Index b0, Index b1, int threads = 1,
                  Write write = Write::kOverwrite) const {
    const Options x = options(b0, b1);
    PathRunner runner({std::string(path), kind(), DType::kFloat32}, x.score,
                      Executor::threads(threads));
    runner.write = write;
    return runner(inputs(b0, b1), x, {.out = slice(dout, 0, b0, b1)});
  }
  PathResults all(std::string_view path, int threads, Write write = Write::kOverwrite) const {
    return run(path, 0, kEntries, threads, write);
  }
  ScoreKind kind() const {
    return is_additive()             ? ScoreKind::kAdditive
           : maps == Maps::kBilinear ? ScoreKind::kBilinear
                                     : ScoreKind::kDot;
  }
  bool is_additive() const { return maps == Maps::kAdditive || maps == Maps::kWide; }

  Maps maps;
  bool shares_keys;
  Index width, key_heads;
  Tensor q, k, v, slopes, bias, sinks, query_gain, key_gain, dout_memory;
  ConstView dout;  // every second channel of dout_memory, so that its rows are copied
  Tensor lengths;
  SeededScore parameters;
};

// Calls test(batch, path) for batches of each kind on every fast path.
template <class F>
void for_each_batch(const F& test) {
  for (const Maps maps : {Maps::kAdditive, Maps::kWide, Maps::kBilinear, Maps::kNormAndRotary}) {
    if (is_brief() && maps > Maps::kWide) return;
    for (const Keys keys : {Keys::kOwn, Keys::kShared}) {
      // Unless the run is thorough, each kind of call has one kind of keys.
      const bool is_shared = maps == Maps::kWide || maps == Maps::kBilinear;
      if (!is_thorough() && keys != (is_shared ? Keys::kShared : Keys::kOwn)) continue;
      const Batch batch(maps, keys);
      for (const std::string& path : fast_backward_paths(batch.kind())) {
        SCOPED_TRACE(path + ", maps " + std::to_string(static_cast<int>(maps)) +
                     (batch.shares_keys ? ", shared keys" : ""));
        test(batch, path);
      }
    }
  }
}

TEST(MappedGradients, HaveTheSameBitsHoweverManyEntriesAreMappedAtATime) {
  for_each_batch([](const Batch& batch, const std::string& path) {
    // With kAccumulate, sums are computed in scratch memory and then added to the gradients.
    const Write write = batch.maps == Maps::kWide ? Write::kAccumulate : Write::kOverwrite;
    const PathResults want = batch.all(path, kMostThreads, write);
    for (const int threads : kThreads) {
      if (threads > 1 && !is_thorough()) break;
      expect_same(want, batch.all(path, threads, write), std::to_string(threads) + " threads");
    }
  });
}

// Gradients of arrays that entries share are sums of the gradients of calls with one entry each.
TEST(MappedGradients, OfAnEntryAreThoseThatItHasAlone) {
  for_each_batch([](const Batch& batch, const std::string& path) {
    if (!is_thorough() && !batch.is_additive()) return;
    const PathResults all = batch.all(path, 1);
    std::map<std::string, std::vector<double>> sums;
    for (Index b = 0; b < kEntries; ++b) {
      for (const auto& [name, one] : batch.run(path, b, b + 1)) {
        const Tensor& together = all.at(name);
        if (together.shape()[0] == kEntries) {
          EXPECT_TRUE(same_bits(slice(ConstView(together), 0, b, b + 1), one))
              << name << ", entry " << b;
          continue;
        }
        std::vector<double>& sum = sums[name];
        sum.resize(static_cast<std::size_t>(one.element_count()));
        std::ranges::transform(sum, values_of(one), sum.begin(), std::plus());
      }
    }
    // Shared arrays are the bias, the sinks, and the parameters (wq, wk, v and b) or, in other
    // kinds of calls, at least one array.
    EXPECT_GE(sums.size(), batch.is_additive() ? 6U : 3U);
    for (const auto& [name, sum] : sums) {
      EXPECT_TRUE(compare(name, all.at(name), sum, {1e-4, 1e-4}, path));
    }
  });
}

// An additive memory stores the keys of the whole batch; queries are transformed and all gradients
// computed for some entries at a time.
TEST(MappedGradients, OfAnAdditiveMemoryAreThoseOfACall) {
  for (const Keys keys : {Keys::kOwn, Keys::kShared}) {
    const Batch batch(Maps::kAdditive, keys);
    const Inputs inputs = batch.inputs(0, kEntries);
    const Options options = batch.options(0, kEntries);
    const auto& score = std::get<Additive>(options.score);
    // The keys of a memory must have the batch size of its calls, so shared keys are repeated.
    const ConstView k = broadcast_to(inputs.k, {kEntries, 1, kRows, batch.width});
    for (const std::string& path : fast_backward_paths(ScoreKind::kAdditive)) {
      SCOPED_TRACE(path);
      const PathResults want = batch.all(path, kMostThreads);
      Context context = context_on(path);
      AdditiveMemory memory(k, score, context);
      const auto like = [&](const char* name) {
        const Tensor& x = want.at(name);
        return Tensor(x.dtype(), x.shape());
      };
      Tensor dq = like("dq"), dv = like("dv"), dwq = like("dwq"), dwk = like("dwk");
      Tensor dscore_v = like("dscore_v"), db = like("dscore_b"), dk(DType::kFloat32, k.shape());
      memory.attention_backward(
          {inputs.q, k, inputs.v}, options, {want.at("out"), want.at("lse")}, {.out = batch.dout},
          {.q = dq, .v = dv, .score = AdditiveGradient{dwq, {}, dscore_v, db}});
      memory.key_gradients(dk, dwk);
      for (const auto& [name, got] : {std::pair<const char*, const Tensor*>{"dq", &dq},
                                      {"dv", &dv},
                                      {"dwq", &dwq},
                                      {"dwk", &dwk},
                                      {"dscore_v", &dscore_v},
                                      {"dscore_b", &db}}) {
        EXPECT_TRUE(same_bits(*got, want.at(name))) << name;
      }
      if (!batch.shares_keys) {
        EXPECT_TRUE(same_bits(dk, want.at("dk")));
      }
      if (is_brief()) return;
    }
  }
}

}  // namespace
}  // namespace qkv::test
