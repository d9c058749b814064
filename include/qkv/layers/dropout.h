// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_DROPOUT_H_
#define QKV_LAYERS_DROPOUT_H_

#include <qkv/attention.h>
#include <qkv/layers/run.h>

namespace qkv {

// Dropout of the elements of an array (Srivastava et al. 2014). In training each element becomes 0
// with probability p, or else is multiplied by 1/(1-p). In evaluation the array is unchanged.
//
// Element n, counted in C order, is dropped when word n mod 4 of Philox4x32-10 with key =
// dropout_seed(run) (low, high) and counter = (floor(n/4) low, high, 0, 3) is less than floor(p
// 2^32). The draw therefore does not depend on dtype, memory order or machine.
class QKV_API DropoutLayer {
 public:
  // The draw of a forward pass, from which the backward pass repeats it; the array is not saved.
  struct Saved {
    Dropout dropout{};           // as drawn by the forward pass; p = 0 in evaluation
    Dims shape{};                // of the array x
    DType dtype = DType::kNone;  // kNone: there was no forward pass
  };

  // Throws Error when `dropout`, the probability p, is not in [0,1).
  explicit DropoutLayer(double dropout = 0);
  double dropout() const noexcept { return dropout_; }

  // x has any shape and strides and is float32 or float64; `out` has its shape and dtype. `out` may
  // be x itself (equal memory and strides), but may not overlap it in another way. In training the
  // pass takes one step of `run`, even if p is 0. Throws Error before touching `out`.
  void forward(const ConstView& x, RunState& run, Saved& saved, const View& out) const;
  // dx = dout/(1-p) where forward() kept the element, and 0 elsewhere. dx may be dout itself with
  // Write::kOverwrite.
  void backward(const Saved& saved, const ConstView& dout, const View& dx,
                Write write = Write::kOverwrite) const;

 private:
  double dropout_ = 0;
};

}  // namespace qkv

#endif  // QKV_LAYERS_DROPOUT_H_
