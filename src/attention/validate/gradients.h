// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_VALIDATE_GRADIENTS_H_
#define QKV_ATTENTION_VALIDATE_GRADIENTS_H_

#include <optional>
#include <variant>

#include <qkv/attention.h>

#include "core/message.h"
#include "core/parameter_name.h"
#include "expressions/node.h"

namespace qkv::attn {

// Calls f(name, gradient, source) for each gradient, where source is the array of which it is the
// gradient. Either may be absent. `gradients` are InputGradients, const or not.
template <class Gradients, class F>
void for_each_gradient(Gradients& gradients, const Inputs& inputs, const Options& options,
                       const F& f) {
  // The binding names every member: one more does not compile until it is here.
  auto& [q, k, v, qk_norm, score, bias, alibi, sinks, captured, write] = gradients;
  static_cast<void>(write);
  f("input_gradients.q", q, inputs.q);
  f("input_gradients.k", k, inputs.k);
  f("input_gradients.v", v, inputs.v);
  QkNorm::for_each_parameter([&, &of_norm = qk_norm](const char* name, auto value, auto its) {
    const ConstView source = options.qk_norm ? *options.qk_norm.*value : ConstView();
    if (!(of_norm.*its).given() && !source.given()) return;  // most calls have no norm
    f(core::ParameterName("input_gradients.qk_norm", name), of_norm.*its, source);
  });
  std::visit(
      [&, &of_score = score]<class S>(const S& one) {
        auto* its_gradient = std::get_if<typename S::Gradient>(&of_score);
        if (its_gradient == nullptr) return;
        S::for_each_parameter([&](const char* name, auto value, auto its) {
          f(core::ParameterName("input_gradients.score", name), (*its_gradient).*its, one.*value);
        });
      },
      options.score);
  f("input_gradients.bias", bias, options.bias);
  f("input_gradients.alibi", alibi, options.alibi);
  f("input_gradients.sinks", sinks, options.sinks);
  for (auto& one : captured) {
    const detail::CapturedArray& array = *one.of.shared_array();
    f(core::text("input_gradients.captured of ", array.name), one.to, array.view);
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_VALIDATE_GRADIENTS_H_
