// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "attention/validate/bind.h"
#include "attention/validate/gradients.h"
#include "attention/validate/shapes.h"
#include "core/message.h"
#include "expressions/program.h"

namespace qkv::attn {
namespace {

using core::GradientTarget;
using core::text;

// Checks the buffers of gradients: each must have the shape and dtype of its source, the array of
// which it is the gradient.
class Binder {
 public:
  // `sums_dtype`: the dtype that continued sums must have. If it is kNone, gradients must have the
  // dtypes of their sources.
  explicit Binder(const Problem& p, DType sums_dtype = DType::kNone)
      : p_(p), sums_dtype_(sums_dtype) {}

  // Checks the buffer against its source. Returns false if the gradient is not requested.
  bool check(std::string_view name, const View& buffer, std::string_view source_name,
             const ConstView& source) {
    if (!buffer.given()) return false;
    if (!source.given()) {
      throw Error(p_.function, name, text("is given but ", source_name, " is absent"));
    }
    return check(name, buffer, source_name, source,
                 sums_dtype_ == DType::kNone ? source.dtype() : sums_dtype_);
  }
  bool check(std::string_view name, const View& buffer, std::string_view source_name,
             const ConstView& source, DType dtype) {
    any_ = true;
    expect_dtype(p_, name, buffer, dtype, source_name, source.dtype());
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
  DType sums_dtype_;
  bool any_ = false;
};

// The strides of an array with the buffer's shape, as the problem's axes need them.
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

// Makes the target of a buffer. fill(axes, operand) sets an operand's strides; it is called with
// the strides of the buffer and with those of a C-ordered array of the same shape.
template <class Fill>
GradientTarget target(const View& buffer, const Fill& fill) {
  GradientTarget to{buffer, {}, {}};
  to.direct.data = buffer.data();
  to.direct.dtype = buffer.dtype();
  fill(Axes(buffer, buffer.strides()), to.direct);
  fill(Axes(buffer, contiguous_strides(buffer.shape())), to.own);
  return to;
}

// The target of q, k, v or bias, whose axes are the last ones of [batch..., head, row, col].
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

GradientTarget target_along(const Problem& p, const View& buffer, GradientAxes axes) {
  switch (axes) {
    case GradientAxes::kRows:
      return p.packed() ? packed_target(buffer) : array_target(p, buffer);
    case GradientAxes::kPairs:
      return array_target(p, buffer);
    case GradientAxes::kMatrix:
      return parameter_target(p, buffer, 2);
    case GradientAxes::kVector:
      return parameter_target(p, buffer, 1);
    case GradientAxes::kPerHead:
      return per_head_target(p, buffer);
    case GradientAxes::kOwn:
      break;
  }
  return {buffer, {}, {}};
}

// Throws Error if the gradient is that of another score than the call's.
void check_score(const Problem& p, const Options& options, const ScoreGradient& gradient) {
  if (std::holds_alternative<std::monostate>(gradient)) return;
  const bool is_its_gradient = std::visit(
      [&]<class S>(const S&) { return std::holds_alternative<typename S::Gradient>(gradient); },
      options.score);
  if (is_its_gradient) return;
  std::string_view its_score;
  for_each_alternative<Score>([&]<class S>() {
    if (std::holds_alternative<typename S::Gradient>(gradient)) its_score = S::kName;
  });
  throw Error(
      p.function, "input_gradients.score",
      text("is the gradient of ", its_score, ", but the score is ", name_of(options.score)));
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
    const bool is_wide = one.to.dtype() == DType::kFloat64;
    binder.check(name, one.to, array->name, array->view,
                 is_wide ? DType::kFloat64 : array->view.dtype());
    to.captured.push_back({array, one.to});
  }
}

}  // namespace

namespace {

// Checks that the rows of continued sums are contiguous, and that no input is broadcast, so that
// each row belongs to one head of one batch entry.
void check_rows(const Problem& p, const core::GradientResults& to) {
  const auto check = [&](const char* name, const GradientTarget& x, Index heads) {
    if (!x.given()) return;
    bool is_broadcast = heads != 1 && x.own.head_stride == 0;
    for (int axis = 0; axis < p.batch.rank(); ++axis) {
      is_broadcast = is_broadcast || (p.batch[axis] != 1 && x.own.batch_strides[axis] == 0);
    }
    const bool has_rows = x.direct.col_stride == 1 || x.buffer.size(-1) == 1;
    if (!is_broadcast && has_rows) return;
    throw Error(p.function, name,
                text("must have contiguous channels, and its input must not be broadcast, got ",
                     describe(x.buffer), " with strides ", to_string(x.buffer.strides())));
  };
  check("sums.q", to.q, p.H);
  check("sums.k", to.k, p.G);
  check("sums.v", to.v, p.G);
}

}  // namespace

void check_plain_products(const Problem& p) {
  if (p.packed()) {
    throw Error(p.function, "cu_seqlens_q",
                "is given, but the sums are of sequences of one length");
  }
  if (p.product == core::PairProduct::kDot && p.query_maps.is_identity() &&
      p.key_maps.is_identity()) {
    return;
  }
  throw Error(
      p.function, "options",
      "must have dot products without qk_norm and rotary: only their sums are made in steps");
}

core::GradientResults bind_sums(const Problem& p, const Inputs& inputs, const GradientSums& sums) {
  check_plain_products(p);
  core::GradientResults to;
  Binder binder(p, p.accumulator);
  const auto bind = [&](const char* name, const View& buffer, const char* source_name,
                        const ConstView& source, GradientTarget& target) {
    if (binder.check(name, buffer, source_name, source)) target = array_target(p, buffer);
  };
  bind("sums.q", sums.q, "q", inputs.q, to.q);
  bind("sums.k", sums.k, "k", inputs.k, to.k);
  bind("sums.v", sums.v, "v", inputs.v, to.v);
  if (!binder.any()) {
    throw Error(p.function, "sums", "name no buffer, so there is nothing to compute");
  }
  for (GradientTarget* target : to.all()) target->continues = true;
  check_rows(p, to);
  return to;
}

core::GradientResults bind_gradients(const Problem& p, const Inputs& inputs, const Options& options,
                                     const InputGradients& gradients) {
  core::GradientResults to;
  Binder binder(p);
  check_score(p, options, gradients.score);
  for_each_gradient(gradients, inputs, options,
                    [&](std::string_view name, const View& buffer, const GradientSource& source) {
                      if (source.target == nullptr) return;  // bind_captured() binds it
                      if (!binder.check(name, buffer, source.name, source.array)) return;
                      source.target(to) = target_along(p, buffer, source.axes);
                    });
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
