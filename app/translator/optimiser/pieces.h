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

// Work on all numbers of some parameters, cut into pieces.
namespace qkv::app {

// Numbers of a piece: they and those of seven other sets stay in the second-level cache (256 KiB of
// float32), and 8,192 are enough work for a task. It decides an order of sums, so it depends on
// nothing.
inline constexpr Index kPiece = 8192;

// `count` numbers of parameter number `parameter` from number `first` on.
struct Piece {
  std::size_t parameter = 0;
  Index first = 0;
  Index count = 0;
};

// In ascending order; an empty parameter has none.
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

// f(piece, n) for each, n its number. f does not throw.
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

// One thing for each type of numbers.
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

// The kernels of this CPU's target, or plain loops. Throws Error if QKV_TARGET names no target.
ForTypes<kernels::UpdateKernels> update_kernels_in_use();

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_OPTIMISER_PIECES_H_
