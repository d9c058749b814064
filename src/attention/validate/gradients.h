// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_VALIDATE_GRADIENTS_H_
#define QKV_ATTENTION_VALIDATE_GRADIENTS_H_

#include <array>
#include <cstddef>
#include <string_view>
#include <variant>

#include <qkv/attention.h>

#include "core/message.h"
#include "core/parameter_name.h"
#include "core/results.h"
#include "expressions/node.h"

// The list of the gradients of a call: for each its name, its source, and its target in
// GradientResults. Checks, overlap checks and the binding of buffers go through this list.
namespace qkv::attn {

// How the axes of a gradient lie along those of the problem.
enum class GradientAxes {
  kRows,     // of q, k or v: [batch.., heads, rows, channels]; packed: [sum T, heads, channels]
  kPairs,    // of a bias: [batch.., heads, queries, keys]
  kMatrix,   // [rows, columns], or one for each head
  kVector,   // [columns], or one for each head
  kPerHead,  // [H], or [B,H] where B counts all batch axes
  kOwn,      // of a captured array
};

// Returns the target of one gradient in GradientResults. It is null for captured arrays, of which
// there may be any number.
using TargetPlace = core::GradientTarget& (*)(core::GradientResults& to);

template <core::GradientTarget core::GradientResults::*member>
core::GradientTarget& target_in(core::GradientResults& to) {
  return to.*member;
}
template <core::RowMapTargets core::GradientResults::*side,
          core::GradientTarget core::RowMapTargets::*member>
core::GradientTarget& target_in(core::GradientResults& to) {
  return to.*side.*member;
}

// The array of which a gradient is taken, and the axes and target of that gradient.
struct GradientSource {
  std::string_view name;  // in messages
  const ConstView& array;
  GradientAxes axes;
  TargetPlace target;
};

struct ParameterTarget {
  GradientAxes axes;
  TargetPlace target;
};

// The targets of a score's parameters, in the order of its for_each_parameter.
template <class S>
  requires(!has_parameters<S>())
constexpr std::array<ParameterTarget, 0> targets_of(const S&) {
  return {};
}
constexpr std::array<ParameterTarget, 1> targets_of(const Bilinear&) {
  using core::GradientResults, core::RowMapTargets;
  return {{{GradientAxes::kMatrix, target_in<&GradientResults::query, &RowMapTargets::w>}}};
}
constexpr std::array<ParameterTarget, 4> targets_of(const Additive&) {
  using core::GradientResults, core::RowMapTargets;
  return {{{GradientAxes::kMatrix, target_in<&GradientResults::query, &RowMapTargets::w>},
           {GradientAxes::kMatrix, target_in<&GradientResults::key, &RowMapTargets::w>},
           {GradientAxes::kVector, target_in<&GradientResults::score_v>},
           {GradientAxes::kVector, target_in<&GradientResults::query, &RowMapTargets::b>}}};
}

// Calls f(name, gradient, source) for each gradient, where `source` is a GradientSource. The
// gradient and the array in its source may be absent. `gradients` are InputGradients, const or not.
template <class Gradients, class F>
void for_each_gradient(Gradients& gradients, const Inputs& inputs, const Options& options,
                       const F& f) {
  using core::GradientResults, core::ParameterName, core::RowMapTargets;
  // The structured binding names every member, so that a new member does not compile until it is
  // here.
  auto& [q, k, v, qk_norm, score, bias, alibi, sinks, captured, write] = gradients;
  static_cast<void>(write);
  f("input_gradients.q", q, {"q", inputs.q, GradientAxes::kRows, target_in<&GradientResults::q>});
  f("input_gradients.k", k, {"k", inputs.k, GradientAxes::kRows, target_in<&GradientResults::k>});
  f("input_gradients.v", v, {"v", inputs.v, GradientAxes::kRows, target_in<&GradientResults::v>});
  constexpr TargetPlace kGains[] = {target_in<&GradientResults::query, &RowMapTargets::gain>,
                                    target_in<&GradientResults::key, &RowMapTargets::gain>};
  std::size_t side = 0;
  QkNorm::for_each_parameter([&, &of_norm = qk_norm](const char* name, auto value, auto its) {
    const TargetPlace target = kGains[side++];
    const ConstView source = options.qk_norm ? *options.qk_norm.*value : ConstView();
    if (!(of_norm.*its).given() && !source.given()) return;  // most calls have no norm
    f(ParameterName("input_gradients.qk_norm", name), of_norm.*its,
      {ParameterName(QkNorm::kName, name), source, GradientAxes::kVector, target});
  });
  std::visit(
      [&, &of_score = score]<class S>(const S& one) {
        auto* its_gradient = std::get_if<typename S::Gradient>(&of_score);
        if (its_gradient == nullptr) return;
        const auto targets = targets_of(one);
        std::size_t n = 0;
        S::for_each_parameter([&](const char* name, auto value, auto its) {
          const ParameterTarget& parameter = targets.at(n++);
          f(ParameterName("input_gradients.score", name), (*its_gradient).*its,
            {ParameterName(S::kName, name), one.*value, parameter.axes, parameter.target});
        });
      },
      options.score);
  f("input_gradients.bias", bias,
    {"bias", options.bias, GradientAxes::kPairs, target_in<&GradientResults::bias>});
  f("input_gradients.alibi", alibi,
    {"alibi", options.alibi, GradientAxes::kPerHead, target_in<&GradientResults::alibi>});
  f("input_gradients.sinks", sinks,
    {"sinks", options.sinks, GradientAxes::kPerHead, target_in<&GradientResults::sinks>});
  for (auto& one : captured) {
    const detail::CapturedArray& array = *one.of.shared_array();
    f(core::text("input_gradients.captured of ", array.name), one.to,
      {array.name, array.view, GradientAxes::kOwn, nullptr});
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_VALIDATE_GRADIENTS_H_
