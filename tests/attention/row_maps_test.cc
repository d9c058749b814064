// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention/validate/bind.h"
#include "attention/validate/resolve.h"
#include "reference/prepared.h"
#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"
#include "tests/attention/conformance.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"

// Tests that calls with QK-norm and rotary positions are bit-identical, on every path, with plain
// calls on the transformed rows, with every option, shape and memory layout of random calls, and
// that their gradients are those of the plain calls, transformed back row by row. The oracle and
// the complex step verify the transforms themselves.
namespace qkv::test {
namespace {

using core::Problem;
using core::RowMap;
using reference::RowAt;

Options without_maps(Options options) {
  options.qk_norm.reset();
  options.rotary.reset();
  return options;
}

// The rows of one side of a call (queries or keys), and their transformed rows.
template <class T>
class Side {
 public:
  Side(const Problem& p, const Options& options, bool keys) : p_(p), keys_(keys) {
    const core::RowMaps& all = keys ? p.key_maps : p.query_maps;
    const std::size_t count = (options.qk_norm ? 1 : 0) + (options.rotary ? 1 : 0);
    maps_ = all.maps().subspan(0, count);
    transformed_ = Tensor(dtype_of<T>, shape());
    T* to = transformed_.values<T>().data();
    for_each_row([&](const RowAt<T>& at) {
      load(at, to);
      reference::change_row(maps_, at, width(), to);
      to += width();
    });
  }
  const Tensor& transformed() const { return transformed_; }
  Index width() const { return keys_ ? p_.Dk : p_.Dq; }
  // The shape of all rows after broadcasting.
  Dims shape() const {
    const Index heads = keys_ ? p_.G : p_.H;
    const Index rows = keys_ ? p_.k_rows : p_.q_rows;
    if (p_.packed()) return {rows, heads, width()};
    Dims shape = p_.batch;
    if (p_.head_axis) shape.push_back(heads);
    shape.push_back(rows);
    shape.push_back(width());
    return shape;
  }
  // Returns the gradients of the rows, given those of transformed(), `dtransformed`. Sets dg to the
  // gradient of QK-norm's gain, [heads][width], and `sizes` to the sums of the absolute values of
  // dg's terms.
  std::vector<double> transform_back(std::vector<double> dtransformed, std::vector<double>& dg,
                                     std::vector<double>& sizes) const {
    const auto n = static_cast<std::size_t>(width());
    const auto heads = static_cast<std::size_t>(keys_ ? p_.G : p_.H);
    dg.assign(heads * n, 0);
    sizes = dg;
    std::vector<T> x(n), d(n), spare(n * maps_.size() + 1), share(n);
    double* from = dtransformed.data();
    for_each_row([&](const RowAt<T>& at) {
      std::copy_n(from, n, d.begin());
      const bool is_zero = std::all_of(d.begin(), d.end(), [](T value) { return value == 0; });
      if (!is_zero) {
        load(at, x.data());
        std::fill(share.begin(), share.end(), T(0));
        reference::change_back(maps_, at, x.data(), width(), d.data(), spare.data(), share.data());
        const std::size_t first = static_cast<std::size_t>(at.head) * n;
        for (std::size_t c = 0; c < n; ++c) {
          dg[first + c] += static_cast<double>(share[c]);
          sizes[first + c] += std::fabs(static_cast<double>(share[c]));
        }
      }
      std::copy_n(d.begin(), n, from);
      from += n;
    });
    return dtransformed;
  }

 private:
  void load(const RowAt<T>& at, T* to) const {
    reference::load_row(p_, keys_ ? p_.k : p_.q, at.b, at.head, at.row, width(), to);
  }
  // Calls f for each row, in C order of shape().
  template <class F>
  void for_each_row(const F& f) const {
    const Index heads = keys_ ? p_.G : p_.H;
    for (Index b = 0; b < p_.B; ++b) {
      const core::Sequence s = p_.sequence(b);
      const Index rows = keys_ ? s.Tk : s.Tq;
      const auto at = [&](Index head, Index n) {
        return keys_ ? reference::key_row<T>(p_, b, head, n)
                     : reference::query_row<T>(p_, b, head, n);
      };
      for (Index outer = 0; outer < (p_.packed() ? rows : heads); ++outer) {
        for (Index inner = 0; inner < (p_.packed() ? heads : rows); ++inner) {
          f(p_.packed() ? at(inner, outer) : at(outer, inner));
        }
      }
    }
  }

  const Problem& p_;
  bool keys_;
  std::span<const RowMap> maps_;
  Tensor transformed_;
};

using Values = std::vector<double>;

// The first index at which two arrays differ, if any; a NaN equals a NaN.
std::optional<std::size_t> first_difference(const Values& a, const Values& b) {
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (a[n] != b[n] && !(std::isnan(a[n]) && std::isnan(b[n]))) return n;
  }
  return std::nullopt;
}

void expect_equal(const Values& got, const Values& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  const auto n = first_difference(got, want);
  if (n) ADD_FAILURE() << what << " at " << *n << ": got " << got[*n] << ", want " << want[*n];
}

using Counts = std::map<std::string, int>;  // by name

int count_of(const Counts& counts, const std::string& name) {
  const auto at = counts.find(name);
  return at == counts.end() ? 0 : at->second;
}

struct Compared {
  int calls = 0;
  Counts gradients, features;
};

template <class T>
class Comparison {
 public:
  Comparison(const RandomBackward& call, const std::string& path, Compared& counts)
      : call_(call), path_(path), counts_(counts) {
    attn::resolve("test", {}, call.call().inputs, call.call().options, p_);
    queries_.emplace(p_, call.call().options, false);
    keys_.emplace(p_, call.call().options, true);
  }

  void run() {
    plain_.inputs = call_.call().inputs;
    plain_.inputs.q = queries_->transformed();
    plain_.inputs.k = keys_->transformed();
    plain_.options = without_maps(call_.call().options);
    plain_.sources = call_.call().sources;
    compare_forward();
    compare_backward();
  }

 private:
  void compare_forward() {
    const Results got(call_.forward(), 5), want(call_.forward(), 5);
    Context context = context_on(path_);
    attention(call_.call().inputs, call_.call().options, got.outputs(), context);
    attention(plain_.inputs, plain_.options, want.outputs(), context);
    for (const auto& [name, array] : want.arrays()) {
      expect_equal(values_of(got.view(name)), values_of(array.view()), name);
    }
  }

  void compare_backward() {
    const BackwardCall& mapped = call_.call();
    for (const std::string& name : BackwardCall::askable(plain_.inputs, plain_.options)) {
      plain_.ask(name, Layout::kContiguous);
    }
    const SavedTensors saved(mapped, path_);
    const Gradients got(mapped), want(plain_);
    run_backward(mapped, path_, saved.views(), got);
    run_backward(plain_, path_, saved.views(), want);
    std::map<std::string, Values> gains, sizes, rows;
    rows["q"] = queries_->transform_back(values_of(want.arrays().at("q").view()), gains["norm_q"],
                                         sizes["norm_q"]);
    rows["k"] = keys_->transform_back(values_of(want.arrays().at("k").view()), gains["norm_k"],
                                      sizes["norm_k"]);
    for (const auto& [name, array] : got.arrays()) {
      if (gains.contains(name)) {
        compare_gain(name, array.view(), got, gains[name], sizes[name]);
        ++counts_.gradients[name];
        continue;
      }
      const bool is_row = rows.contains(name);
      // The plain call's sum over rows or heads cannot be transformed back: the call transforms the
      // terms before it sums them. Such gradients are not compared.
      if (is_row && array.view().shape() != want.arrays().at(name).view().shape()) continue;
      if (name == "k" && p_.key_maps.product.given() && p_.G != p_.H) continue;
      Values expected = is_row ? rows[name] : values_of(want.arrays().at(name).view());
      if (mapped.write == Write::kAccumulate) {
        for (std::size_t n = 0; n < expected.size(); ++n) {
          expected[n] =
              static_cast<T>(static_cast<T>(expected[n]) + static_cast<T>(got.before(name)[n]));
        }
      }
      expect_equal(values_of(array.view()), expected, "d" + name);
      ++counts_.gradients[name];
    }
  }

  void compare_gain(const std::string& name, const View& view, const Gradients& got,
                    const Values& heads, const Values& sizes) const {
    const Values values = values_of(view);
    for (std::size_t n = 0; n < values.size(); ++n) {
      double want = 0, size = 0;
      for (std::size_t m = n; m < heads.size(); m += values.size()) {
        want += heads[m];
        size += sizes[m];
      }
      if (call_.call().write == Write::kAccumulate) {
        want += got.before(name)[n];
        size += std::fabs(got.before(name)[n]);
      }
      if (!std::isfinite(want) && !std::isfinite(values[n])) continue;
      const double eps = std::numeric_limits<T>::epsilon();
      const double tiny = 1e4 * std::numeric_limits<T>::denorm_min();
      EXPECT_NEAR(values[n], want, 32 * eps * size + tiny) << "d" << name << " at " << n;
    }
  }

  const RandomBackward& call_;
  std::string path_;
  Compared& counts_;
  core::ResolvedProblem p_;
  std::optional<Side<T>> queries_, keys_;
  BackwardCall plain_;
};

// Whether a plain call can take the transformed rows: all inputs have one dtype, float32 or
// float64, and the rank of the transformed rows does not change the meaning of their axes.
bool is_comparable(const RandomBackward& call) {
  const Inputs& x = call.call().inputs;
  const bool one_dtype = x.q.dtype() == x.k.dtype() && (!x.v.given() || x.v.dtype() == x.q.dtype());
  if (!one_dtype || size_of(x.q.dtype()) < 4) return false;
  core::ResolvedProblem p;
  attn::resolve("test", {}, x, call.call().options, p);
  return p.packed() || !p.head_axis || p.batch.rank() > 0;
}

TEST(RowMaps, HaveTheBitsOfAPlainCallOnTransformedRows) {
  std::map<std::string, Compared> compared;
  const int calls = at_scale(600, 60);
  for (int n = 0; n < calls; ++n) {
    const RandomBackward call(21, static_cast<std::uint64_t>(n), RandomCall::Draw::kMaps);
    if (!is_comparable(call)) continue;
    for (const std::string& path : all_backward_paths(call.forward().score())) {
      if (!takes_backward(path, call.call().inputs, call.call().options)) continue;
      SCOPED_TRACE("call " + std::to_string(n) + " on " + path + ": " + call.describe());
      Compared& counts = compared[path];
      if (call.forward().dtype() == DType::kFloat64) {
        Comparison<double>(call, path, counts).run();
      } else {
        Comparison<float>(call, path, counts).run();
      }
      ++counts.calls;
      for (const std::string& feature : call.features()) ++counts.features[feature];
    }
    if (HasFailure()) break;
  }
  for (const auto& [path, counts] : compared) {
    std::printf("row maps: %s: %d calls\n", path.c_str(), counts.calls);
    EXPECT_GE(counts.calls, at_scale(80, 4)) << path;
    if (!is_thorough()) continue;
    for (const char* name : {"q", "k", "norm_q", "norm_k"}) {
      EXPECT_GE(count_of(counts.gradients, name), 40) << path << ": d" << name;
    }
    for_each_feature(kCoveredMaps, [&](const std::string& feature) {
      EXPECT_GE(count_of(counts.features, feature), 4) << path << ": " << feature;
    });
  }
}

// Scaling rows by 2^n and eps by 2^2n leaves normalised rows bit-identical and scales gradients by
// 2^-n, even where squares overflow (n = 100) or underflow (n = -100). With n = -50, eps is about
// as large as the squares. For float64, n is 8 times as large.
TEST(RowMaps, NormsNeitherOverflowNorVanish) {
  const auto times = [](const Tensor& x, int power) {
    Tensor y = contiguous(x.view());
    for (Index n = 0; n < y.element_count(); ++n) {
      const double value = core::load<double>(y.dtype(), y.view().data(), n);
      core::store(y.dtype(), y.view().data(), n, std::ldexp(value, power));
    }
    return y;
  };
  struct Far {
    int power;
    double eps;
  };
  for (const DType d : {DType::kFloat32, DType::kFloat64}) {
    const int many = d == DType::kFloat64 ? 8 : 1;
    const Tensor q = normal({37, 70}, 1, d), k = normal({50, 70}, 2, d), v = normal({50, 3}, 3, d);
    const auto run = [&](const Far& far, Tensor& out, Tensor& dq) {
      const Tensor x = times(q, far.power);
      const Options options{.qk_norm = QkNorm{.q = {}, .k = {}, .eps = far.eps}};
      const Tensor key = times(k, far.power);
      Tensor lse(d, {37});
      out = Tensor(d, {37, 3});
      dq = Tensor(d, q.shape());
      attention({x, key, v}, options, {.out = out, .lse = lse});
      attention_backward({x, key, v}, options, {out, lse}, {.out = out}, {.q = dq});
    };
    for (const Far& far : {Far{100 * many, 0}, Far{-100 * many, 0},
                           Far{-50 * many, std::ldexp(1, -3 - 100 * many)}}) {
      Tensor out, dq, far_out, far_dq;
      run({0, std::ldexp(far.eps, -2 * far.power)}, out, dq);
      run(far, far_out, far_dq);
      EXPECT_TRUE(same_bits(out, far_out)) << far.power;
      EXPECT_TRUE(same_bits(dq, times(far_dq, far.power))) << far.power;
    }
  }
}

// The gradient of a masked key is +0 whatever the key holds, also beside unmasked keys.
TEST(RowMaps, GradientsOfMaskedKeysArePlusZeroOnEveryPath) {
  constexpr Index kHeads = 2, kQueries = 9, kKeys = 70, kWidth = 16, kMasked = 5;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Tensor q = normal({1, kHeads, kQueries, kWidth}, 1), v = normal({1, kHeads, kKeys, 3}, 3);
  const Tensor dout = normal({1, kHeads, kQueries, 3}, 4), gain = normal(Dims(kWidth), 5);
  Tensor keep(DType::kBool, Dims(kKeys)), bias(DType::kFloat32, Dims(kKeys));
  std::fill_n(keep.values<bool>().begin(), kKeys, true);
  keep.values<bool>()[kMasked] = false;
  bias.values<float>()[kMasked] = -kInfinity;
  const Rotary rotary{.pairs = RotaryPairing::kHalves};
  const QkNorm norm{gain, gain};
  const SeededScore additive(ScoreKind::kAdditive,
                             {.H = kHeads, .Dq = kWidth, .Dk = kWidth, .U = 8}, DType::kFloat32);
  const SeededScore bilinear(ScoreKind::kBilinear, {.H = kHeads, .Dq = kWidth, .Dk = kWidth},
                             DType::kFloat32);
  const std::pair<ScoreKind, Options> kinds[] = {
      {ScoreKind::kDot, {}},
      {ScoreKind::kDot, {.rotary = rotary}},
      {ScoreKind::kDot, {.rotary = Rotary{.width = 8}}},
      {ScoreKind::kDot, {.qk_norm = norm}},
      {ScoreKind::kDot, {.qk_norm = norm, .rotary = rotary}},
      {ScoreKind::kCosine, {.score = Cosine{}}},
      {ScoreKind::kAdditive, {.score = additive.score()}},
      {ScoreKind::kBilinear, {.score = bilinear.score()}}};
  for (const auto& [kind, maps] : kinds) {
    const std::string rows = std::string(maps.qk_norm ? ", norm" : "") +
                             (maps.rotary ? ", rotary " + std::to_string(maps.rotary->width) : "");
    for (const bool by_bias : {false, true}) {
      Options options = maps;
      if (by_bias) {
        options.bias = bias;
      } else {
        options.masks = {Keep{keep}};
      }
      for (const std::string& path : all_paths(kind)) {
        Context context = context_on(path);
        for (const float held : {1.0F, -1.0F, 0.0F, 1e-41F, 1e30F, kInfinity, NAN}) {
          SCOPED_TRACE(path + rows + (by_bias ? ", bias, " : ", mask, ") + std::to_string(held));
          Tensor k = normal({1, kHeads, kKeys, kWidth}, 2);
          for (Index h = 0; h < kHeads; ++h) {
            for (Index c = 0; c < kWidth; ++c) k.view().at<float>({0, h, kMasked, c}) *= held;
          }
          Tensor out(DType::kFloat32, dout.shape()), lse(DType::kFloat32, {1, kHeads, kQueries});
          Tensor dk(DType::kFloat32, k.shape());
          attention({q, k, v}, options, {.out = out, .lse = lse}, context);
          attention_backward({q, k, v}, options, {out, lse}, {.out = dout}, {.k = dk}, context);
          const ConstView of_masked = slice(ConstView(dk), 2, kMasked, kMasked + 1);
          EXPECT_TRUE(same_bits(of_masked, Tensor(DType::kFloat32, of_masked.shape())));
        }
      }
    }
  }
}

}  // namespace
}  // namespace qkv::test
