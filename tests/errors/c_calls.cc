// SPDX-License-Identifier: Apache-2.0
// Calls of attention, attention_backward, Plan and merge through qkv/c.h.
#include "tests/errors/c_calls.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include <qkv/c.h>

#include "tests/c/as_c.h"
#include "tests/errors/attention_arguments.h"

namespace qkv::test {
namespace {

void throw_if_failed(qkv_status status) {
  if (status == QKV_OK) return;
  const std::string_view text = qkv_last_error();
  const std::size_t colon = text.find(": ");
  const bool is_type = status == QKV_INVALID_TYPE;
  if ((!is_type && status != QKV_INVALID_ARGUMENT) || colon == std::string_view::npos) {
    throw std::runtime_error(std::string(qkv_status_name(status)) + " " + std::string(text));
  }
  throw Error(text.substr(0, colon), "", text.substr(colon + 2),
              is_type ? ErrorKind::kType : ErrorKind::kValue);
}

struct DestroyContext {
  void operator()(qkv_context* context) const { qkv_context_destroy(context); }
};
struct DestroyPlan {
  void operator()(qkv_plan* plan) const { qkv_plan_destroy(plan); }
};
using OwnedContext = std::unique_ptr<qkv_context, DestroyContext>;
using OwnedPlan = std::unique_ptr<qkv_plan, DestroyPlan>;

OwnedContext context_on(const std::string& path) {
  qkv_context* context = nullptr;
  throw_if_failed(qkv_context_create(1, &context));
  OwnedContext owned(context);
  throw_if_failed(qkv_context_force_path(context, path.c_str()));
  return owned;
}

Call attention_call(Arguments& a, const qkv_inputs& inputs, const qkv_options& options) {
  return [inputs, options, outputs = as_c(outputs_of(a)), path = a.word("context.path")] {
    throw_if_failed(qkv_attention(&inputs, &options, &outputs, context_on(path).get()));
  };
}

struct BackwardStructs {
  qkv_saved saved;
  qkv_output_gradients from;
  qkv_input_gradients to;
};

BackwardStructs backward_structs_of(Arguments& a) {
  const BackwardArrays arrays = backward_arrays_of(a);
  return {as_c(arrays.saved), as_c(arrays.from), as_c(arrays.to)};
}

Call backward_call(Arguments& a, const qkv_inputs& inputs, const qkv_options& options) {
  return [inputs, options, x = backward_structs_of(a), path = a.word("context.path")] {
    throw_if_failed(qkv_attention_backward(&inputs, &options, &x.saved, &x.from, &x.to,
                                           context_on(path).get()));
  };
}

Call plan_call(Arguments& a, const qkv_inputs& inputs, const qkv_options& options) {
  return [inputs, options, path = a.word("context.path")] {
    qkv_plan* plan = nullptr;
    const qkv_status status = qkv_plan_create(&inputs, &options, context_on(path).get(), &plan);
    const OwnedPlan owned(plan);
    throw_if_failed(status);
  };
}

std::shared_ptr<qkv_plan> plan_of(Arguments& a, const Inputs& inputs, const qkv_options& options) {
  const qkv_inputs planned = as_c(planned_inputs(a, inputs));
  qkv_plan* plan = nullptr;
  if (qkv_plan_create(&planned, &options, nullptr, &plan) != QKV_OK) {
    throw TableError(std::string("the plan cannot be made: ") + qkv_last_error());
  }
  return {plan, DestroyPlan{}};
}

Call run_call(Arguments& a, const Inputs& inputs, const qkv_options& options) {
  return [plan = plan_of(a, inputs, options), in_c = as_c(inputs), outputs = as_c(outputs_of(a))] {
    throw_if_failed(qkv_plan_run(plan.get(), &in_c, &outputs));
  };
}

Call plan_backward_call(Arguments& a, const Inputs& inputs, const qkv_options& options) {
  return [plan = plan_of(a, inputs, options), in_c = as_c(inputs), x = backward_structs_of(a)] {
    throw_if_failed(qkv_plan_backward(plan.get(), &in_c, &x.saved, &x.from, &x.to));
  };
}

Call merge_call(Arguments& a) {
  return [out = as_c(a.output("out")), lse = as_c(a.output("lse")), out2 = as_c(a.input("out2")),
          lse2 = as_c(a.input("lse2"))] { throw_if_failed(qkv_merge(&out, &lse, &out2, &lse2)); };
}

}  // namespace

Call prepare_in_c(Arguments& arguments) try {
  const std::string& function = arguments.function();
  if (function == "merge") return merge_call(arguments);
  const bool has_options = function == "attention" || function == "attention_backward" ||
                           function == "Plan" || function == "Plan::run" ||
                           function == "Plan::backward";
  if (!has_options || arguments.has("context")) return nullptr;
  const Inputs inputs = inputs_of(arguments);
  const std::optional<qkv_options> options = as_c(options_of(arguments));
  if (!options) return nullptr;
  if (function == "attention") return attention_call(arguments, as_c(inputs), *options);
  if (function == "attention_backward") return backward_call(arguments, as_c(inputs), *options);
  if (function == "Plan") return plan_call(arguments, as_c(inputs), *options);
  if (function == "Plan::run") return run_call(arguments, inputs, *options);
  return plan_backward_call(arguments, inputs, *options);
} catch (const std::invalid_argument&) {
  return nullptr;
}

bool is_in_c(const Row& row) {
  try {
    Arguments arguments(row.call);
    return prepare_in_c(arguments) != nullptr;
  } catch (const TableError&) {
    return false;
  }
}

}  // namespace qkv::test
