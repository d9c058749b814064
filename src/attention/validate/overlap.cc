// SPDX-License-Identifier: Apache-2.0
#include "core/overlap.h"

#include <string_view>

#include "attention/validate/bind.h"
#include "attention/validate/gradients.h"
#include "core/message.h"
#include "core/parameter_name.h"
#include "expressions/program.h"

namespace qkv::attn {
namespace {

// Calls f(name, view) with the array inside a diagonal or a mask, if it holds one.
template <class F>
void view_inside(const F&, const BottomRight&) {}
template <class F>
void view_inside(const F&, const TopLeft&) {}
template <class F>
void view_inside(const F&, const Offset&) {}
template <class F>
void view_inside(const F& f, const Offsets& x) {
  f("diagonal", x.o);
}
template <class F>
void view_inside(const F&, const Causal&) {}
template <class F>
void view_inside(const F&, const Window&) {}
template <class F>
void view_inside(const F& f, const Keep& x) {
  f(Keep::kName, x.keep);
}
template <class F>
void view_inside(const F& f, const Padding& x) {
  f(Padding::kName, x.padding);
}
template <class F>
void view_inside(const F& f, const KeyLengths& x) {
  f(KeyLengths::kName, x.lengths);
}
// Calls f(name, view) for the arrays that the expression of a mod reads.
template <class F>
void view_inside(const F& f, const detail::ExpressionProgram* program) {
  if (program == nullptr) return;
  for (const expressions::Step& step : program->program.steps()) {
    if (step.array != nullptr) f(step.array->name, step.array->view);
  }
}
template <class F>
void view_inside(const F& f, const MaskMod& x) {
  view_inside(f, x.program.get());
}

// Calls f(name, view) for each array that the options hold; absent views too.
template <class F>
void for_each_option_view(const Options& options, const F& f) {
  if (options.qk_norm) {
    QkNorm::for_each_parameter([&](const char* name, auto value, auto) {
      f(core::ParameterName(QkNorm::kName, name), *options.qk_norm.*value);
    });
  }
  if (options.rotary) {
    Rotary::for_each_array([&](const char* name, auto value) {
      f(core::ParameterName(Rotary::kName, name), *options.rotary.*value);
    });
  }
  std::visit(
      [&]<class S>(const S& score) {
        S::for_each_parameter([&](const char* name, auto value, auto) {
          f(core::ParameterName(S::kName, name), score.*value);
        });
      },
      options.score);
  for (const ScoreMod& mod : options.mods) view_inside(f, mod.program.get());
  f("bias", options.bias);
  const auto view = [&](const auto& one) { view_inside(f, one); };
  std::visit(view, options.diagonal);
  f("alibi", options.alibi);
  for (const Mask& mask : options.masks) std::visit(view, mask);
  f("sinks", options.sinks);
}

[[noreturn]] void complain(const core::Problem& p, std::string_view name, const ConstView& view,
                           std::string_view other_name, const ConstView& other) {
  throw Error(p.function, name,
              core::text("must not share memory with ", other_name, " (", name, " ", describe(view),
                         ", ", other_name, " ", describe(other), ")"));
}

// Throws Error for an output that overlaps itself, an input or another output. outputs(f) calls
// f(name, view) for each output, inputs(f) for each input.
template <class EachOutput, class EachInput>
void check_all(const core::Problem& p, const EachOutput& outputs, const EachInput& inputs) {
  int first = 0;
  outputs([&](std::string_view name, const View& output) {
    ++first;
    if (!output.given()) return;
    const ConstView view = output;
    if (core::self_overlaps(view)) {
      throw Error(p.function, name,
                  core::text("must not overlap itself, got ", describe(view), " with strides ",
                             to_string(view.strides())));
    }
    inputs([&](std::string_view other_name, const ConstView& other) {
      if (other.given() && core::may_overlap(view, other))
        complain(p, name, view, other_name, other);
    });
    int second = 0;
    outputs([&](std::string_view other_name, const View& other) {
      if (++second <= first || !other.given()) return;
      if (core::may_overlap(view, other)) complain(p, other_name, other, name, view);
    });
  });
}

template <class F>
void for_each_input(const Inputs& inputs, const Options& options, const F& f) {
  f("q", inputs.q);
  f("k", inputs.k);
  f("v", inputs.v);
  f("cu_seqlens_q", inputs.cu_seqlens_q);
  f("cu_seqlens_k", inputs.cu_seqlens_k);
  f("block_tables", inputs.block_tables);
  f("context_lens", inputs.context_lens);
  for_each_option_view(options, f);
}

}  // namespace

void visit_inputs(const Inputs& inputs, const Options& options, const VisitView& f) {
  for_each_input(inputs, options, f);
}

bool reads_arrays(const Options& options) {
  bool any = false;
  for_each_option_view(options,
                       [&](std::string_view, const ConstView& view) { any = any || view.given(); });
  return any;
}

void check_overlap(const core::Problem& p, const Inputs& inputs, const Options& options,
                   const Outputs& outputs) {
  check_all(
      p, [&](const auto& f) { for_each_buffer(outputs, f); },
      [&](const auto& f) {
        for_each_input(inputs, options, f);
        for_each_row_list(outputs, [&](std::string_view name, const ConstView& rows) {
          if (rows.given()) f(core::ParameterName(name, "rows"), rows);
        });
      });
}

void check_overlap(const core::Problem& p, const Inputs& inputs, const Options& options,
                   const AttentionState& state, const Outputs& outputs) {
  check_all(
      p,
      [&](const auto& f) {
        f("state.max", state.max);
        f("state.sum", state.sum);
        f("state.acc", state.acc);
        for_each_buffer(outputs, f);
      },
      [&](const auto& f) { for_each_input(inputs, options, f); });
}

void check_overlap(const core::Problem& p, const Inputs& inputs, const Options& options,
                   const ConstView& lse, const View& sums) {
  check_all(
      p, [&](const auto& f) { f("sums", sums); },
      [&](const auto& f) {
        for_each_input(inputs, options, f);
        f("lse", lse);
      });
}

void check_overlap(const core::Problem& p, const Inputs& inputs, const Options& options,
                   const SavedOfAll& saved, const OutputGradients& sources,
                   const GradientSums& sums) {
  check_all(
      p,
      [&](const auto& f) {
        f("sums.q", sums.q);
        f("sums.k", sums.k);
        f("sums.v", sums.v);
      },
      [&](const auto& f) {
        for_each_input(inputs, options, f);
        f("saved.out", saved.out);
        f("saved.lse", saved.lse);
        f("saved.weight_sums", saved.weight_sums);
        f("output_gradients.out", sources.out);
        f("output_gradients.lse", sources.lse);
      });
}

void check_overlap(const core::Problem& p, const Inputs& inputs, const Options& options,
                   const Saved& saved, const OutputGradients& sources,
                   const InputGradients& gradients) {
  check_all(
      p,
      [&](const auto& f) {
        for_each_gradient(gradients, inputs, options,
                          [&](std::string_view name, const View& gradient, const GradientSource&) {
                            f(name, gradient);
                          });
      },
      [&](const auto& f) {
        for_each_input(inputs, options, f);
        f("saved.out", saved.out);
        f("saved.lse", saved.lse);
        f("output_gradients.out", sources.out);
        f("output_gradients.lse", sources.lse);
        f("output_gradients.weights", sources.weights.matrix);
        f("output_gradients.weights.rows", sources.weights.rows);
      });
}

}  // namespace qkv::attn
