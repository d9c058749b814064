// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/additive_memory.h>

#include "tests/attention/paths.h"

// Mapped rows of a large batch are made for some entries at a time, in place of those before. No
// bit of an entry depends on that, and memory does not grow with the batch.
namespace qkv::test {
namespace {

constexpr Index kEntries = 23;  // five at a time on one thread, 15 on three
constexpr Index kHeads = 2;
constexpr Index kRows = 50;

// Calls with row maps, and enough of them in each entry.
enum class Maps { kAdditive, kBilinear, kNormAndRotary };

struct Batch {
  explicit Batch(Maps which)
      : maps(which),
        width(which == Maps::kAdditive ? 8 : 512),
        q(normal({kEntries, kHeads, kRows, width}, 1)),
        k(normal({kEntries, kHeads, kRows, width}, 2)),
        v(normal({kEntries, kHeads, kRows, 5}, 3)),
        slopes(normal({kEntries, kHeads}, 4)),
        lengths(DType::kInt32, Dims(kEntries)),
        offsets(DType::kInt64, Dims(kEntries)),
        parameters(which == Maps::kBilinear ? ScoreKind::kBilinear : ScoreKind::kAdditive,
                   {.H = kHeads, .Dq = width, .Dk = width, .U = 256}, DType::kFloat32) {
    for (Index b = 0; b < kEntries; ++b) {
      lengths.view().at<std::int32_t>({b}) = static_cast<std::int32_t>(kRows - b);
      offsets.view().at<std::int64_t>({b}) = b % 7 - 3;
    }
    // Exponentials of one query alone need their powers.
    if (which == Maps::kAdditive) q.view().at<float>({12, 1, 7, 0}) = 1e3F;
  }
  Inputs inputs(Index b0, Index b1) const {
    return {slice(q, 0, b0, b1), slice(k, 0, b0, b1), slice(v, 0, b0, b1)};
  }
  Options options(Index b0, Index b1) const {
    Options x;
    if (maps == Maps::kNormAndRotary) {
      x.qk_norm = QkNorm{};
      x.rotary = Rotary{};
    } else {
      x.score = parameters.score();
    }
    x.diagonal = Offsets{slice(offsets, 0, b0, b1)};
    x.masks = {Causal{}, KeyLengths{slice(lengths, 0, b0, b1)}};
    x.alibi = slice(slopes, 0, b0, b1);
    return x;
  }

  Maps maps;
  Index width;
  Tensor q, k, v, slopes, lengths, offsets;
  SeededScore parameters;
};

// Results of each entry, those that need the mapped rows again among them.
struct EntryResults {
  explicit EntryResults(Index entries)
      : out(DType::kFloat32, {entries, kHeads, kRows, 5}),
        lse(DType::kFloat32, {entries, kHeads, kRows}),
        weights(DType::kFloat32, {entries, kHeads, kRows, kRows}),
        column_sums(DType::kFloat32, {entries, kHeads, kRows}) {}
  Outputs views() {
    return {.out = out, .lse = lse, .column_sums = View(column_sums), .weights = View(weights)};
  }

  Tensor out, lse, weights, column_sums;
};

void expect_entries(const Batch& batch, const EntryResults& all, const std::string& path) {
  for (Index b = 0; b < kEntries; ++b) {
    EntryResults one(1);
    Context context;
    context.force_path(path);
    attention(batch.inputs(b, b + 1), batch.options(b, b + 1), one.views(), context);
    const auto same = [&](const Tensor& got, const Tensor& want) {
      return same_bits(slice(got, 0, b, b + 1), want);
    };
    EXPECT_TRUE(same(all.out, one.out)) << path << ", entry " << b;
    EXPECT_TRUE(same(all.lse, one.lse)) << path << ", entry " << b;
    EXPECT_TRUE(same(all.weights, one.weights)) << path << ", entry " << b;
    EXPECT_TRUE(same(all.column_sums, one.column_sums)) << path << ", entry " << b;
  }
}

ScoreKind kind_of(Maps maps) {
  switch (maps) {
    case Maps::kAdditive:
      return ScoreKind::kAdditive;
    case Maps::kBilinear:
      return ScoreKind::kBilinear;
    case Maps::kNormAndRotary:
      break;
  }
  return ScoreKind::kDot;
}

TEST(MappedWaves, AnEntryHasTheBitsThatItHasAlone) {
  for (const Maps maps : {Maps::kAdditive, Maps::kBilinear, Maps::kNormAndRotary}) {
    const Batch batch(maps);
    for (const std::string& path : fast_paths(kind_of(maps))) {
      for (const int threads : {1, 3}) {
        EntryResults all(kEntries);
        Context context(Executor::threads(threads));
        context.force_path(path);
        attention(batch.inputs(0, kEntries), batch.options(0, kEntries), all.views(), context);
        expect_entries(batch, all, path);
        if (is_brief()) return;
      }
    }
  }
}

// The keys of the whole batch are there, its queries are mapped some at a time.
TEST(MappedWaves, QueriesOfAnAdditiveMemoryToo) {
  const Batch batch(Maps::kAdditive);
  for (const std::string& path : fast_paths(ScoreKind::kAdditive)) {
    Context context;
    context.force_path(path);
    const Options options = batch.options(0, kEntries);
    AdditiveMemory memory(batch.k, std::get<Additive>(options.score), context);
    EntryResults all(kEntries);
    memory.attention(batch.inputs(0, kEntries), options, all.views());
    expect_entries(batch, all, path);
    if (is_brief()) return;
  }
}

TEST(MappedWaves, MemoryDoesNotGrowWithTheBatch) {
  constexpr Index kBase = 100;
  const Tensor x(DType::kFloat32, {8 * kBase, 100, 16});
  const SeededScore additive(ScoreKind::kAdditive, {.Dq = 16, .Dk = 16, .U = 256}, DType::kFloat32);
  for (const std::string& path : fast_paths(ScoreKind::kAdditive)) {
    const auto bytes = [&](Index entries) {
      Context context;
      context.force_path(path);
      const ConstView some = slice(x, 0, 0, entries);
      return Plan({some, some, some}, {.score = additive.score()}, context).scratch_bytes();
    };
    // What grows are a few numbers for each query and key, which results may need.
    EXPECT_LT(bytes(8 * kBase) - bytes(kBase), std::size_t{7 * kBase} * 200 * 16) << path;
    EXPECT_LT(bytes(8 * kBase), std::size_t{80} << 20) << path;
  }
}

}  // namespace
}  // namespace qkv::test
