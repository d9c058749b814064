// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TENSOR_H_
#define QKV_TENSOR_H_

#include <memory>
#include <utility>

#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv {

// An array that owns its memory: C order, 64-byte aligned, zero-filled. It is movable, and copied
// only explicitly.
class QKV_API Tensor {
 public:
  Tensor() = default;
  // Throws Error if the size overflows, std::bad_alloc if memory is short.
  Tensor(DType dtype, const Dims& shape);
  Tensor(const Tensor&) = delete;             // to copy: contiguous(tensor), see below
  Tensor& operator=(const Tensor&) = delete;  // to copy: copy(from, to), or to = contiguous(from)
  // A moved-from tensor is absent.
  Tensor(Tensor&& other) noexcept
      : memory_(std::move(other.memory_)), view_(std::exchange(other.view_, {})) {}
  Tensor& operator=(Tensor&& other) noexcept {
    memory_ = std::move(other.memory_);
    view_ = std::exchange(other.view_, {});
    return *this;
  }

  bool given() const noexcept { return view_.given(); }
  DType dtype() const noexcept { return view_.dtype(); }
  const Dims& shape() const noexcept { return view_.shape(); }
  int rank() const noexcept { return view_.rank(); }
  Index size(int axis) const noexcept { return view_.size(axis); }
  Index element_count() const noexcept { return view_.element_count(); }
  View view() noexcept { return view_; }
  ConstView view() const noexcept { return view_; }
  operator View() noexcept { return view_; }             // NOLINT(google-explicit-constructor)
  operator ConstView() const noexcept { return view_; }  // NOLINT(google-explicit-constructor)

  // All elements in C order. Throws Error (kType) when T is not the dtype.
  template <class T>
  std::span<T> values() {
    return {view_.as<T>(), static_cast<std::size_t>(element_count())};
  }
  template <class T>
  std::span<const T> values() const {
    return {ConstView(view_).as<T>(), static_cast<std::size_t>(element_count())};
  }

 private:
  struct Free {
    void* pages;  // the pointer from calloc; null if the memory is from operator new
    void operator()(void* memory) const noexcept;
  };
  void allocate(std::size_t bytes);

  std::unique_ptr<void, Free> memory_;
  View view_;
};

// Functions that return a view of a view. No copy is made, and the memory stays the caller's. Axes
// may be negative (counted from the end). All throw Error, which states the rule and the value.

// Selects the elements start, start+step, ... along one axis, up to but excluding stop. Unlike in
// Python, start and stop must be in 0..size, for a negative step in -1..size-1 (-1: before the
// first element): other values are errors, not clipped or counted from the end.
QKV_API View slice(const View& view, int axis, Index start, Index stop, Index step = 1);
QKV_API ConstView slice(const ConstView& view, int axis, Index start, Index stop, Index step = 1);
inline View slice(Tensor& tensor, int axis, Index start, Index stop, Index step = 1) {
  return slice(tensor.view(), axis, start, stop, step);
}
// Puts the axes in a new order: permute(x, {0, 2, 1, 3}).
QKV_API View permute(const View& view, const Dims& axes);
QKV_API ConstView permute(const ConstView& view, const Dims& axes);
inline View permute(Tensor& tensor, const Dims& axes) { return permute(tensor.view(), axes); }
// Swaps two axes.
QKV_API View transpose(const View& view, int axis_a, int axis_b);
QKV_API ConstView transpose(const ConstView& view, int axis_a, int axis_b);
inline View transpose(Tensor& tensor, int axis_a, int axis_b) {
  return transpose(tensor.view(), axis_a, axis_b);
}
// Gives the elements, in C order, a new shape; one size may be -1 (inferred). Throws Error if the
// strides do not allow it without a copy, and says which axes cannot be merged.
QKV_API View reshape(const View& view, const Dims& shape);
QKV_API ConstView reshape(const ConstView& view, const Dims& shape);
inline View reshape(Tensor& tensor, const Dims& shape) { return reshape(tensor.view(), shape); }
// Broadcasts as NumPy does: sizes of 1 and missing leading axes repeat with stride 0.
QKV_API ConstView broadcast_to(const ConstView& view, const Dims& shape);

// Copies, converting between real types (rounding to nearest even) or between integer types and
// bool. Blocks of q8 are only copied (qkv/q8.h has their conversions). `source` broadcasts to the
// shape of `target`. Throws Error for shapes, types or integers that do not fit.
QKV_API void copy(const ConstView& source, const View& target);
// Returns a C-ordered copy: contiguous() of the same dtype, convert() of the given one.
QKV_API Tensor contiguous(const ConstView& view);
QKV_API Tensor convert(const ConstView& view, DType dtype);

}  // namespace qkv

#endif  // QKV_TENSOR_H_
