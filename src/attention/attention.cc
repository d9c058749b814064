// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "attention/implementations.h"
#include "attention/validate/bind.h"
#include "attention/validate/gradients.h"
#include "attention/validate/resolve.h"
#include "core/message.h"
#include "core/shapes.h"
#include "runtime/tasks.h"

namespace qkv {
namespace {

constexpr std::string_view kAttention = "attention";
constexpr std::string_view kAttentionStep = "attention_step";
constexpr std::string_view kAddWeightSums = "add_weight_sums";
constexpr std::string_view kAttentionBackwardStep = "attention_backward_step";
constexpr std::string_view kAttentionBackward = "attention_backward";

bool has_elements(const View& x) {
  return x.given() && std::find(x.shape().begin(), x.shape().end(), 0) == x.shape().end();
}

// Whether some output has elements. If none has, the pass is not run: one axis has size 0, but
// loops over the other axes could be very long.
bool any_has_elements(const Outputs& x) {
  bool any = false;
  for_each_buffer(x,
                  [&](std::string_view, const View& buffer) { any = any || has_elements(buffer); });
  return any;
}

core::Results bind_forward(const Inputs& inputs, const Options& options, const Outputs& outputs,
                           const core::Problem& p) {
  const core::Results results = attn::bind_outputs(p, outputs);
  attn::check_overlap(p, inputs, options, outputs);
  return results;
}

// Whether there is a query. If there is none, every gradient is 0 and the pass is not run: B, H or
// the number of query rows is 0, but loops over the other two could be very long.
bool has_queries(const core::Problem& p) { return p.B > 0 && p.H > 0 && p.q_rows > 0; }

void set_to_zero(const View& x, const core::StopPoint& stop) {
  if (!x.is_contiguous()) {
    for (Index n = 0; n < x.size(0); ++n) {
      stop();
      const View part = slice(x, 0, n, n + 1);
      set_to_zero(View(part.data(), x.dtype(), core::sub_dims(x.shape(), 1, x.rank()),
                       core::sub_dims(x.strides(), 1, x.rank())),
                  stop);
    }
    return;
  }
  constexpr Index kBytesBetweenStops = 1 << 18;
  const Index bytes = x.element_count() * static_cast<Index>(size_of(x.dtype()));
  for (Index n = 0; n < bytes; n += kBytesBetweenStops) {
    stop();
    std::fill_n(static_cast<std::byte*>(x.data()) + n, std::min(bytes - n, kBytesBetweenStops),
                std::byte{0});
  }
}

// Whether there is a backward pass: keys in pages and q8 keys are for inference only.
bool has_gradients(const core::Problem& p) { return !p.paged() && p.k.dtype != DType::kQ8; }

void refuse_gradients(const core::Problem& p) {
  if (has_gradients(p)) return;
  if (!p.paged()) {
    throw Error(p.function, "k", "is q8, but keys and values of q8 have no backward pass",
                ErrorKind::kType);
  }
  throw Error(p.function, "block_tables", "is given, but keys in pages have no backward pass");
}

// The arguments of a backward call besides options and context.
struct BackwardArguments {
  const Inputs& inputs;
  const Saved& saved;
  const OutputGradients& sources;
  const InputGradients& gradients;
};

void run_backward(const BackwardArguments& x, const Options& options, const core::Problem& p,
                  const attn::Implementation& implementation, runtime::Call& call) {
  const core::GradientSources sources = attn::bind_sources(p, x.saved, x.sources);
  const core::GradientResults results = attn::bind_gradients(p, x.inputs, options, x.gradients);
  attn::check_overlap(p, x.inputs, options, x.saved, x.sources, x.gradients);
  if (!has_queries(p)) {
    for (const core::GradientTarget* target : results.all()) {
      if (target->given() && !target->accumulate) set_to_zero(target->buffer, call.stop_point());
    }
    for (const core::CapturedTarget& target : results.captured) {
      if (!target.accumulate) set_to_zero(target.buffer, call.stop_point());
    }
    return;
  }
  implementation.backward(p, sources, results, call);
}

}  // namespace

void attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
               Context& context) {
  runtime::Call call(context, kAttention);
  core::ResolvedProblem p;
  attn::resolve(kAttention, call.stop_point(), inputs, options, p);
  const auto& by = attn::choose(p, context.forced_path(), attn::Pass::kForward);
  const core::Results results = bind_forward(inputs, options, outputs, p);
  if (any_has_elements(outputs)) by.forward(p, results, call);
}

void attention(const Inputs& inputs, const Options& options, const Outputs& outputs) {
  Context context;
  attention(inputs, options, outputs, context);
}

void attention_step(const Inputs& inputs, const Options& options, const AttentionState& state,
                    const Outputs& outputs, Context& context) {
  runtime::Call call(context, kAttentionStep);
  core::ResolvedProblem p;
  attn::resolve(kAttentionStep, call.stop_point(), inputs, options, p);
  const auto& by = attn::choose(p, context.forced_path(), attn::Pass::kForward);
  const core::Results results = attn::bind_step(p, state, outputs);
  attn::check_overlap(p, inputs, options, state, outputs);
  if (has_queries(p)) by.forward(p, results, call);
}

void attention_step(const Inputs& inputs, const Options& options, const AttentionState& state,
                    const Outputs& outputs) {
  Context context;
  attention_step(inputs, options, state, outputs, context);
}

void add_weight_sums(const Inputs& inputs, const Options& options, const ConstView& lse,
                     const View& sums, Context& context) {
  runtime::Call call(context, kAddWeightSums);
  core::ResolvedProblem p;
  attn::resolve(kAddWeightSums, call.stop_point(), inputs, options, p);
  refuse_gradients(p);
  const auto& by = attn::choose(p, context.forced_path(), attn::Pass::kBackward);
  const core::GradientSources from = attn::bind_lse(p, lse);
  const core::GradientResults to = attn::bind_weight_sums(p, sums);
  attn::check_overlap(p, inputs, options, lse, sums);
  if (has_queries(p)) by.backward(p, from, to, call);
}

void add_weight_sums(const Inputs& inputs, const Options& options, const ConstView& lse,
                     const View& sums) {
  Context context;
  add_weight_sums(inputs, options, lse, sums, context);
}

void attention_backward_step(const Inputs& inputs, const Options& options, const SavedOfAll& saved,
                             const OutputGradients& output_gradients, const GradientSums& sums,
                             Context& context) {
  runtime::Call call(context, kAttentionBackwardStep);
  core::ResolvedProblem p;
  attn::resolve(kAttentionBackwardStep, call.stop_point(), inputs, options, p);
  refuse_gradients(p);
  const auto& by = attn::choose(p, context.forced_path(), attn::Pass::kBackward);
  if (output_gradients.weights.matrix.given()) {
    throw Error(p.function, "output_gradients.weights", "is not available in steps");
  }
  const Saved of_call{saved.out, saved.lse};
  core::GradientSources sources = attn::bind_sources(p, of_call, output_gradients);
  sources.weight_sums = attn::bind_known_weight_sums(p, saved.weight_sums);
  const core::GradientResults results = attn::bind_sums(p, inputs, sums);
  attn::check_overlap(p, inputs, options, saved, output_gradients, sums);
  if (has_queries(p)) by.backward(p, sources, results, call);
}

void attention_backward_step(const Inputs& inputs, const Options& options, const SavedOfAll& saved,
                             const OutputGradients& output_gradients, const GradientSums& sums) {
  Context context;
  attention_backward_step(inputs, options, saved, output_gradients, sums, context);
}

void attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                        const OutputGradients& output_gradients,
                        const InputGradients& input_gradients, Context& context) {
  runtime::Call call(context, kAttentionBackward);
  core::ResolvedProblem p;
  attn::resolve(kAttentionBackward, call.stop_point(), inputs, options, p);
  refuse_gradients(p);
  run_backward({inputs, saved, output_gradients, input_gradients}, options, p,
               attn::choose(p, context.forced_path(), attn::Pass::kBackward), call);
}

void attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                        const OutputGradients& output_gradients,
                        const InputGradients& input_gradients) {
  Context context;
  attention_backward(inputs, options, saved, output_gradients, input_gradients, context);
}

// ---- Plan -----------------------------------------------------------------------------------

namespace {

using Bound = std::pair<DType, Dims>;  // dtype and shape of an input

}  // namespace

struct Plan::State {
  Options options;
  Context* context = nullptr;
  core::ResolvedProblem problem;  // of the last call; its shapes never change
  const attn::Implementation* forward = nullptr;
  const attn::Implementation* backward = nullptr;  // null if there is no backward pass
  std::array<Bound, 7> bound;                      // in the order of views_of(inputs)
  attn::ScratchSize forward_size, backward_size;
  // The arrays of the last run, and whether the next run may rely on what was checked then.
  bool repeats = false;
  Inputs inputs;
  Outputs outputs;
  core::Results results;
};

namespace {

const std::array<const char*, 7> kInputNames = {
    "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "block_tables", "context_lens"};

std::array<const ConstView*, 7> views_of(const Inputs& inputs) {
  return {&inputs.q,
          &inputs.k,
          &inputs.v,
          &inputs.cu_seqlens_q,
          &inputs.cu_seqlens_k,
          &inputs.block_tables,
          &inputs.context_lens};
}

std::string shown(const Bound& x) {
  return x.first == DType::kNone ? "absent"
                                 : core::text(name_of(x.first), " ", to_string(x.second));
}

// Returns every result that can be requested, without data, to measure an upper bound of the
// scratch memory.
core::Results every_result(const core::Problem& p) {
  core::Results all;
  core::for_each_operand(all, [&](const auto& result, core::ResultOperand& operand) {
    if (result.calls.without_values || p.v.given()) operand.dtype = p.accumulator;
  });
  // A worker holds at most this many rows and columns of cells at a time.
  all.pooled.m = core::kGradientBlock;
  all.pooled.n = core::kKeyChunk;
  all.top.count = p.Tk;
  return all;
}

// Returns every source of gradients, to measure the scratch memory of the backward pass: an upper
// bound if the channels of dout are contiguous.
core::GradientSources every_source(const core::Problem& p) {
  core::GradientSources all;
  if (p.v.given()) all.dout.dtype = p.dtype;
  if (!p.packed()) all.dweights.matrix.dtype = p.accumulator;
  all.dout.col_stride = all.dweights.matrix.col_stride = 1;
  return all;
}

// Returns all gradients, bound to C-ordered buffers that are overwritten.
core::GradientResults every_gradient(const core::Problem& p, const Inputs& inputs,
                                     const Options& options) {
  // The gradient's buffer is the memory of the input: no element is accessed.
  const auto like = [](const ConstView& x) {
    return x.given() ? View(const_cast<void*>(x.data()), x.dtype(), x.shape(),
                            contiguous_strides(x.shape()))
                     : View();
  };
  InputGradients all;
  std::visit([&]<class S>(const S&) { all.score = typename S::Gradient(); }, options.score);
  attn::for_each_gradient(
      all, inputs, options,
      [&](std::string_view, View& gradient, const attn::GradientSource& source) {
        gradient = like(source.array);
      });
  return attn::bind_gradients(p, inputs, options, all);
}

}  // namespace

Plan::Plan(const Inputs& inputs, const Options& options, Context& context)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.options = options;
  s.context = &context;
  runtime::Call call(context, "Plan");
  attn::resolve("Plan", call.stop_point(), inputs, s.options, s.problem);
  const std::string& forced = context.forced_path();
  s.forward = &attn::choose(s.problem, forced, attn::Pass::kForward);
  // A problem without a backward pass is an error of backward(), not of the plan.
  if (has_gradients(s.problem) && (forced.empty() || s.forward->has(attn::Pass::kBackward))) {
    s.backward = &attn::choose(s.problem, forced, attn::Pass::kBackward);
  }
  const auto views = views_of(inputs);
  for (std::size_t n = 0; n < views.size(); ++n) {
    s.bound[n] = {views[n]->dtype(), views[n]->shape()};
  }
  if (!has_queries(s.problem)) return;
  s.forward_size = s.forward->forward_scratch(s.problem, every_result(s.problem));
  if (s.backward != nullptr) {
    s.backward_size = s.backward->backward_scratch(s.problem, every_source(s.problem),
                                                   every_gradient(s.problem, inputs, s.options));
  }
  call.reserve(std::max(s.forward_size.shared, s.backward_size.shared),
               std::max(s.forward_size.per_worker, s.backward_size.per_worker));
}

Plan::~Plan() = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;

std::string_view Plan::path() const noexcept {
  return state_ == nullptr ? std::string_view() : state_->forward->name;
}

std::string_view Plan::backward_path() const noexcept {
  const bool none = state_ == nullptr || state_->backward == nullptr;
  return none ? std::string_view() : state_->backward->name;
}

namespace {

std::size_t total(const attn::ScratchSize& size, const Context& context) {
  return size.shared + size.per_worker * static_cast<std::size_t>(context.executor().concurrency());
}

}  // namespace

std::size_t Plan::scratch_bytes() const noexcept {
  return state_ == nullptr ? 0 : total(state_->forward_size, *state_->context);
}

std::size_t Plan::backward_scratch_bytes() const noexcept {
  return state_ == nullptr ? 0 : total(state_->backward_size, *state_->context);
}

namespace {

constexpr std::string_view kRun = "Plan::run";
constexpr std::string_view kBackward = "Plan::backward";

// Returns the state of a plan. Throws if it is null, as in a moved-from plan.
template <class State>
State& state_of(std::string_view function, const std::unique_ptr<State>& state) {
  if (state == nullptr) {
    throw Error(function, "plan", "must hold a problem, got a moved-from plan");
  }
  return *state;
}

void expect_bound(std::string_view function, const Inputs& inputs,
                  const std::array<Bound, 7>& bound) {
  const auto views = views_of(inputs);
  for (std::size_t n = 0; n < views.size(); ++n) {
    const Bound came{views[n]->dtype(), views[n]->shape()};
    if (came == bound[n]) continue;
    const bool dtypes_differ =
        came.first != bound[n].first && views[n]->given() && bound[n].first != DType::kNone;
    throw Error(
        function, kInputNames[n],
        core::text("is ", shown(came), " but was ", shown(bound[n]), " when the plan was made"),
        dtypes_differ ? ErrorKind::kType : ErrorKind::kValue);
  }
}

}  // namespace

void Plan::run(const Inputs& inputs, const Outputs& outputs) {
  State& s = state_of(kRun, state_);
  runtime::Call call(*s.context, kRun);  // before any line that writes to the plan
  const attn::Repeat repeat =
      s.repeats ? attn::compare(inputs, outputs, s.inputs, s.outputs) : attn::Repeat::kNone;
  s.repeats = false;  // until the call has been validated
  switch (repeat) {
    case attn::Repeat::kArrays:
      s.problem.stop = call.stop_point();
      break;
    case attn::Repeat::kLayout:
      s.problem.stop = call.stop_point();
      attn::put_addresses(inputs, outputs, s.problem, s.results);
      attn::check_overlap(s.problem, inputs, s.options, outputs);
      break;
    case attn::Repeat::kNone:
      expect_bound(kRun, inputs, s.bound);
      attn::resolve(kRun, call.stop_point(), inputs, s.options, s.problem);
      s.results = bind_forward(inputs, s.options, outputs, s.problem);
  }
  s.repeats =
      repeat != attn::Repeat::kNone || !attn::has_values_to_check(inputs, s.options, outputs);
  if (repeat != attn::Repeat::kArrays) {
    s.inputs = inputs;
    s.outputs = outputs;
  }
  if (any_has_elements(outputs)) s.forward->forward(s.problem, s.results, call);
}

void Plan::backward(const Inputs& inputs, const Saved& saved,
                    const OutputGradients& output_gradients,
                    const InputGradients& input_gradients) {
  State& s = state_of(kBackward, state_);
  runtime::Call call(*s.context, kBackward);
  s.repeats = false;  // backward() overwrites the problem
  expect_bound(kBackward, inputs, s.bound);
  attn::resolve(kBackward, call.stop_point(), inputs, s.options, s.problem);
  refuse_gradients(s.problem);
  const attn::Implementation& implementation =
      s.backward != nullptr ? *s.backward
                            : attn::choose(s.problem, s.forward->name, attn::Pass::kBackward);
  run_backward({inputs, saved, output_gradients, input_gradients}, s.options, s.problem,
               implementation, call);
}

}  // namespace qkv
