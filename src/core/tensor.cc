// SPDX-License-Identifier: Apache-2.0
// Arrays that own their memory, and copies between arrays.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <qkv/error.h>
#include <qkv/tensor.h>

#include "core/floats.h"
#include "core/integers.h"
#include "core/overlap.h"
#include "core/shapes.h"
#include "core/storage.h"

namespace qkv {
namespace {

// The alignment of a tensor: one cache line, and one AVX-512 register.
constexpr std::align_val_t kAlignment{64};
// Memory of kLeastFromCalloc to kMostFromCalloc bytes comes from calloc, which may take pages of
// zeros from the system and then need not clear them. Larger sizes go to operator new, which throws
// where a sanitizer's calloc ends the program.
constexpr std::size_t kLeastFromCalloc = std::size_t{1} << 17;
constexpr std::size_t kMostFromCalloc = std::size_t{1} << 40;

void* aligned(void* memory) {
  constexpr auto kBytes = static_cast<std::size_t>(kAlignment);
  const auto past = reinterpret_cast<std::uintptr_t>(memory) % kBytes;
  return static_cast<std::byte*>(memory) + (past == 0 ? 0 : kBytes - past);
}

// ---- conversions between types --------------------------------------------------------------

template <class T>
inline constexpr bool kIsReal = is_real(dtype_of<T>);
template <class T>
inline constexpr bool kIsWhole = is_integer(dtype_of<T>) || std::is_same_v<T, bool>;
template <class Source, class Target>
inline constexpr bool kConverts =
    std::is_same_v<Source, Target> || (kIsReal<Source> && kIsReal<Target>) ||
    (kIsWhole<Source> && kIsWhole<Target>);
// True if integers must be checked to fit the target. (Any integer converts to bool: zero or not.)
template <class Source, class Target>
inline constexpr bool kMayNotFit =
    kIsWhole<Source> && kIsWhole<Target> && !std::is_same_v<Source, Target> &&
    !std::is_same_v<Source, bool> && !std::is_same_v<Target, bool>;

template <class Target, class Source>
Target converted(const Source& value) {
  constexpr bool kNarrow = std::is_same_v<Target, BFloat16> || std::is_same_v<Target, Float16>;
  if constexpr (std::is_same_v<Source, Target>) {
    return value;
  } else if constexpr (kNarrow && std::is_same_v<Source, double>) {
    return Target(core::round_to_odd(value));  // one rounding, not two
  } else if constexpr (kNarrow) {
    return Target(static_cast<float>(value));
  } else {
    return core::to_accumulator<Target>(value);
  }
}

// Calls f(const Source*, Target*) with null pointers of the two types. Returns false if the types
// do not convert.
template <class F>
bool visit_conversion(DType source, DType target, const F& f) {
  if (source == DType::kQ8 && target == DType::kQ8) {
    f(static_cast<const BlockQ8*>(nullptr), static_cast<BlockQ8*>(nullptr));
    return true;
  }
  bool converts = false;
  core::visit_dtype(source, [&]<class Source>(Source*) {
    core::visit_dtype(target, [&]<class Target>(Target*) {
      if constexpr (kConverts<Source, Target>) {
        converts = true;
        f(static_cast<const Source*>(nullptr), static_cast<Target*>(nullptr));
      }
    });
  });
  return converts;
}

// ---- the copy -------------------------------------------------------------------------------

template <class Source>
[[noreturn]] void refuse_value(std::string_view function, std::string_view name, Source value,
                               const Dims& index, DType target) {
  throw Error(function, name,
              "holds " + std::to_string(value) + " at " + to_string(index) + ", which " +
                  std::string(name_of(target)) + " cannot hold");
}

template <class Source, class Target>
void check_values(std::string_view function, std::string_view name, const ConstView& source) {
  if constexpr (kMayNotFit<Source, Target>) {
    const Source* from = source.as<Source>();
    core::for_each_offset<1>(source.shape(), {source.strides()},
                             [&](const auto& offset, const Dims& index) {
                               const Source value = from[offset[0]];
                               if (!std::in_range<Target>(value)) {
                                 refuse_value(function, name, value, index, dtype_of<Target>);
                               }
                             });
  }
}

// Copies between arrays of equal shape, row by row along the last axis.
template <class Source, class Target>
void copy_values(const ConstView& source, const View& target) {
  const int outer = target.rank() > 0 ? target.rank() - 1 : 0;
  const Index count = target.rank() > 0 ? target.size(-1) : 1;
  const Index source_stride = target.rank() > 0 ? source.stride(-1) : 1;
  const Index target_stride = target.rank() > 0 ? target.stride(-1) : 1;
  const Source* from = source.as<Source>();
  Target* to = target.as<Target>();
  core::for_each_offset<2>(
      core::sub_dims(target.shape(), 0, outer),
      {core::sub_dims(source.strides(), 0, outer), core::sub_dims(target.strides(), 0, outer)},
      [&](const auto& offset, const Dims&) {
        for (Index n = 0; n < count; ++n) {
          to[offset[1] + n * target_stride] =
              converted<Target>(from[offset[0] + n * source_stride]);
        }
      });
}

// `name` is the source's name in error messages.
void copy_checked(std::string_view function, std::string_view name, const ConstView& source,
                  const View& target) {
  const bool converts =
      visit_conversion(source.dtype(), target.dtype(), [&]<class S, class T>(const S*, T*) {
        check_values<S, T>(function, name, source);
        copy_values<S, T>(broadcast_to(source, target.shape()), target);
      });
  if (!converts) {
    throw Error(function, name,
                "converts between real types, or between integer types and bool, got " +
                    describe(source) + " for " + std::string(name_of(target.dtype())),
                ErrorKind::kType);
  }
}

Tensor converted_tensor(std::string_view function, const ConstView& view, DType dtype) {
  if (!view.given()) throw Error(function, "view", "is absent");
  Tensor result(dtype, view.shape());
  copy_checked(function, "source", view, result);
  return result;
}

}  // namespace

// ---- Tensor ---------------------------------------------------------------------------------

Tensor::Tensor(DType dtype, const Dims& shape) {
  if (size_of(dtype) == 0) {
    throw Error("Tensor", "dtype", "must be an element type, got none", ErrorKind::kType);
  }
  const Index count = core::count_elements("Tensor", shape);
  const auto bytes = core::checked_multiply(count, static_cast<Index>(size_of(dtype)));
  if (!bytes) {
    throw Error("Tensor", "shape",
                "may take at most 2^63 - 1 bytes, got " + std::string(name_of(dtype)) + " " +
                    to_string(shape));
  }
  if (*bytes > 0) {
    allocate(static_cast<std::size_t>(*bytes));
  }
  view_ = View(memory_.get(), dtype, shape, contiguous_strides(shape));
}

// Large memory comes from calloc, so that a tensor that is filled later is written once, not twice.
void Tensor::allocate(std::size_t bytes) {
  if (bytes < kLeastFromCalloc || bytes > kMostFromCalloc) {
    memory_ = std::unique_ptr<void, Free>(::operator new(bytes, kAlignment), Free{nullptr});
    std::memset(memory_.get(), 0, bytes);
    return;
  }
  void* const pages = std::calloc(bytes + static_cast<std::size_t>(kAlignment), 1);
  if (pages == nullptr) throw std::bad_alloc();
  memory_ = std::unique_ptr<void, Free>(aligned(pages), Free{pages});
}

void Tensor::Free::operator()(void* memory) const noexcept {
  if (pages != nullptr) {
    std::free(pages);
  } else {
    ::operator delete(memory, kAlignment);
  }
}

// ---- copies ---------------------------------------------------------------------------------

void copy(const ConstView& source, const View& target) {
  if (!source.given()) throw Error("copy", "source", "is absent");
  if (!target.given()) throw Error("copy", "target", "is absent");
  const auto common = core::broadcast_shapes(source.shape(), target.shape());
  if (!common || !(*common == target.shape())) {
    throw Error("copy", "source",
                describe(source) + " does not broadcast to the target " + describe(target));
  }
  if (core::may_overlap(source, target)) {
    throw Error("copy", "target", "must not share memory with source, got " + describe(target));
  }
  if (core::self_overlaps(target)) {
    throw Error("copy", "target",
                "must not overlap itself, got " + describe(target) + " with strides " +
                    to_string(target.strides()));
  }
  copy_checked("copy", "source", source, target);
}

Tensor contiguous(const ConstView& view) {
  return converted_tensor("contiguous", view, view.dtype());
}

Tensor convert(const ConstView& view, DType dtype) {
  return converted_tensor("convert", view, dtype);
}

}  // namespace qkv
