// SPDX-License-Identifier: Apache-2.0
// The plans of qkv/c.h.
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include <qkv/attention.h>
#include <qkv/c.h>

#include "c/handles.h"
#include "c/last_error.h"
#include "c/reader.h"

namespace qkv::c {
namespace {

constexpr std::string_view kPlan = "Plan";
constexpr std::string_view kRun = "Plan::run";
constexpr std::string_view kBackward = "Plan::backward";

Plan& plan_of(std::string_view function, qkv_plan* plan) {
  if (plan == nullptr) throw Error(function, "plan", "is a null pointer");
  return plan->plan;
}

}  // namespace
}  // namespace qkv::c

// The functions of C are in no namespace. A unity build includes this file, so clang-tidy takes it
// for a header.
// NOLINTBEGIN(google-global-names-in-headers)
using qkv::c::guarded;
using qkv::c::kBackward;
using qkv::c::kPlan;
using qkv::c::kRun;
using qkv::c::plan_of;
using qkv::c::Reader;
using qkv::c::StoppableContext;
// NOLINTEND(google-global-names-in-headers)

extern "C" {

qkv_status qkv_plan_create(const qkv_inputs* inputs, const qkv_options* options,
                           qkv_context* context, qkv_plan** plan) noexcept {
  if (plan != nullptr) *plan = nullptr;
  return guarded(kPlan, [&] {
    if (plan == nullptr) throw qkv::Error(kPlan, "plan", "is a null pointer");
    const Reader reader(kPlan);
    const qkv::Inputs its_inputs = reader.inputs(inputs);
    const qkv::Options its_options = reader.options(options);
    auto shared =
        context != nullptr ? context->shared : std::make_shared<StoppableContext>(qkv::Executor());
    qkv::Plan made(its_inputs, its_options, shared->context);
    *plan = std::make_unique<qkv_plan>(std::move(shared), std::move(made)).release();
  });
}

void qkv_plan_destroy(qkv_plan* plan) noexcept { delete plan; }

qkv_status qkv_plan_run(qkv_plan* plan, const qkv_inputs* inputs,
                        const qkv_outputs* outputs) noexcept {
  return guarded(kRun, [&] {
    const Reader reader(kRun);
    qkv::Plan& its_plan = plan_of(kRun, plan);
    const qkv::Inputs its_inputs = reader.inputs(inputs);
    its_plan.run(its_inputs, reader.outputs(outputs));
  });
}

qkv_status qkv_plan_backward(qkv_plan* plan, const qkv_inputs* inputs, const qkv_saved* saved,
                             const qkv_output_gradients* output_gradients,
                             const qkv_input_gradients* input_gradients) noexcept {
  return guarded(kBackward, [&] {
    const Reader reader(kBackward);
    qkv::Plan& its_plan = plan_of(kBackward, plan);
    const qkv::Inputs its_inputs = reader.inputs(inputs);
    const qkv::Saved its_saved = reader.saved(saved);
    const qkv::OutputGradients from = reader.output_gradients(output_gradients);
    its_plan.backward(its_inputs, its_saved, from, reader.input_gradients(input_gradients));
  });
}

// The names of paths are literals, which end with a null character.

const char* qkv_plan_path(const qkv_plan* plan) noexcept {
  return plan == nullptr ? "" : plan->plan.path().data();
}

const char* qkv_plan_backward_path(const qkv_plan* plan) noexcept {
  if (plan == nullptr || plan->plan.backward_path().empty()) return "";
  return plan->plan.backward_path().data();
}

size_t qkv_plan_scratch_bytes(const qkv_plan* plan) noexcept {
  return plan == nullptr ? 0 : plan->plan.scratch_bytes();
}

size_t qkv_plan_backward_scratch_bytes(const qkv_plan* plan) noexcept {
  return plan == nullptr ? 0 : plan->plan.backward_scratch_bytes();
}

}  // extern "C"
