// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/additive_memory.h>

#include "tests/attention/paths.h"
#include "tests/support/compare.h"

// Transformed rows of a large batch are computed for some entries at a time and replace those of
// earlier entries. Results of an entry are bit-identical with those of a call with the entry alone,
// and agree with the reference. Memory does not grow with the batch.
namespace qkv::test {
namespace {

// Five entries are transformed at a time on one thread, 15 on three threads; in bilinear calls ten
// and all.
constexpr Index kEntries = 23;
constexpr Index kHeads = 2;
constexpr Index kRows = 50;

// Kinds of calls with input transforms, so large that not all entries are transformed at once on
// one thread.
enum class Maps { kAdditive, kBilinear, kNormAndRotary };

struct Batch {
  explicit Batch(Maps which)
      : maps(which),
        width(which == Maps::kAdditive ? 8 : 512),
        key_heads(which == Maps::kNormAndRotary ? kHeads : 1),
        q(normal({kEntries, kHeads, kRows, width}, 1)),
        k(normal({kEntries, key_heads, kRows, width}, 2)),
        v(normal({kEntries, key_heads, kRows, 5}, 3)),
        slopes(normal({kEntries, kHeads}, 4)),
        lengths(DType::kInt32, Dims(kEntries)),
        offsets(DType::kInt64, Dims(kEntries)),
        parameters(which == Maps::kBilinear ? ScoreKind::kBilinear : ScoreKind::kAdditive,
                   {.H = kHeads, .Dq = width, .Dk = width, .U = 256}, DType::kFloat32) {
    for (Index b = 0; b < kEntries; ++b) {
      lengths.view().at<std::int32_t>({b}) = static_cast<std::int32_t>(kRows - b);
      offsets.view().at<std::int64_t>({b}) = b % 7 - 3;
    }
    // In entry 12 the exponentials of a query are so large that their powers of two are stored
    // separately, in entry 22 those of a key. In entry 0 those of a query are large but stored
    // whole: the largest projection is 28, below 35 (kernels/additive_kernels.h).
    if (which != Maps::kAdditive) return;
    q.view().at<float>({12, 1, 48, 0}) = 1e3F;
    k.view().at<float>({22, 0, 20, 0}) = 1e3F;
    q.view().at<float>({0, 0, 49, 0}) = 25;
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
  Index width, key_heads;
  Tensor q, k, v, slopes, lengths, offsets;
  SeededScore parameters;
};

// Results of a call with some entries, including results for which the call reads transformed rows
// a second time.
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

// Runs entry b in a call of its own.
EntryResults alone(const Batch& batch, Index b, std::string_view path) {
  EntryResults one(1);
  Context context = context_on(path);
  attention(batch.inputs(b, b + 1), batch.options(b, b + 1), one.views(), context);
  return one;
}

// Calls f(got, want) for each result of entry b, which `all` has at index b and `one` alone.
template <class F>
void for_each_result(const EntryResults& all, Index b, const EntryResults& one, const F& f) {
  SCOPED_TRACE("entry " + std::to_string(b));
  for (Tensor EntryResults::*const result : {&EntryResults::out, &EntryResults::lse,
                                             &EntryResults::weights, &EntryResults::column_sums}) {
    f(slice(ConstView(all.*result), 0, b, b + 1), one.*result);
  }
}

// The results of entries in calls of their own: of every entry on the path of run_alone_on() and,
// since both calls on a path may be wrong, of some entries on the reference.
class Entries {
 public:
  explicit Entries(const Batch& batch) : batch_(batch) {
    for (const Index b : {0, 12, 22}) references_.emplace(b, alone(batch, b, kReferencePath));
  }
  void run_alone_on(std::string_view path) {
    of_path_.clear();
    for (Index b = 0; b < kEntries; ++b) of_path_.push_back(alone(batch_, b, path));
  }
  void compare_with(const EntryResults& all) const {
    for (Index b = 0; b < kEntries; ++b) {
      const EntryResults& one = of_path_[static_cast<std::size_t>(b)];
      for_each_result(all, b, one, [](const ConstView& got, const Tensor& want) {
        EXPECT_TRUE(same_bits(got, want));
      });
    }
    for (const auto& [b, one] : references_) {
      for_each_result(all, b, one, [](const ConstView& got, const Tensor& want) {
        EXPECT_TRUE(compare("against the reference", got, values_of(want), {1e-4, 1e-4}, ""));
      });
    }
  }

 private:
  const Batch& batch_;
  std::vector<EntryResults> of_path_;
  std::map<Index, EntryResults> references_;
};

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

TEST(MappedEntries, AnEntryHasTheBitsThatItHasAlone) {
  for (const Maps maps : {Maps::kAdditive, Maps::kBilinear, Maps::kNormAndRotary}) {
    const Batch batch(maps);
    Entries entries(batch);
    for (const std::string& path : fast_paths(kind_of(maps))) {
      SCOPED_TRACE(path);
      entries.run_alone_on(path);
      for (const int threads : {1, 3}) {
        EntryResults all(kEntries);
        Context context = context_on(path, threads);
        attention(batch.inputs(0, kEntries), batch.options(0, kEntries), all.views(), context);
        entries.compare_with(all);
        if (is_brief()) return;
      }
    }
  }
}

// An additive memory stores the keys of the whole batch; queries are transformed for some entries
// at a time.
TEST(MappedEntries, AQueryOfAnAdditiveMemoryHasTheBitsOfItsEntryAlone) {
  const Batch batch(Maps::kAdditive);
  Entries entries(batch);
  for (const std::string& path : fast_paths(ScoreKind::kAdditive)) {
    SCOPED_TRACE(path);
    entries.run_alone_on(path);
    Context context = context_on(path);
    const Options options = batch.options(0, kEntries);
    AdditiveMemory memory(batch.k, std::get<Additive>(options.score), context);
    EntryResults all(kEntries);
    memory.attention(batch.inputs(0, kEntries), options, all.views());
    entries.compare_with(all);
    if (is_brief()) return;
  }
}

TEST(MappedEntries, MemoryDoesNotGrowWithTheBatch) {
  constexpr Index kBase = 100;
  const Tensor x(DType::kFloat32, {8 * kBase, 100, 16});
  const SeededScore additive(ScoreKind::kAdditive, {.Dq = 16, .Dk = 16, .U = 256}, DType::kFloat32);
  for (const std::string& path : fast_paths(ScoreKind::kAdditive)) {
    const auto bytes = [&](Index entries) {
      Context context = context_on(path);
      const ConstView some = slice(x, 0, 0, entries);
      const Plan plan({some, some, some}, {.score = additive.score()}, context);
      return std::pair(plan.scratch_bytes(), plan.backward_scratch_bytes());
    };
    const auto some = bytes(kBase), more = bytes(8 * kBase);
    // In the forward pass only the memory for results other than out grows: by at most 16 bytes for
    // each query and key.
    EXPECT_LT(more.first - some.first, std::size_t{7 * kBase} * 200 * 16) << path;
    EXPECT_LT(more.first, std::size_t{80} << 20) << path;
    EXPECT_EQ(more.second, some.second) << path;
    EXPECT_LT(more.second, std::size_t{40} << 20) << path;
  }
}

}  // namespace
}  // namespace qkv::test
