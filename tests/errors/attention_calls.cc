// SPDX-License-Identifier: Apache-2.0
// Calls of attention and attention_backward, of their steps, and of merge, precompute and Plan.
#include <exception>
#include <memory>
#include <string>

#include <qkv/attention.h>

#include "tests/errors/attention_arguments.h"
#include "tests/errors/calls.h"

namespace qkv::test {
namespace {

// ---- contexts -------------------------------------------------------------------------------

// Makes the call from within another call on the same context: from that call's mask.
void call_while_in_use(Context& context, const std::function<void(Context&)>& call) {
  std::exception_ptr thrown;
  const MaskMod mask = mask_mod([&](At) {
    try {
      call(context);
    } catch (...) {
      thrown = std::current_exception();
    }
    return true;
  });
  float one = 1;
  float out = 0;
  const ConstView x(&one, {1, 1});
  attention({x, x, x}, {.masks = {mask}}, {.out = View(&out, {1, 1})}, context);
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

// Returns the call on the context that the arguments describe.
Call with_context(Arguments& a, std::function<void(Context&)> call) {
  const bool in_use = choice(a, "context", {"", "in_use"}) == 1;
  return [in_use, path = a.word("context.path"), call = std::move(call)] {
    Context context;
    if (in_use) return call_while_in_use(context, call);
    context.force_path(path);
    call(context);
  };
}

Call precompute_call(Arguments& a) {
  return [mask = mask_mod_of(a), Tq = a.whole("Tq", 4), Tk = a.whole("Tk", 4), B = a.whole("B", 1),
          H = a.whole("H", 1)] { precompute(mask, Tq, Tk, B, H); };
}

// ---- the calls ------------------------------------------------------------------------------

Call attention_call(Arguments& a) {
  return with_context(a, [inputs = inputs_of(a), options = options_of(a), outputs = outputs_of(a)](
                             Context& context) { attention(inputs, options, outputs, context); });
}

Call step_call(Arguments& a) {
  const AttentionState state{a.output("state.max"), a.output("state.sum"), a.output("state.acc")};
  return with_context(
      a, [inputs = inputs_of(a), options = options_of(a), state, outputs = outputs_of(a)](
             Context& context) { attention_step(inputs, options, state, outputs, context); });
}

Call backward_step_call(Arguments& a) {
  const SavedOfAll saved{a.input("saved.out"), a.input("saved.lse"), a.input("saved.weight_sums")};
  const OutputGradients from{.out = a.input("output_gradients.out"),
                             .lse = a.input("output_gradients.lse"),
                             .weights = a.input("output_gradients.weights")};
  const GradientSums sums{a.output("sums.q"), a.output("sums.k"), a.output("sums.v")};
  return with_context(
      a, [inputs = inputs_of(a), options = options_of(a), saved, from, sums](Context& context) {
        attention_backward_step(inputs, options, saved, from, sums, context);
      });
}

Call weight_sums_call(Arguments& a) {
  return with_context(a, [inputs = inputs_of(a), options = options_of(a), lse = a.input("lse"),
                          sums = a.output("sums")](Context& context) {
    add_weight_sums(inputs, options, lse, sums, context);
  });
}

Call merge_call(Arguments& a) {
  return [out = a.output("out"), lse = a.output("lse"), out2 = a.input("out2"),
          lse2 = a.input("lse2")] { merge(out, lse, out2, lse2); };
}

Call backward_call(Arguments& a) {
  return with_context(a, [inputs = inputs_of(a), options = options_of(a),
                          x = backward_arrays_of(a)](Context& context) {
    attention_backward(inputs, options, x.saved, x.from, x.to, context);
  });
}

Call plan_call(Arguments& a) {
  return with_context(a, [inputs = inputs_of(a), options = options_of(a)](Context& context) {
    const Plan plan(inputs, options, context);
  });
}

// Plans are made while the call is prepared, so that only running them can fail.
struct Planned {
  Context context;
  Inputs inputs;
  Plan plan;
  explicit Planned(Arguments& a)
      : inputs(inputs_of(a)), plan(planned_inputs(a, inputs), options_of(a), context) {}
};

std::shared_ptr<Planned> plan_of(Arguments& a) try {
  return std::make_shared<Planned>(a);
} catch (const Error& error) {
  throw TableError(std::string("the plan cannot be made: ") + error.what());
}

// Returns the call on the plan's own context, which may be in use by another call.
Call with_plan(Arguments& a, const std::shared_ptr<Planned>& planned,
               std::function<void(Planned&)> call) {
  const bool in_use = choice(a, "context", {"", "in_use"}) == 1;
  return [in_use, planned, call = std::move(call)] {
    if (!in_use) return call(*planned);
    call_while_in_use(planned->context, [&](Context&) { call(*planned); });
  };
}

Call run_call(Arguments& a) {
  return with_plan(a, plan_of(a),
                   [outputs = outputs_of(a)](Planned& x) { x.plan.run(x.inputs, outputs); });
}

Call plan_backward_call(Arguments& a) {
  return with_plan(a, plan_of(a), [arrays = backward_arrays_of(a)](Planned& x) {
    x.plan.backward(x.inputs, arrays.saved, arrays.from, arrays.to);
  });
}

}  // namespace

Call prepare_attention(Arguments& arguments) {
  const std::string& function = arguments.function();
  if (function == "attention") return attention_call(arguments);
  if (function == "attention_backward") return backward_call(arguments);
  if (function == "attention_step") return step_call(arguments);
  if (function == "attention_backward_step") return backward_step_call(arguments);
  if (function == "add_weight_sums") return weight_sums_call(arguments);
  if (function == "merge") return merge_call(arguments);
  if (function == "precompute") return precompute_call(arguments);
  if (function == "Plan") return plan_call(arguments);
  if (function == "Plan::run") return run_call(arguments);
  if (function == "Plan::backward") return plan_backward_call(arguments);
  return nullptr;
}

}  // namespace qkv::test
