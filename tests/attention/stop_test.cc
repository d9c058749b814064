// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/kv_cache.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/attention/caches.h"
#include "tests/attention/paths.h"
#include "tests/support/stops.h"

// Tests that calls poll their stop flag even where no task runs that would poll it, and that a
// stopped append leaves a cache unchanged.
namespace qkv::test {
namespace {

constexpr Index kMany = Index{1} << 50;  // a loop over so many would never end

// An array whose first axis repeats one element.
template <class T>
View repeated(T& value, DType dtype, const Dims& shape) {
  Dims strides = contiguous_strides(shape);
  strides[0] = 0;
  return View(&value, dtype, shape, strides);
}

struct Endless {
  const char* name;
  Inputs inputs;
  Options options;
};

TEST(Stop, IsHeardWhileArgumentsAreChecked) {
  float number = 1;
  Index zero = 0;
  const auto rows = [&](const Dims& shape) { return repeated(number, DType::kFloat32, shape); };
  const View integers = repeated(zero, DType::kInt64, {kMany});
  const View no_queries = View(&number, DType::kFloat32, {kMany, 0, 1}, {1, 1, 1});
  const Inputs padded{no_queries, rows({kMany, 1, 1}), rows({kMany, 1, 1})};
  const View no_rows = View(&number, DType::kFloat32, {0, 1, 1}, {1, 1, 1});
  const Inputs packed{no_rows, no_rows, no_rows, integers, integers};
  const View by_query = View(&zero, DType::kInt64, {kMany, 0}, {0, 1});
  const Endless calls[] = {{"key_lengths", padded, {.masks = {KeyLengths{integers}}}},
                           {"key_lengths [B,Tq]", padded, {.masks = {KeyLengths{by_query}}}},
                           {"diagonal", padded, {.diagonal = Offsets{integers}}},
                           {"cu_seqlens", packed, {}}};
  const std::atomic<bool> stop{true};
  for (const Endless& call : calls) {
    SCOPED_TRACE(call.name);
    Context context;
    context.set_stop_flag(&stop);
    const View out = call.inputs.cu_seqlens_q.given() ? no_rows : no_queries;
    EXPECT_THROW(attention(call.inputs, call.options, {.out = out}, context), Cancelled);
    EXPECT_THROW(attention_backward(call.inputs, call.options, {}, {}, {.q = out}, context),
                 Cancelled);
    EXPECT_THROW(Plan(call.inputs, call.options, context), Cancelled);
  }
}

// Only the first of many sequences has rows. The flag is set after two runs of tasks, which pack
// the keys and process the queries of this sequence.
TEST(Stop, IsHeardAmongSequencesWithoutRowsOnEveryPath) {
  constexpr Index kRows = 60;  // too many for one task per sequence
  std::vector<Index> starts(5000, kRows);
  starts[0] = 0;
  const Tensor x = normal({kRows, 2, 4}, 1);
  Tensor out(DType::kFloat32, x.shape());
  const Inputs inputs{x, x, x, starts, starts};
  struct Runs {
    std::atomic<bool> stop{false};
    int left = 2;
  } runs;
  const auto run_and_set = [](void* pool, Index count, Executor::Body body, void* state) {
    for (Index n = 0; n < count; ++n) body(state, n);
    Runs& all = *static_cast<Runs*>(pool);
    all.stop = --all.left == 0;
  };
  for (const std::string& path : fast_paths()) {
    Context context{Executor(run_and_set, &runs, 2)};
    context.force_path(path);
    context.set_stop_flag(&runs.stop);
    runs.left = 2;
    runs.stop = false;
    EXPECT_THROW(attention(inputs, {}, {.out = out}, context), Cancelled) << path;
    EXPECT_EQ(runs.left, 0) << path;
  }
}

// A stopped append does not change the cache, and later appends work as if it had not been made.
TEST(Stop, LeavesACacheAsItWas) {
  constexpr Index kB = 3, kG = 2, kD = 32, kE = 64, kT = 1024;
  constexpr Index kBefore = 2 * kT + 300;  // the window has dropped pages, and will drop more
  const Tensor first_k = normal({kB, kG, kBefore, kD}, 1);
  const Tensor first_v = normal({kB, kG, kBefore, kE}, 2);
  const Tensor last_k = normal({kB, kG, 5, kD}, 3), last_v = normal({kB, kG, 5, kE}, 4);
  const std::vector<Index> beams{0, 0, 2};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kQ8}) {
    for (const Index window : {Index{0}, 2 * kT}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + (window > 0 ? ", window" : ""));
      KvCache cache(
          {.dtype = dtype, .B = kB, .G = kG, .D = kD, .E = kE, .page = 16, .window = window});
      cache.append(first_k, first_v);
      cache.reorder(beams);  // two entries share a page that is not full
      KvCache stopped(cache);
      TouchedArray k(DType::kFloat32, {kB, kG, kT, kD}), v(DType::kFloat32, {kB, kG, kT, kE});
      const auto append = [&](Context& context) { stopped.append(k, v, context); };
      EXPECT_EQ(cancelled_by(true, append), Cancelled("KvCache::append").what());
      expect_equal(stopped.contents(), cache.contents());
      // 20 memory pages (80 KB) are more than an append reads of one array between two polls: at
      // most 8192 numbers (32 KB).
      for (TouchedArray* x : {&k, &v}) {
        EXPECT_EQ(cancelled_midway(*x, 20, append), Cancelled("KvCache::append").what());
        expect_equal(stopped.contents(), cache.contents());
      }
      for (KvCache* one : {&cache, &stopped}) {
        one->append(k, v);
        one->append(last_k, last_v);
      }
      expect_equal(stopped.contents(), cache.contents());
    }
  }
}

}  // namespace
}  // namespace qkv::test
