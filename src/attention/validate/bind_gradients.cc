// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "attention/validate/bind.h"
#include "attention/validate/shapes.h"
#include "core/message.h"
#include "core/parameter_name.h"
#include "expressions/program.h"

namespace qkv::attn {
namespace {

using core::GradientTarget;
using core::ParameterName;
using core::text;

// Checks the buffers of gradients: each has the shape and dtype of its source, the array of which
// it is the gradient.
class Binder {
 public:
  explicit Binder(const Problem& p) : p_(p) {}

  // Checks the buffer against its source; false if the gradient is not requested.
  bool check(std::string_view name, const View& buffer, std::string_view source_name,
             const ConstView& source) {
    if (!buffer.given()) return false;
    if (!source.given()) {
      throw Error(p_.function, name, text("is given but ", source_name, " is absent"));
    }
    any_ = true;
    expect_dtype(p_, name, buffer, source.dtype(), source_name, source.dtype());
    if (buffer.shape() != source.shape()) {
      throw Error(p_.function, name,
                  text("must have the shape of ", source_name, ", ", to_string(source.shape()),
                       ", got ", describe(buffer)));
    }
    return true;
  }
  bool any() const noexcept { return any_; }
  const Problem& problem() const noexcept { return p_; }

 private:
  const Problem& p_;
  bool any_ = false;
};

// Strides along the problem's axes of an array with the buffer's shape.
class Axes {
 public:
  // An axis of size 1 gets stride 0, so that the gradient is summed over the problem's axis.
  Axes(const View& buffer, const Dims& strides) : strides_(strides) {
    for (int axis = 0; axis < buffer.rank(); ++axis) {
      if (buffer.shape()[axis] == 1) strides_[axis] = 0;
    }
  }
  Index from_end(int n) const { return strides_.rank() >= n ? strides_[strides_.rank() - n] : 0; }
  Index from_begin(int n) const { return strides_[n]; }

 private:
  Dims strides_;
};

// Makes the target of a buffer. `fill` sets an operand's strides, once from the buffer's and once
// from those of a C-ordered array of its shape.
template <class Fill>
GradientTarget target(const View& buffer, const Fill& fill) {
  GradientTarget to{buffer, {}, {}};
  to.direct.data = buffer.data();
  to.direct.dtype = buffer.dtype();
  fill(Axes(buffer, buffer.strides()), to.direct);
  fill(Axes(buffer, contiguous_strides(buffer.shape())), to.own);
  return to;
}

// The target of q, k, v or bias: axes [batch..., head, row, col] from the right.
GradientTarget array_target(const Problem& p, const View& buffer) {
  return target(buffer, [&](const Axes& axes, core::ResultOperand& to) {
    to.col_stride = axes.from_end(1);
    to.row_stride = axes.from_end(2);
    if (p.head_axis) to.head_stride = axes.from_end(3);
    const int above = p.head_axis ? 3 : 2;
    for (int axis = 0; axis < p.batch.rank(); ++axis) {
      to.batch_strides.push_back(axes.from_end(above + p.batch.rank() - axis));
    }
  });
}

// The target of packed q, k or v, [sum T, heads, channels].
GradientTarget packed_target(const View& buffer) {
  return target(buffer, [](const Axes& axes, core::ResultOperand& to) {
    to.row_stride = axes.from_begin(0);
    to.head_stride = axes.from_begin(1);
    to.col_stride = axes.from_begin(2);
  });
}

// The target of a parameter with `count` axes of its own ([rows, cols] or [cols]), preceded by a
// head axis if it is given per head.
GradientTarget parameter_target(const Problem& p, const View& buffer, int count) {
  return target(buffer, [&](const Axes& axes, core::ResultOperand& to) {
    to.col_stride = axes.from_end(1);
    if (count == 2) to.row_stride = axes.from_end(2);
    to.head_stride = axes.from_end(count + 1);
    for (int axis = 0; axis < p.batch.rank(); ++axis) to.batch_strides.push_back(0);
  });
}

// The target of alibi or sinks: [H], or [B,H] where B counts all batch axes.
GradientTarget per_head_target(const Problem& p, const View& buffer) {
  return target(buffer, [&](const Axes& axes, core::ResultOperand& to) {
    to.head_stride = axes.from_end(1);
    to.entry_stride = axes.from_end(2);
    for (int axis = 0; axis < p.batch.rank(); ++axis) to.batch_strides.push_back(0);
  });
}

void bind_input(Binder& binder, std::string_view name, const View& buffer,
                std::string_view source_name, const ConstView& source, GradientTarget& to) {
  if (!binder.check(name, buffer, source_name, source)) return;
  const Problem& p = binder.problem();
  to = p.packed() ? packed_target(buffer) : array_target(p, buffer);
}

void bind_parameter(Binder& binder, std::string_view name, const View& buffer,
                    std::string_view source_name, const ConstView& source, int axes,
                    GradientTarget& to) {
  if (!binder.check(name, buffer, source_name, source)) return;
  to = parameter_target(binder.problem(), buffer, axes);
}

// The target of a parameter's gradient, and the number of its axes besides the head axis.
struct ParameterTarget {
  GradientTarget* to;
  int axes;
};

// The targets of a score's parameters, in the order of its for_each_parameter.
template <class S>
  requires(!has_parameters<S>())
std::array<ParameterTarget, 0> targets_of(const S&, core::GradientResults&) {
  return {};
}
std::array<ParameterTarget, 1> targets_of(const Bilinear&, core::GradientResults& to) {
  return {{{&to.query.w, 2}}};
}
std::array<ParameterTarget, 4> targets_of(const Additive&, core::GradientResults& to) {
  return {{{&to.query.w, 2}, {&to.key.w, 2}, {&to.score_v, 1}, {&to.query.b, 1}}};
}

void bind_norm(Binder& binder, const Options& options, const QkNormGradient& d,
               core::GradientResults& to) {
  const std::array<GradientTarget*, 2> targets = {&to.query.gain, &to.key.gain};
  std::size_t n = 0;
  QkNorm::for_each_parameter([&](const char* name, auto value, auto gradient) {
    GradientTarget& target = *targets.at(n++);
    if (!(d.*gradient).given()) return;
    const ConstView source = options.qk_norm ? *options.qk_norm.*value : ConstView();
    bind_parameter(binder, ParameterName("input_gradients.qk_norm", name), d.*gradient,
                   ParameterName(QkNorm::kName, name), source, 1, target);
  });
}

[[noreturn]] void refuse_gradient(const Problem& p, const ScoreGradient& gradient,
                                  std::string_view score) {
  std::string_view its_score;
  for_each_alternative<Score>([&]<class S>() {
    if (std::holds_alternative<typename S::Gradient>(gradient)) its_score = S::kName;
  });
  throw Error(p.function, "input_gradients.score",
              text("is the gradient of ", its_score, ", but the score is ", score));
}

void bind_score(Binder& binder, const Options& options, const ScoreGradient& gradient,
                core::GradientResults& to) {
  if (std::holds_alternative<std::monostate>(gradient)) return;
  const auto bind = [&]<class S>(const S& score) {
    const auto* d = std::get_if<typename S::Gradient>(&gradient);
    if (d == nullptr) refuse_gradient(binder.problem(), gradient, S::kName);
    const auto targets = targets_of(score, to);
    std::size_t n = 0;
    S::for_each_parameter([&](const char* name, auto value, auto its_gradient) {
      const ParameterTarget& target = targets.at(n++);
      bind_parameter(binder, ParameterName("input_gradients.score", name), (*d).*its_gradient,
                     ParameterName(S::kName, name), score.*value, target.axes, *target.to);
    });
  };
  std::visit(bind, options.score);
}

bool reads(const ScoreMod& mod, const detail::CapturedArray& array) {
  if (mod.program == nullptr) return false;
  const auto& steps = mod.program->program.steps();
  return std::any_of(steps.begin(), steps.end(),
                     [&](const expressions::Step& step) { return step.array == &array; });
}

void bind_captured(Binder& binder, const Options& options,
                   const std::vector<CapturedGradient>& gradients, core::GradientResults& to) {
  for (const CapturedGradient& one : gradients) {
    const std::shared_ptr<const detail::CapturedArray>& array = one.of.shared_array();
    const std::string name = text("input_gradients.captured of ", array->name);
    const auto fail = [&](std::string_view what) {
      throw Error(binder.problem().function, name, std::string(what));
    };
    if (!one.to.given()) fail("has no buffer");
    if (array->type != Expression::Type::kNumber) {
      fail(text("is of an array of ", name_of(array->view.dtype()), ", which has no gradient"));
    }
    if (std::none_of(options.mods.begin(), options.mods.end(),
                     [&](const ScoreMod& mod) { return reads(mod, *array); })) {
      fail("is of an array that no score in mods reads");
    }
    if (std::any_of(to.captured.begin(), to.captured.end(),
                    [&](const core::CapturedTarget& other) { return other.array == array; })) {
      fail("is requested twice");
    }
    binder.check(name, one.to, array->name, array->view);
    to.captured.push_back({array, one.to});
  }
}

}  // namespace

core::GradientResults bind_gradients(const Problem& p, const Inputs& inputs, const Options& options,
                                     const InputGradients& gradients) {
  core::GradientResults to;
  Binder binder(p);
  bind_input(binder, "input_gradients.q", gradients.q, "q", inputs.q, to.q);
  bind_input(binder, "input_gradients.k", gradients.k, "k", inputs.k, to.k);
  bind_input(binder, "input_gradients.v", gradients.v, "v", inputs.v, to.v);
  bind_norm(binder, options, gradients.qk_norm, to);
  bind_score(binder, options, gradients.score, to);
  if (binder.check("input_gradients.bias", gradients.bias, "bias", options.bias)) {
    to.bias = array_target(p, gradients.bias);
  }
  if (binder.check("input_gradients.alibi", gradients.alibi, "alibi", options.alibi)) {
    to.alibi = per_head_target(p, gradients.alibi);
  }
  if (binder.check("input_gradients.sinks", gradients.sinks, "sinks", options.sinks)) {
    to.sinks = per_head_target(p, gradients.sinks);
  }
  bind_captured(binder, options, gradients.captured, to);
  if (!binder.any()) {
    throw Error(p.function, "input_gradients", "name no buffer, so there is nothing to compute");
  }
  for (GradientTarget* target : to.all()) {
    target->accumulate = gradients.write == Write::kAccumulate;
  }
  for (core::CapturedTarget& target : to.captured) {
    target.accumulate = gradients.write == Write::kAccumulate;
  }
  return to;
}

}  // namespace qkv::attn
