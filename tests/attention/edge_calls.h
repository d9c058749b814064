// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_EDGE_CALLS_H_
#define QKV_TESTS_ATTENTION_EDGE_CALLS_H_

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/target.h>

#include "dense/target_in_use.h"
#include "tests/attention/path_runner.h"
#include "tests/support/compare.h"

// Small calls on every path, with every score and dtype that it takes.
namespace qkv::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// ---- combinations that are run ("walks") -------------------------------------------------------

// The reason why an implementation is not run with this score and dtype; "" if it is.
inline std::string left_out(const attn::Implementation& x, ScoreKind kind, DType dtype) {
  const auto has = [](const auto& list, const auto& one) {
    return std::find(list.begin(), list.end(), one) != list.end();
  };
  const bool of_bfloat16 = has_bfloat16_products(x.name) || is_bfloat16_reference(x.name);
  if (x.target && !has(cpu_targets(), kernels::name_of(*x.target))) return "not on this CPU";
  if (x.target && dense::unsupported(*x.target) != nullptr) return "not the target asked for";
  if (!has(x.products,
           kind == ScoreKind::kAdditive ? core::PairProduct::kTanh : core::PairProduct::kDot)) {
    return "another path's score";
  }
  if (!has(x.sums, accumulator_of(dtype))) return "another path's sums";
  if (of_bfloat16 && dtype != DType::kBFloat16) return "the loops of another path";
  if (is_brief() && !of_bfloat16 && kind != ScoreKind::kDot && dtype != DType::kFloat32)
    return "brief";
  return "";
}

struct Walks {
  std::vector<Walk> all;
  std::map<std::string, int> skipped;  // number of combinations left out, by the reason
};
inline const Walks& walks() {
  static const Walks walks = [] {
    Walks found;
    for (const attn::Implementation* one : attn::implementations()) {
      for (const ScoreKind kind : kScoreKinds) {
        for (const DType dtype : kReals) {
          const std::string reason = left_out(*one, kind, dtype);
          if (reason.empty()) {
            found.all.push_back({std::string(one->name), kind, dtype});
          } else {
            ++found.skipped[reason];
          }
        }
      }
    }
    return found;
  }();
  return walks;
}

template <class F>
void for_each_walk(const F& test) {
  for (const Walk& walk : walks().all) {
    SCOPED_TRACE(walk.path + ", " + std::string(name_of(walk.kind)) + ", " +
                 std::string(name_of(walk.dtype)));
    test(walk);
  }
}

// Calls test(walk) for dot products of float32 only. This suffices for properties that depend on
// neither the score nor the dtype, since the steps after a score are equal for all.
template <class F>
void for_each_dot_walk(const F& test) {
  for_each_walk([&](const Walk& walk) {
    if (walk.kind == ScoreKind::kDot && walk.dtype == DType::kFloat32) test(walk);
  });
}

// ---- small calls ----------------------------------------------------------------------------

// A small call, and arrays for its options.
struct EdgeCall : SeededCall {
  EdgeCall(const Walk& w, Index queries, Index keys)
      : SeededCall(2, 2, 1, queries, keys, 8, 3, w),
        walk(w),
        Tq(queries),
        Tk(keys),
        run(w, score.score()) {
    rows = {Tq - 1, 0, Tq - 1};
    run.besides = PathRunner::Besides::kEverything;
  }

  // An array, owned by the call, with elements f(row, column). Columns are the last axis; rows
  // count through all other axes.
  template <class F>
  ConstView array(DType dtype, const Dims& shape, const F& f) {
    const View x = arrays.emplace_back(dtype, shape).view();
    const Index width = shape[shape.rank() - 1];
    for (Index n = 0; n < x.element_count(); ++n) {
      core::visit_dtype(dtype, [&]<class T>(T*) {
        x.as<T>()[n] = core::from_accumulator<T>(static_cast<double>(f(n / width, n % width)));
      });
    }
    return x;
  }
  ConstView numbers(double value, const Dims& shape) {
    return array(walk.dtype, shape, [=](Index, Index) { return value; });
  }
  // A key length for query 0, and one for all other queries.
  KeyLengths lengths(Index first, Index others) {
    return {array(DType::kInt64, {2, Tq}, [=](Index, Index i) { return i == 0 ? first : others; })};
  }

  Walk walk;
  Index Tq, Tk;
  std::deque<Tensor> arrays;
  PathRunner run;
};

// Calls test(call) with few queries, for which paths read keys as they are stored, and then with
// many. The second call is left out for the reference, for dtypes other than float32, and in brief
// runs.
template <class F>
void for_each_call(const F& test) {
  for_each_walk([&](const Walk& walk) {
    EdgeCall few(walk, 7, 9);
    test(few);
    if (walk.dtype != DType::kFloat32 || walk.path == kReferencePath || is_brief()) return;
    EdgeCall many(walk, 25, 70);
    test(many);
  });
}

// Expects that the results that `a` and `b` share are bit-identical, except raw and capped scores.
inline void expect_equal(const PathResults& a, const PathResults& b, const char* what) {
  for (const auto& [name, result] : a) {
    if (b.count(name) == 0 || name == "raw_scores" || name == "capped_scores") continue;
    EXPECT_TRUE(same_bits(result, b.at(name))) << what << ": " << name;
  }
}

// Calls f(b * H + h, row, column, value) for each element of a result [B,H,rows] or
// [B,H,rows,columns].
template <class F>
void for_each_element(const Tensor& x, const F& f) {
  const std::vector<double> values = values_of(x);
  const Index heads = x.size(0) * x.size(1);
  const Index width = x.view().rank() == 3 ? 1 : x.size(3);
  const Index rows = static_cast<Index>(values.size()) / heads / width;
  for (Index n = 0; n < static_cast<Index>(values.size()); ++n) {
    f(n / width / rows, n / width % rows, n % width, values[static_cast<std::size_t>(n)]);
  }
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_EDGE_CALLS_H_
