// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/paths.h"
#include "tests/support/stops.h"

// Memory of bilinear and additive calls: projected rows and their gradients, nothing of size Tq x
// Tk, let alone Tq x Tk x U. And they can be cancelled, like all others.
namespace qkv::test {
namespace {

// Forward and backward scratch of one head with T queries and T keys.
struct Bytes {
  Index forward, backward;
};

// Every array repeats one row, so its memory does not matter.
struct Repeated {
  explicit Repeated(Index width) : row(static_cast<std::size_t>(width), 0.01F) {}
  ConstView rows(Index count) const {
    const auto width = static_cast<Index>(row.size());
    return {row.data(), {count, width}, {0, 1}};
  }
  Score score(ScoreKind kind) const {
    const auto width = static_cast<Index>(row.size());
    if (kind == ScoreKind::kBilinear) return Bilinear{rows(width)};
    return Additive{rows(width), rows(width), ConstView(row), ConstView(row)};
  }

  std::vector<float> row;
};

Bytes scratch(const std::string& path, ScoreKind kind, Index T, Index width, int threads) {
  const Repeated x(width);
  Context context(Executor::threads(threads));
  context.force_path(path);
  const Plan plan({x.rows(T), x.rows(T), x.rows(T)}, {.score = x.score(kind)}, context);
  EXPECT_EQ(plan.path(), path);
  EXPECT_EQ(plan.backward_path(), path);
  return {static_cast<Index>(plan.scratch_bytes()),
          static_cast<Index>(plan.backward_scratch_bytes())};
}

// Projected queries and keys are 2 U numbers each and their gradients U, plus one flag each and
// what dot products keep; besides these the keys packed for one block of heads, parameters, and the
// threads' workspaces.
TEST(ProjectedPathMemory, IsAFewRowsForEachQueryAndKey) {
  for (const ScoreKind kind : {ScoreKind::kBilinear, ScoreKind::kAdditive}) {
    for (const std::string& path : fast_backward_paths(kind)) {
      constexpr Index kMiB = Index{1} << 20;
      // Not even a byte per pair.
      const Bytes large = scratch(path, kind, 8192, 256, 2);
      EXPECT_LT(large.forward, 64 * kMiB) << path;
      EXPECT_LT(large.backward, 64 * kMiB) << path;
      // And linear, once a thread's workspace has reached its maximum.
      const Bytes once = scratch(path, kind, 16'384, 64, 2);
      const Bytes twice = scratch(path, kind, 32'768, 64, 2);
      const Bytes four = scratch(path, kind, 65'536, 64, 2);
      for (const auto of : {&Bytes::forward, &Bytes::backward}) {
        EXPECT_LE(four.*of - twice.*of, (twice.*of - once.*of) * 2 + 4096) << path;
        EXPECT_LT(four.*of, Index{65'536} * 64 * 4 * 10 + 8 * kMiB) << path;
      }
    }
  }
}

// Decoding: only the prepared keys grow with the number of keys.
TEST(ProjectedPathMemory, OneQueryTakesNoMoreThanItsKeys) {
  for (const std::string& path : fast_backward_paths(ScoreKind::kAdditive)) {
    const Repeated x(64);
    Context context;
    context.force_path(path);
    const Plan plan({x.rows(1), x.rows(20'000), x.rows(20'000)},
                    {.score = x.score(ScoreKind::kAdditive)}, context);
    EXPECT_LT(plan.scratch_bytes(), std::size_t{20'000} * 64 * 4 * 4 + (4U << 20)) << path;
  }
}

// In projections (of q and k, and back to dq) as well as among pairs (v).
TEST(ProjectedPathMemory, AStopFlagEndsALongCall) {
  const Dims shape{2048, 64};
  const Repeated parameters(64);
  TouchedArray q(DType::kFloat32, shape);
  TouchedArray k(DType::kFloat32, shape);
  TouchedArray v(DType::kFloat32, shape);
  TouchedArray out(DType::kFloat32, shape);
  TouchedArray dout(DType::kFloat32, shape);
  TouchedArray dq(DType::kFloat32, shape);
  const Tensor lse(DType::kFloat32, {2048});
  for (const ScoreKind kind : {ScoreKind::kBilinear, ScoreKind::kAdditive}) {
    const Options options{.score = parameters.score(kind)};
    const auto forward = [&](Context& context) {
      attention({q, k, v}, options, {.out = out}, context);
    };
    const auto backward = [&](Context& context) {
      attention_backward({q, k, v}, options, {out, lse}, {.out = dout}, {.q = dq}, context);
    };
    for (const std::string& path : fast_backward_paths(kind)) {
      for (const int threads : {1, 2}) {
        const auto stop_at = [&](TouchedArray& array, const auto& call) {
          Context context{Executor::threads(threads)};
          context.force_path(path);
          return cancelled_midway(array, 10 * threads, call, std::move(context));
        };
        SCOPED_TRACE(path + ", " + std::to_string(threads) + " threads");
        for (TouchedArray* array : {&q, &k, &v, &out}) {
          EXPECT_EQ(stop_at(*array, forward), Cancelled("attention").what());
        }
        for (TouchedArray* array : {&q, &k, &v, &out, &dout, &dq}) {
          EXPECT_EQ(stop_at(*array, backward), Cancelled("attention_backward").what());
        }
      }
    }
  }
}

}  // namespace
}  // namespace qkv::test
