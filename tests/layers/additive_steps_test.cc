// SPDX-License-Identifier: Apache-2.0
// Tests the steps of a decoder with additive attention against attention() and its gradients.
#include "layers/additive_steps.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/target.h>

#include "tests/layers/support.h"
#include "tests/support/asked_target.h"
#include "tests/support/paths.h"

namespace qkv::test {
namespace {

// By default Ts exceeds a panel, U is no multiple of kUnitLanes, and B exceeds kSourcesPerTask.
struct Sizes {
  Index B = 11, Ts = 70, Dq = 6, Dk = 5, E = 9, U = 21, steps = 3;
};

// The factors of the random keys and queries (s).
struct Scales {
  double keys = 1, s = 1;
};

struct Task {
  explicit Task(DType dtype, Scales scales = {}, Sizes sizes = {})
      : n(sizes),
        layer(n.Dq, n.Dk, n.U, 0, dtype),
        keys(random_tensor(dtype, {n.B, n.Ts, n.Dk}, 1)),
        values(random_tensor(dtype, {n.B, n.Ts, n.E}, 2)),
        s(random_tensor(dtype, {n.steps, n.B, n.Dq}, 3)),
        d_out(random_tensor(dtype, {n.steps, n.B, n.E}, 4)) {
    std::uint64_t seed = 5;
    for_each_parameter(layer, [&](const auto& p) { fill_normal(p.value, seed++); });
    const auto multiply = [&](const View& x, double scale) {
      for (Index i = 0; i < x.element_count(); ++i) {
        core::store(dtype, x.data(), i, scale * core::load<double>(dtype, x.data(), i));
      }
    };
    multiply(keys, scales.keys);
    multiply(s, scales.s);
    for (Index b = 0; b < n.B; ++b)
      lengths.push_back(static_cast<std::int32_t>(n.Ts - 6 * b % n.Ts));
    lengths[2] = 1;
    lengths[3] = 64;
    lengths[4] = 0;
    // Rows after a source's end must not be read.
    for (Index b = 0; b < n.B; ++b) {
      for (Tensor* tensor : {&keys, &values}) {
        const Index width = tensor->size(2);
        for (Index i = (b * n.Ts + lengths[static_cast<std::size_t>(b)]) * width;
             i < (b + 1) * n.Ts * width; ++i) {
          core::store(dtype, tensor->view().data(), i, std::numeric_limits<double>::quiet_NaN());
        }
      }
    }
  }
  ConstView length_view() const { return {lengths.data(), {n.B}}; }

  Sizes n;
  AdditiveAttention layer;
  Tensor keys, values, s, d_out;
  std::vector<std::int32_t> lengths;
};

struct Results {
  Tensor out, ds, d_values, d_keys;
  AdditiveAttention::Parameters parameters;

  std::vector<std::uint8_t> bytes() const {
    std::vector<std::uint8_t> all;
    for (const Tensor* tensor :
         {&out, &ds, &d_values, &d_keys, &parameters.w_q, &parameters.w_k, &parameters.v}) {
      const auto bytes = bytes_of(*tensor);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }
};

// Returns random ds, d_values, d_keys and gradients of parameters, as they are before the calls.
Results initial_results(const Task& x) {
  const DType dtype = x.keys.dtype();
  Results r{Tensor(dtype, x.d_out.shape()), random_tensor(dtype, x.s.shape(), 20),
            random_tensor(dtype, x.values.shape(), 21), random_tensor(dtype, x.keys.shape(), 22),
            x.layer.zero_gradients()};
  // The calls add to ds and d_keys, and overwrite d_values and the gradients of parameters.
  for (Tensor* gradient : {&r.parameters.w_q, &r.parameters.w_k, &r.parameters.v}) {
    fill_normal(*gradient, 23);
  }
  return r;
}

Results by_steps(const Task& x, Context& context) {
  Results r = initial_results(x);
  layers::AdditiveSteps steps(x.layer, {x.keys, x.values, x.length_view()}, x.n.steps, context);
  const auto at = [](const auto& view, Index t) { return slice(view, 0, t, t + 1); };
  for (Index t = 0; t < x.n.steps; ++t) {
    steps.attend(t, at(ConstView(x.s), t), at(r.out.view(), t));
  }
  for (Index t = x.n.steps - 1; t >= 0; --t) {
    steps.undo(t, at(ConstView(x.d_out), t), at(r.ds.view(), t));
  }
  steps.finish({x.s, x.d_out}, r.d_values, r.d_keys, r.parameters);
  return r;
}

// Computes all steps as the queries of one call of attention().
Results by_attention(const Task& x) {
  Results r = initial_results(x);
  const auto queries = [](const auto& view) { return permute(view, {1, 0, 2}); };
  const auto& p = x.layer.parameters();
  const Inputs inputs{queries(ConstView(x.s)), x.keys, x.values};
  const Options options{.score = Additive{.wq = p.w_q, .wk = p.w_k, .v = p.v},
                        .masks = {KeyLengths{x.length_view()}}};
  Tensor lse(x.keys.dtype(), {x.n.B, x.n.steps});
  attention(inputs, options, {.out = queries(r.out.view()), .lse = lse});
  const Saved saved{queries(ConstView(r.out)), lse};
  const OutputGradients from{.out = queries(ConstView(x.d_out))};
  attention_backward(inputs, options, saved, from,
                     {.v = r.d_values,
                      .score = AdditiveGradient{
                          .wq = r.parameters.w_q, .wk = r.parameters.w_k, .v = r.parameters.v}});
  attention_backward(inputs, options, saved, from,
                     {.q = queries(r.ds.view()), .k = r.d_keys, .write = Write::kAccumulate});
  return r;
}

void expect_close(const Results& got, const Results& want, double bound) {
  const auto compare_one = [&](const char* name, const Tensor& a, const Tensor& b) {
    double most = 0;
    double size = 0;
    for (Index i = 0; i < a.element_count(); ++i) {
      const double x = core::load<double>(a.dtype(), ConstView(a).data(), i);
      const double y = core::load<double>(b.dtype(), ConstView(b).data(), i);
      size = std::max(size, std::fabs(y));
      most = std::max(most,
                      std::isnan(x) ? std::numeric_limits<double>::infinity() : std::fabs(x - y));
    }
    EXPECT_GT(size, 0.01) << name;
    EXPECT_LE(most, bound * size) << name;
  };
  compare_one("out", got.out, want.out);
  compare_one("ds", got.ds, want.ds);
  compare_one("d_values", got.d_values, want.d_values);
  compare_one("d_keys", got.d_keys, want.d_keys);
  compare_one("w_q", got.parameters.w_q, want.parameters.w_q);
  compare_one("w_k", got.parameters.w_k, want.parameters.w_k);
  compare_one("v", got.parameters.v, want.parameters.v);
}

TEST(AdditiveSteps, AreAttentionOnEveryPath) {
  for (const std::string_view target : cpu_targets()) {
    if (!asked_target().empty() && asked_target() != target) continue;
    const std::string path = (target == "reference" ? "" : "additive/") + std::string(target);
    SCOPED_TRACE(path);
    Context context = context_on(path);
    expect_close(by_steps(Task(kF64), context), by_attention(Task(kF64)), 1e-12);
    expect_close(by_steps(Task(kF32), context), by_attention(Task(kF64)), 2e-5);
  }
}

// In float64, exp(2a) has a separate power if |a| > 330: here for keys, for queries, or for both.
TEST(AdditiveSteps, LargeNumbersHavePowers) {
  Context context;
  for (const Scales& scales : {Scales{300, 1}, Scales{1, 300}, Scales{300, 300}}) {
    SCOPED_TRACE(testing::Message() << "keys " << scales.keys << ", s " << scales.s);
    const Task x(kF64, scales);
    expect_close(by_steps(x, context), by_attention(x), 1e-9);
  }
}

TEST(AdditiveSteps, ThreadsChangeNoBit) {
  Sizes sizes;
  sizes.B = 90;  // many tasks
  sizes.steps = 40;
  for (const DType dtype : {kF32, kF64}) {
    const Task x(dtype, {}, sizes);
    Context one;
    Context three(Executor::threads(3));
    EXPECT_EQ(by_steps(x, one).bytes(), by_steps(x, three).bytes());
  }
}

// Keys and values are one array, and so are their gradients. s, out, d_out and ds are pieces of
// wider rows.
TEST(AdditiveSteps, KeysMayBeTheValues) {
  Sizes sizes;
  sizes.E = sizes.Dk;
  Task x(kF64, {}, sizes);
  copy(x.keys, x.values);
  Context context;
  const Results want = by_steps(x, context);
  const Index width = x.n.Dq + x.n.E;
  Tensor rows(kF64, {x.n.steps, x.n.B, width}), d_rows(kF64, {x.n.steps, x.n.B, width});
  const auto piece = [&](Tensor& tensor, Index t, Index begin, Index end) {
    return slice(slice(tensor, 0, t, t + 1), 2, begin, end);
  };
  const auto all = [&](Tensor& tensor, Index begin, Index end) {
    return slice(tensor, 2, begin, end);
  };
  copy(x.s, all(rows, 0, x.n.Dq));
  copy(x.d_out, all(d_rows, x.n.Dq, width));
  copy(random_tensor(kF64, x.s.shape(), 20), all(d_rows, 0, x.n.Dq));
  layers::AdditiveSteps steps(x.layer, {x.keys, x.keys, x.length_view()}, x.n.steps, context);
  for (Index t = 0; t < x.n.steps; ++t) {
    steps.attend(t, piece(rows, t, 0, x.n.Dq), piece(rows, t, x.n.Dq, width));
  }
  for (Index t = x.n.steps - 1; t >= 0; --t) {
    steps.undo(t, piece(d_rows, t, x.n.Dq, width), piece(d_rows, t, 0, x.n.Dq));
  }
  Tensor d_states(kF64, x.keys.shape());
  auto gradients = x.layer.zero_gradients();
  steps.finish({all(rows, 0, x.n.Dq), all(d_rows, x.n.Dq, width)}, d_states, d_states, gradients);
  EXPECT_EQ(bytes_of(contiguous(all(rows, x.n.Dq, width))), bytes_of(want.out));
  EXPECT_EQ(bytes_of(contiguous(all(d_rows, 0, x.n.Dq))), bytes_of(want.ds));
  EXPECT_EQ(all_bytes(gradients), all_bytes(want.parameters));
  const Tensor before = random_tensor(kF64, x.keys.shape(), 22);  // as in initial_results()
  for (Index i = 0; i < d_states.element_count(); ++i) {
    const auto at = [&](const Tensor& tensor) { return tensor.values<double>()[i]; };
    EXPECT_NEAR(at(d_states), at(want.d_values) + (at(want.d_keys) - at(before)), 1e-12);
  }
}

}  // namespace
}  // namespace qkv::test
