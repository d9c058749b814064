// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_OPTIMISER_PIECES_H_
#define QKV_TRANSLATOR_OPTIMISER_PIECES_H_

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include <qkv/context.h>

#include "kernels/update_kernels.h"
#include "translator/optimiser/gradients.h"

// Work on all numbers of some parameters, cut into pieces that are the tasks of an executor.
namespace qkv::app {

// The count of numbers in a piece. One piece in each of eight sets (256 KiB of float32) stays in
// the second-level cache, and 8,192 numbers are enough work for a task. The count is a constant
// because it determines the order of sums.
inline constexpr Index kPiece = 8192;

// A piece: `count` numbers of the parameter with index `parameter`, from number `first` on.
struct Piece {
  std::size_t parameter = 0;
  Index first = 0;
  Index count = 0;
};

// The pieces of all parameters in ascending order; an empty parameter has none.
inline std::vector<Piece> pieces_of(std::span<const TrainedParameter> list) {
  std::vector<Piece> pieces;
  for (std::size_t p = 0; p < list.size(); ++p) {
    const Index size = list[p].value.element_count();
    for (Index first = 0; first < size; first += kPiece) {
      pieces.push_back({p, first, std::min(kPiece, size - first)});
    }
  }
  return pieces;
}

// Calls f(piece, n) for each piece, n its index. f must not throw.
template <class F>
void for_each_piece(const Executor& executor, std::span<const Piece> pieces, const F& f) {
  struct Work {
    std::span<const Piece> pieces;
    const F& f;
  } work{pieces, f};
  executor.run(
      static_cast<Index>(pieces.size()),
      [](void* state, Index n) {
        const Work& all = *static_cast<const Work*>(state);
        all.f(all.pieces[static_cast<std::size_t>(n)], static_cast<std::size_t>(n));
      },
      &work);
}

// A pair of values: one for float32 parameters and one for float64 parameters.
template <template <class> class Of>
struct ForTypes {
  Of<float> f32;
  Of<double> f64;

  template <class T>
  const Of<T>& of() const {
    if constexpr (std::is_same_v<T, float>) {
      return f32;
    } else {
      return f64;
    }
  }
};

// The kernels of cpu_target(), or plain loops for "reference". Throws Error if cpu_target() does.
ForTypes<kernels::UpdateKernels> update_kernels_in_use();

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_OPTIMISER_PIECES_H_
