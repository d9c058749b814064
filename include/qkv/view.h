// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_VIEW_H_
#define QKV_VIEW_H_

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <qkv/dtype.h>
#include <qkv/export.h>

namespace qkv {

// The type of every size, index and stride. Strides count elements, not bytes.
using Index = std::int64_t;

inline constexpr int kMaxRank = 8;

// A short list of sizes or strides, at most kMaxRank long, stored inline.
class Dims {
 public:
  Dims() = default;
  template <std::integral... I>
    requires(sizeof...(I) > 0 && sizeof...(I) <= kMaxRank)
  Dims(I... values)  // NOLINT(google-explicit-constructor): {2, 8, 5, 32} is a shape
      : values_{static_cast<Index>(values)...}, rank_(sizeof...(I)) {}
  // Throws Error when there are more than kMaxRank values.
  QKV_API explicit Dims(std::span<const Index> values);

  int rank() const noexcept { return rank_; }
  Index operator[](int axis) const noexcept { return values_[static_cast<std::size_t>(axis)]; }
  Index& operator[](int axis) noexcept { return values_[static_cast<std::size_t>(axis)]; }
  const Index* begin() const noexcept { return values_.data(); }
  const Index* end() const noexcept { return values_.data() + rank_; }
  QKV_API void push_back(Index value);  // throws Error when full
  friend bool operator==(const Dims& a, const Dims& b) noexcept {
    return a.rank_ == b.rank_ && a.values_ == b.values_;
  }

 private:
  std::array<Index, kMaxRank> values_{};
  int rank_ = 0;
};

// Returns text such as "[2,8,5,32]".
QKV_API std::string to_string(const Dims& dims);

// The product of the sizes (1 for rank 0). Throws Error when a size is negative or the product of
// the sizes other than 0 does not fit in 63 bits.
QKV_API Index element_count(const Dims& shape);

// Strides of the C-ordered (row-major) array of this shape. Throws as element_count does.
QKV_API Dims contiguous_strides(const Dims& shape);

// A non-owning strided array: pointer, dtype, shape, strides. Nothing is copied; the memory must
// outlive every call that gets the view. Strides may be 0 (broadcast) or negative. A
// default-constructed view is absent, which means that the argument was not given. An array without
// elements may have a null pointer.
template <class Void>
class BasicView {
  static constexpr bool kConst = std::is_const_v<Void>;
  template <class T>
  using Element = std::conditional_t<kConst, const T, T>;

 public:
  BasicView() = default;
  // A view of C-ordered memory: View q{pointer, {B, H, Tq, D}}.
  template <class T>
  BasicView(T* data, const Dims& shape)
    requires(kConst || !std::is_const_v<T>)
      : BasicView(data, shape, c_order(shape)) {}
  // A view of memory in any order. Throws Error when shape and strides differ in rank, a size is
  // negative, the elements extend over 2^63 bytes or more, or there are elements and the pointer is
  // null or not aligned for them.
  template <class T>
  BasicView(T* data, const Dims& shape, const Dims& strides)
    requires(kConst || !std::is_const_v<T>)
      : BasicView(data, dtype_of<std::remove_cv_t<T>>, shape, strides) {}
  QKV_API BasicView(Void* data, DType dtype, const Dims& shape, const Dims& strides);
  // A view of rank 1 over a vector (not vector<bool>). A temporary vector lives only until the end
  // of the full expression: vectors whose views are in a stored Options must outlive it.
  template <class T>
    requires(!std::is_same_v<T, bool>)
  BasicView(std::vector<T>& values)  // NOLINT(google-explicit-constructor)
      : BasicView(values.data(), Dims(static_cast<Index>(values.size()))) {}
  template <class T>
    requires(kConst && !std::is_same_v<T, bool>)
  BasicView(const std::vector<T>& values)  // NOLINT(google-explicit-constructor)
      : BasicView(values.data(), Dims(static_cast<Index>(values.size()))) {}
  // A View converts to a ConstView.
  template <class V>
    requires(kConst && std::is_same_v<V, void>)
  BasicView(const BasicView<V>& other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()),
        dtype_(other.dtype()),
        shape_(other.shape()),
        strides_(other.strides()) {}

  // False for a default-constructed view.
  bool given() const noexcept { return dtype_ != DType::kNone; }
  Void* data() const noexcept { return data_; }
  DType dtype() const noexcept { return dtype_; }
  const Dims& shape() const noexcept { return shape_; }
  const Dims& strides() const noexcept { return strides_; }
  int rank() const noexcept { return shape_.rank(); }
  // The size along an axis; negative axes count from the end.
  Index size(int axis) const noexcept { return shape_[axis < 0 ? axis + rank() : axis]; }
  Index stride(int axis) const noexcept { return strides_[axis < 0 ? axis + rank() : axis]; }
  Index element_count() const noexcept {
    Index n = 1;
    for (Index size : shape_) n *= size;
    return n;
  }
  // True for C order without gaps; arrays with fewer than two elements are contiguous.
  QKV_API bool is_contiguous() const noexcept;

  // Returns the pointer as T*. Throws Error (kType) for another dtype.
  template <class T>
  Element<T>* as() const {
    require(dtype_of<T>);
    return static_cast<Element<T>*>(data_);
  }
  // Returns one element: view.at<float>({0, 1}). Throws Error for a wrong dtype, rank or index.
  template <class T>
  Element<T>& at(const Dims& index) const {
    require(dtype_of<T>);
    return static_cast<Element<T>*>(data_)[offset(index)];
  }

 private:
  // Returns contiguous_strides(shape). Errors begin with "View: ".
  QKV_API static Dims c_order(const Dims& shape);
  QKV_API void require(DType dtype) const;
  QKV_API Index offset(const Dims& index) const;

  Void* data_ = nullptr;
  DType dtype_ = DType::kNone;
  Dims shape_;
  Dims strides_;
};

using View = BasicView<void>;
using ConstView = BasicView<const void>;
extern template class QKV_API BasicView<void>;
extern template class QKV_API BasicView<const void>;

// Returns text such as "float32 [2,8,5,32]".
QKV_API std::string describe(const ConstView& view);

}  // namespace qkv

#endif  // QKV_VIEW_H_
