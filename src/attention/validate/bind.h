// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_VALIDATE_BIND_H_
#define QKV_ATTENTION_VALIDATE_BIND_H_

#include <functional>
#include <string_view>

#include <qkv/attention.h>

#include "core/problem.h"
#include "core/results.h"

// The second half of validation: buffers for results and gradients are checked against the problem
// and against each other. The first half is resolve.h.
namespace qkv::attn {

// The functions bind_...() make operands of buffers. They throw Error for a wrong shape or dtype,
// for listed rows out of range, and if there is nothing to compute.
core::Results bind_outputs(const core::Problem& p, const Outputs& outputs);
// The results of attention_step(), which may have no outputs.
core::Results bind_step(const core::Problem& p, const AttentionState& state,
                        const Outputs& outputs);

core::GradientSources bind_sources(const core::Problem& p, const Saved& saved,
                                   const OutputGradients& gradients);
core::GradientResults bind_gradients(const core::Problem& p, const Inputs& inputs,
                                     const Options& options, const InputGradients& gradients);

// The sums that attention_backward_step() continues, and the sums of weights that it takes.
core::GradientResults bind_sums(const core::Problem& p, const Inputs& inputs,
                                const GradientSums& sums);
core::Operand bind_known_weight_sums(const core::Problem& p, const ConstView& sums);
// The only source of add_weight_sums(), and the sums that it adds to.
core::GradientSources bind_lse(const core::Problem& p, const ConstView& lse);
core::GradientResults bind_weight_sums(const core::Problem& p, const View& sums);
// Throws Error for packed sequences, and unless scores are dot products of untransformed rows.
void check_plain_products(const core::Problem& p);

// Throws Error if an output may share memory with an input, another output, or itself.
void check_overlap(const core::Problem& p, const Inputs& inputs, const Options& options,
                   const Outputs& outputs);
void check_overlap(const core::Problem& p, const Inputs& inputs, const Options& options,
                   const AttentionState& state, const Outputs& outputs);
void check_overlap(const core::Problem& p, const Inputs& inputs, const Options& options,
                   const ConstView& lse, const View& sums);
void check_overlap(const core::Problem& p, const Inputs& inputs, const Options& options,
                   const SavedOfAll& saved, const OutputGradients& sources,
                   const GradientSums& sums);
void check_overlap(const core::Problem& p, const Inputs& inputs, const Options& options,
                   const Saved& saved, const OutputGradients& sources,
                   const InputGradients& gradients);

// Calls f(name, view) for each array in the inputs and options, absent ones too.
using VisitView = std::function<void(std::string_view name, const ConstView& view)>;
void visit_inputs(const Inputs& inputs, const Options& options, const VisitView& f);

// Whether any option holds an array.
bool reads_arrays(const Options& options);

// ---- plans that run again -------------------------------------------------------------------

// Whether a call's validity may depend on numbers in arrays other than q, k and v, so that the call
// must be validated whenever it runs.
bool has_values_to_check(const Inputs& inputs, const Options& options, const Outputs& outputs);

// How much two calls with equal options have in common, if neither has values to check.
enum class Repeat {
  kNone,    // anything may differ
  kLayout,  // dtypes, shapes and strides of all arrays are equal: only overlaps are left to check
  kArrays,  // the memory of all arrays is the same too: nothing is left to check
};
Repeat compare(const Inputs& inputs, const Outputs& outputs, const Inputs& inputs_before,
               const Outputs& outputs_before);

// Replaces the addresses in a problem and its results by those of arrays of the same layout.
void put_addresses(const Inputs& inputs, const Outputs& outputs, core::Problem& p,
                   core::Results& results);

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_VALIDATE_BIND_H_
