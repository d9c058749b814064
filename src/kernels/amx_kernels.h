// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_KERNELS_AMX_KERNELS_H_
#define QKV_KERNELS_AMX_KERNELS_H_

#include "kernels/gradient_kernels.h"

// AMX products of BF16 (core/bfloat16_products.h), for the targets amx and amx-emulated.
//
// The tables hold these kernels and, for all else, those of avx512. The operands are words of two
// BF16 numbers, as in dot2 kernels (kernels/dot2_kernels.h). weighted_sum, stored_sum and
// transposed_sum take any number of rows. Callers may split sums, but for scores, only at multiples
// of 32 terms.
namespace qkv::kernels {

constexpr bool has_amx_products(Target target) noexcept {
  return target == Target::kAmx || target == Target::kEmulatedAmx;
}

// The tables for a target for which has_amx_products() and is_supported() are true.
const DotKernels<float>& amx_kernels(Target target) noexcept;
const GradientKernels<float>& amx_gradient_kernels(Target target) noexcept;

// Whether the CPU and the operating system have AMX with BF16, and the system lets this process use
// it. The system is asked once, by arch_prctl(2); from then on it refuses signal stacks that are
// too small for tiles.
bool amx_is_permitted() noexcept;

// The shapes of the tiles of c += a b, where a has [rows][words], b [words][columns] and c
// [rows][columns]; a and b are words of two BF16 numbers. Each size is at most 16, and at least 1
// unless there are no tiles.
struct TileShape {
  Index rows = 0;
  Index columns = 0;
  Index words = 0;
  friend bool operator==(const TileShape&, const TileShape&) = default;
};

// The shapes that kernels of kAmx have given this thread's tiles; sizes of 0 if it has none.
extern constinit thread_local TileShape configured_shape;

// Releases the tiles that kernels of kAmx have configured in this thread: the system then need not
// save them, and other code of the thread may use AMX.
void release_tiles() noexcept;

// Releases the tiles at the end of a scope.
struct TileScope {
  TileScope() = default;
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
  ~TileScope() { release_tiles(); }
};

}  // namespace qkv::kernels

#endif  // QKV_KERNELS_AMX_KERNELS_H_
