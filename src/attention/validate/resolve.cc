// SPDX-License-Identifier: Apache-2.0
#include "attention/validate/resolve.h"

#include <algorithm>
#include <limits>

#include "core/integers.h"
#include "core/message.h"

namespace qkv::attn {
namespace {

// Checks that the sizes of all arrays that an implementation allocates add up without overflow.
// There are at most 32 arrays, each with at most one row per (b, head, query or key), with elements
// of at most 8 bytes. A worker's block of kGradientBlock = 128 rows has fewer than 2^63 elements;
// core::Arena checks its bytes.
void check_sizes(const core::Problem& p) {
  constexpr Index kLargest = std::numeric_limits<Index>::max() / (Index{32} * 8);
  const Dims sizes{p.packed() ? 1 : p.B, std::max(p.H, p.G), std::max(p.q_rows, p.k_rows),
                   std::max({p.Dq, p.Dk, p.E, p.U})};
  Index count = 1;
  for (const Index size : sizes) {
    // A size of 0 counts as 1: strides, which are products of the other sizes, must not overflow
    // either.
    const auto product = core::checked_multiply(count, std::max<Index>(size, 1));
    if (product && *product <= kLargest) {
      count = *product;
      continue;
    }
    throw Error(p.function, "inputs",
                core::text("must have fewer than 2^55 rows times channels, got [B,H,T,D] = ",
                           to_string(sizes)));
  }
}

}  // namespace

void resolve(std::string_view function, const core::StopPoint& stop, const Inputs& inputs,
             const Options& options, core::ResolvedProblem& p, Arrays arrays) {
  p.function = function;
  p.stop = stop;
  p.memory = arrays.memory;
  if (p.on_device()) resolve_device(inputs, options, p);
  resolve_inputs(inputs, arrays.complex, p);
  p.value_heads = p.G;
  resolve_rows(options, p);
  resolve_score(inputs, options, p);
  resolve_options(options, p);
  check_sizes(p);
}

}  // namespace qkv::attn
