// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_VALIDATE_RESOLVE_H_
#define QKV_ATTENTION_VALIDATE_RESOLVE_H_

#include <string_view>

#include <qkv/attention.h>

#include "core/problem.h"

// Validation: it makes a checked problem of the user's arguments. Every function throws Error for
// invalid arguments, and none writes to the arrays.
namespace qkv::attn {

// Whether complex arrays are accepted: they exist for gradient checks only.
enum class Complex { kRefused, kAllowed };

// Whether the arrays of a call may be complex, and where they lie.
struct Arrays {
  Complex complex = Complex::kRefused;
  core::Memory memory = core::Memory::kHost;
};

// Fills `p` from inputs and options, which must outlive it. Reads lengths and offsets, which must
// be valid at this point; cu_seqlens, context_lens and block_tables are copied, since the sizes of
// memory and the places of keys depend on them. `stop` is polled while they are read, which may
// take long. Allocates nothing if `p` was filled before with as many masks and sequences, and no
// mask or mod is made from an expression.
//
// Calls with arrays in device memory begin with
//   resolve(function, stop, inputs, options, p, {.memory = core::Memory::kDevice})
// and go on with bind_outputs() and check_overlap() of bind.h, as other calls do. No array is read
// or copied: p.cu_seqlens_q and p.cu_seqlens_k (int32 or int64, with a stride) stay in device
// memory, p.Tq and p.Tk are then the totals, and the kernels must cope with whatever numbers the
// arrays hold (core::Memory). resolve_device.cc lists what is accepted.
void resolve(std::string_view function, const core::StopPoint& stop, const Inputs& inputs,
             const Options& options, core::ResolvedProblem& p, Arrays arrays = {});

// The steps of resolve(), in order. resolve_device() is only for arrays in device memory.
// resolve_inputs() calls resolve_packed_inputs() or resolve_paged_inputs() where needed, and
// resolve_options() calls resolve_masks().
void resolve_device(const Inputs& inputs, const Options& options, const core::Problem& p);
void resolve_inputs(const Inputs& inputs, Complex complex, core::ResolvedProblem& p);
void resolve_packed_inputs(const Inputs& inputs, core::ResolvedProblem& p);
void resolve_paged_inputs(const Inputs& inputs, core::ResolvedProblem& p);
void resolve_rows(const Options& options, core::Problem& p);
void resolve_score(const Inputs& inputs, const Options& options, core::Problem& p);
void resolve_options(const Options& options, core::ResolvedProblem& p);
void resolve_masks(const Options& options, core::ResolvedProblem& p);

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_VALIDATE_RESOLVE_H_
