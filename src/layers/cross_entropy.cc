// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <qkv/layers/cross_entropy.h>

#include "core/elementary.h"
#include "core/integers.h"
#include "core/message.h"
#include "core/order.h"
#include "core/storage.h"
#include "dense/rows.h"
#include "layers/attend.h"
#include "layers/checks.h"
#include "layers/indices.h"
#include "layers/packed.h"
#include "layers/row_kernels.h"
#include "reference/sum.h"
#include "runtime/tasks.h"

namespace qkv {
namespace {

using core::kPartialSums;
using dense::Rows;
using layers::RowKernels;
using runtime::Arena;
using runtime::Call;

constexpr std::string_view kCrossEntropyForward = "CrossEntropy::forward";
constexpr std::string_view kCrossEntropyBackward = "CrossEntropy::backward";
constexpr std::string_view kCrossEntropyBoth = "CrossEntropy::forward_and_backward";

// The number of logits per task: enough to be worth a task, few enough that a batch makes several.
constexpr Index kLogitsPerTask = Index{1} << 14;

// Calls f(row, arena) for each row of V logits, in tasks, with an empty arena.
template <class F>
void for_each_row(Call& call, Index rows, Index V, const F& f) {
  const Index per_task = std::max<Index>(1, kLogitsPerTask / V);
  call.for_each_task(core::divide_up(rows, per_task), [&](Index task, Arena& arena) {
    const Index end = std::min(rows, (task + 1) * per_task);
    for (Index row = task * per_task; row < end; ++row) {
      arena.reset();
      f(row, arena);
    }
  });
}

// Returns a copy of row n of the logits, padded to a multiple of kPartialSums with -inf, which
// softmax ignores.
template <class T>
std::span<T> padded_row(const Rows<const T>& logits, Index n, Arena& arena) {
  const Index V = logits.channels();
  const std::span<T> row = arena.take<T>(core::round_up(V, kPartialSums));
  const T* x = logits.row(n);
  if (logits.stride() == 1) {
    std::copy_n(x, V, row.data());
  } else {
    for (Index v = 0; v < V; ++v) row[static_cast<std::size_t>(v)] = x[v * logits.stride()];
  }
  std::fill(row.begin() + V, row.end(), -std::numeric_limits<T>::infinity());
  return row;
}

double sum_of(const Tensor& class_weights) {
  const auto values = class_weights.values<double>();
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// The class weights as T, and their sum; w(v) = 1 if none are given.
template <class T>
struct ClassWeights {
  std::vector<T> each;
  T sum = 0;

  ClassWeights(const Tensor& given, Index V) : sum(static_cast<T>(V)) {
    if (!given.given()) return;
    const auto values = given.values<double>();
    each.assign(values.begin(), values.end());
    sum = static_cast<T>(sum_of(given));
  }
  bool given() const { return !each.empty(); }
  T operator()(Index v) const { return given() ? each[static_cast<std::size_t>(v)] : T(1); }
};

// Computes sum_v w_v (x_v - max) over the classes whose weight is not 0.
template <class T>
T weighted_sum_below(const T* x, Index stride, Index V, T max, const ClassWeights<T>& w) {
  T partial[kPartialSums] = {};
  for (Index v = 0; v < V; ++v) {
    if (w(v) != 0) partial[v % kPartialSums] += w(v) * (x[v * stride] - max);
  }
  return reference::tree_sum(partial);
}

// Computes sum_v (x_v - max). Term v is added to partial sum v mod kPartialSums.
template <class T>
T sum_below(const T* x, Index stride, Index V, T max) {
  T partial[kPartialSums] = {};
  Index v = 0;
  for (; stride == 1 && v + kPartialSums <= V; v += kPartialSums) {  // vectorised
    for (Index n = 0; n < kPartialSums; ++n) partial[n] += x[v + n] - max;
  }
  for (; v < V; ++v) partial[v % kPartialSums] += x[v * stride] - max;
  return reference::tree_sum(partial);
}

// ---- forward --------------------------------------------------------------------------------

// An array of one number for each row of logits; it may be absent.
template <class T>
struct Column {
  T* data = nullptr;
  Index stride = 0;

  explicit Column(const View& view) {
    if (view.given()) *this = Column(view.as<T>(), view.stride(0));
  }
  Column(T* first, Index step) : data(first), stride(step) {}
  void put(Index n, T value) const {
    if (data != nullptr) data[n * stride] = value;
  }
};

template <class T>
struct RowResults {
  Column<T> losses;
  Column<T> log_probabilities;

  explicit RowResults(const CrossEntropyOutputs& outputs)
      : losses(outputs.losses), log_probabilities(outputs.log_probabilities) {}
  void put_zeros(Index n) const {
    losses.put(n, 0);
    log_probabilities.put(n, 0);
  }
};

template <class T>
struct Forward {
  Rows<const T> logits;
  const std::int64_t* targets;
  T label_smoothing;
  T* max;
  T* sum;
  RowKernels<T> kernels;
  ClassWeights<T> weights;

  Forward(const ConstView& x, CrossEntropy::Saved& saved, double e, const RowKernels<T>& by,
          const Tensor& class_weights)
      : logits(x),
        targets(saved.targets.values<std::int64_t>().data()),
        label_smoothing(static_cast<T>(e)),
        max(saved.max.values<T>().data()),
        sum(saved.sum.values<T>().data()),
        kernels(by),
        weights(class_weights, x.size(1)) {}

  T log_probability(Index n) const {
    const T x = logits.row(n)[targets[n] * logits.stride()];
    return x - max[n] - core::portable_log(sum[n]);
  }
  // Returns the mean of w_v log p_v over v.
  T mean_log_probability(Index n) const {
    const Index V = logits.channels();
    if (weights.given()) {
      const T below = weighted_sum_below(logits.row(n), logits.stride(), V, max[n], weights);
      return (below - weights.sum * core::portable_log(sum[n])) / static_cast<T>(V);
    }
    const T below = sum_below(logits.row(n), logits.stride(), V, max[n]);
    return below / static_cast<T>(V) - core::portable_log(sum[n]);
  }
  T loss(Index n, T log_p) const {
    const T w = weights(targets[n]);
    const T unsmoothed = w == 0 ? T(0) : -w * log_p;  // 0 even where p is 0: 0 * inf is NaN
    if (label_smoothing == 0) return unsmoothed;      // 0 times an infinite mean is NaN
    return (1 - label_smoothing) * unsmoothed - label_smoothing * mean_log_probability(n);
  }
  // Writes the results of a row and returns exp(x_v - max), padded.
  std::span<T> run_row(Index n, const RowResults<T>& results, Arena& arena) const {
    const std::span<T> row = padded_row(logits, n, arena);
    kernels.softmax(row.data(), static_cast<Index>(row.size()), core::kNormalExponent<T>, max + n,
                    sum + n);
    const T log_p = log_probability(n);
    results.log_probabilities.put(n, log_p);
    if (results.losses.data != nullptr) results.losses.put(n, loss(n, log_p));
    return row;
  }
  void run(Call& call, const CrossEntropyOutputs& outputs, std::optional<Index> ignore) const {
    const RowResults<T> results(outputs);
    for_each_row(call, logits.count(), logits.channels(), [&](Index n, Arena& arena) {
      if (targets[n] == ignore) {
        results.put_zeros(n);
      } else {
        run_row(n, results, arena);
      }
    });
  }
};

// ---- backward -------------------------------------------------------------------------------

template <class T>
struct Backward {
  Rows<const T> logits;
  const std::int64_t* targets;
  T label_smoothing;
  const T* max;
  const T* sum;
  RowKernels<T> kernels;
  ClassWeights<T> weights;

  Backward(const CrossEntropy::Saved& saved, double e, const RowKernels<T>& by,
           const Tensor& class_weights)
      : logits(saved.logits),
        targets(saved.targets.values<std::int64_t>().data()),
        label_smoothing(static_cast<T>(e)),
        max(saved.max.values<T>().data()),
        sum(saved.sum.values<T>().data()),
        kernels(by),
        weights(class_weights, saved.logits.size(1)) {}

  // The backward pass of loss(), with target t and label smoothing e: replaces p_v by dloss/dx_v
  // = (1 - e) w_t (p_v - [v = t]) + e/V (p_v sum w - w_v), for all v.
  void probabilities_to_gradients(Index n, std::span<T> row) const {
    const T share = label_smoothing / static_cast<T>(logits.channels());
    if (weights.given()) {
      const T w = (1 - label_smoothing) * weights(targets[n]);
      if (label_smoothing == 0) {  // the sum of the weights may be infinite
        for (T& p : row) p *= w;
        row[static_cast<std::size_t>(targets[n])] -= w;
        return;
      }
      for (Index v = 0; v < logits.channels(); ++v) {
        T& p = row[static_cast<std::size_t>(v)];
        p = p * (w + share * weights.sum) - share * weights(v);
      }
      row[static_cast<std::size_t>(targets[n])] -= w;
      return;
    }
    for (T& p : row) p -= share;
    row[static_cast<std::size_t>(targets[n])] -= 1 - label_smoothing;
  }
  std::span<const T> gradients(Index n, Arena& arena) const {
    const std::span<T> row = padded_row(logits, n, arena);
    kernels.weights(row.data(), logits.channels(), max[n], sum[n], row.data());
    probabilities_to_gradients(n, row);
    return row;
  }
  // Replaces exp(x_v - max) by dloss/dx_v.
  void exponentials_to_gradients(Index n, std::span<T> row) const {
    kernels.divide(row.data(), logits.channels(), sum[n]);
    probabilities_to_gradients(n, row);
  }
  void run(Call& call, const ConstView& dlosses, const View& dlogits_view, Write write,
           std::optional<Index> ignore) const {
    const Rows<T> dlogits(dlogits_view);
    const T* dloss = dlosses.as<T>();
    const Index V = logits.channels();
    const Index step = dlogits.stride();
    for_each_row(call, logits.count(), V, [&](Index n, Arena& arena) {
      T* to = dlogits.row(n);
      if (targets[n] == ignore) {
        if (write == Write::kAccumulate) return;
        for (Index v = 0; v < V; ++v) to[v * step] = 0;
        return;
      }
      const T d = dloss[n * dlosses.stride(0)];
      const T* gradient = gradients(n, arena).data();
      if (write == Write::kAccumulate) {
        for (Index v = 0; v < V; ++v) to[v * step] += d * gradient[v];
      } else {
        for (Index v = 0; v < V; ++v) to[v * step] = d * gradient[v];
      }
    });
  }
};

// Runs forward and backward one row at a time. The gradients of the sum of all losses replace the
// logits.
template <class T>
void replace_by_gradients(Call& call, const Forward<T>& forward, const Backward<T>& backward,
                          const CrossEntropyOutputs& outputs, const View& logits,
                          std::optional<Index> ignore) {
  const RowResults<T> results(outputs);
  const Rows<T> rows(logits);
  const Index V = rows.channels();
  for_each_row(call, rows.count(), V, [&](Index n, Arena& arena) {
    T* const to = rows.row(n);
    std::span<T> gradients;
    if (forward.targets[n] == ignore) {
      results.put_zeros(n);
      gradients = arena.take<T>(V);
      std::ranges::fill(gradients, T(0));
    } else {
      gradients = forward.run_row(n, results, arena);
      backward.exponentials_to_gradients(n, gradients);
    }
    if (rows.stride() == 1) {
      std::copy_n(gradients.data(), V, to);
    } else {
      for (Index v = 0; v < V; ++v) to[v * rows.stride()] = gradients[static_cast<std::size_t>(v)];
    }
  });
}

void check_logits(std::string_view function, const ConstView& logits) {
  layers::check_float(function, {"logits", logits});
  if (logits.rank() != 2 || logits.size(1) < 1) {
    throw Error(function, "logits",
                core::text("must have the shape [N,V] with V >= 1, got ", describe(logits)));
  }
}

void check_forward_outputs(std::string_view function, const CrossEntropyOutputs& outputs,
                           const ConstView& logits, const ConstView& targets) {
  if (!outputs.losses.given() && !outputs.log_probabilities.given()) {
    throw Error(function, "outputs", "must name losses or log_probabilities");
  }
  const auto check = [&](const layers::NamedView& output) {
    if (!output.view.given()) return;
    layers::check_same(function, output, logits.dtype(), {logits.size(0)});
    layers::check_apart(function, output, {{"logits", logits}, {"targets", targets}});
  };
  check({"losses", outputs.losses});
  check({"log_probabilities", outputs.log_probabilities});
  layers::check_apart(function, {"log_probabilities", outputs.log_probabilities},
                      {{"losses", outputs.losses}});
}

}  // namespace

CrossEntropy::CrossEntropy(double label_smoothing, std::optional<Index> ignore,
                           const ConstView& class_weights)
    : label_smoothing_(label_smoothing), ignore_(ignore) {
  if (class_weights.given()) {
    if (class_weights.rank() != 1 || class_weights.size(0) < 1 || !is_real(class_weights.dtype())) {
      throw Error("CrossEntropy", "class_weights",
                  core::text("must be real numbers [V], V >= 1, got ", describe(class_weights)));
    }
    class_weights_ = convert(class_weights, DType::kFloat64);
    for (const double w : class_weights_.values<double>()) {
      if (std::isfinite(w)) continue;
      throw Error("CrossEntropy", "class_weights", core::text("must be finite, got ", w));
    }
  }
  // The condition is written so that NaN fails.
  if (!(label_smoothing >= 0 && label_smoothing < 1)) {
    throw Error("CrossEntropy", "label_smoothing",
                core::text("must be in [0,1), got ", label_smoothing));
  }
}

// Checks the arguments of a forward pass, and makes `saved` ready for it.
void CrossEntropy::prepare(std::string_view function, const ConstView& logits,
                           const ConstView& targets, Saved& saved,
                           const CrossEntropyOutputs& outputs) const {
  saved.logits = {};  // backward() refuses `saved` if this call throws
  check_logits(function, logits);
  const Index N = logits.size(0);
  if (class_weights_.given() && class_weights_.size(0) != logits.size(1)) {
    throw Error(function, "logits",
                core::text("must have V = ", class_weights_.size(0),
                           ", one for each class weight, got ", describe(logits)));
  }
  if (class_weights_.given()) {
    const auto check = [&](std::string_view what, double x) {
      const bool fits = std::isfinite(
          logits.dtype() == DType::kFloat32 ? static_cast<double>(static_cast<float>(x)) : x);
      if (fits) return;
      throw Error(function, "logits",
                  core::text("are ", name_of(logits.dtype()), ", which cannot hold the ", what, x));
    };
    // The loss contains the sum of the weights only if labels are smoothed.
    if (label_smoothing_ > 0) check("sum of the class weights, ", sum_of(class_weights_));
    for (const double w : class_weights_.values<double>()) check("class weight ", w);
  }
  if (targets.given() && !(targets.shape() == Dims(N))) {
    throw Error(function, "targets",
                core::text("must have the shape [", N, "], one for each row of logits, got ",
                           describe(targets)));
  }
  check_forward_outputs(function, outputs, logits, targets);
  layers::copy_indices(function, {"targets", targets}, {logits.size(1), ignore_}, saved.targets);
  layers::resize(saved.max, logits.dtype(), {N});
  layers::resize(saved.sum, logits.dtype(), {N});
}

void CrossEntropy::forward(const ConstView& logits, const ConstView& targets, Saved& saved,
                           const CrossEntropyOutputs& outputs, Context& context) const {
  prepare(kCrossEntropyForward, logits, targets, saved, outputs);
  core::dispatch(logits.dtype(), [&]<class T>() {
    Call call(context, kCrossEntropyForward, 0, Arena::cost<T>(logits.size(1) + kPartialSums));
    const RowKernels<T> by(layers::kernels_in_use<T>(context, kCrossEntropyForward).dot);
    Forward<T>(logits, saved, label_smoothing_, by, class_weights_).run(call, outputs, ignore_);
  });
  saved.logits = logits;
  saved.ignore = ignore_;
}

void CrossEntropy::forward_and_backward(const View& logits, const ConstView& targets,
                                        const CrossEntropyOutputs& outputs,
                                        Context& context) const {
  Saved saved;
  prepare(kCrossEntropyBoth, logits, targets, saved, outputs);
  layers::check_apart(kCrossEntropyBoth, {"logits", logits}, {{"targets", targets}});
  saved.logits = logits;
  core::dispatch(logits.dtype(), [&]<class T>() {
    Call call(context, kCrossEntropyBoth, 0, Arena::cost<T>(logits.size(1) + kPartialSums));
    const RowKernels<T> by(layers::kernels_in_use<T>(context, kCrossEntropyBoth).dot);
    const Forward<T> forward(logits, saved, label_smoothing_, by, class_weights_);
    const Backward<T> backward(saved, label_smoothing_, by, class_weights_);
    replace_by_gradients(call, forward, backward, outputs, logits, ignore_);
  });
}

void CrossEntropy::backward(const Saved& saved, const ConstView& dlosses, const View& dlogits,
                            Write write, Context& context) const {
  const ConstView& logits = saved.logits;
  if (!logits.given()) throw Error(kCrossEntropyBackward, "saved", "must come from a forward pass");
  const bool has_other_classes = class_weights_.given() && class_weights_.size(0) != logits.size(1);
  if (saved.ignore != ignore_ || has_other_classes) {
    throw Error(kCrossEntropyBackward, "saved", "must come from a forward pass of this layer");
  }
  layers::check_same(kCrossEntropyBackward, {"dlosses", dlosses}, logits.dtype(), {logits.size(0)});
  layers::check_same(kCrossEntropyBackward, {"dlogits", dlogits}, logits.dtype(), logits.shape());
  layers::check_apart(kCrossEntropyBackward, {"dlogits", dlogits}, {{"dlosses", dlosses}});
  if (write == Write::kOverwrite) {
    layers::check_apart_or_same(kCrossEntropyBackward, {"dlogits", dlogits}, {"logits", logits});
  } else {
    layers::check_apart(kCrossEntropyBackward, {"dlogits", dlogits}, {{"logits", logits}});
  }

  core::dispatch(logits.dtype(), [&]<class T>() {
    Call call(context, kCrossEntropyBackward, 0, Arena::cost<T>(logits.size(1) + kPartialSums));
    const RowKernels<T> by(layers::kernels_in_use<T>(context, kCrossEntropyBackward).dot);
    Backward<T>(saved, label_smoothing_, by, class_weights_)
        .run(call, dlosses, dlogits, write, ignore_);
  });
}

}  // namespace qkv
