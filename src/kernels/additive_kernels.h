// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_KERNELS_ADDITIVE_KERNELS_H_
#define QKV_KERNELS_ADDITIVE_KERNELS_H_

#include <cstdint>

#include "kernels/dot_kernels.h"

// The loops of the additive score for one CPU target, on plain pointers: no threads, no allocation,
// no failure. T is float or double.
//   tanh(a + b) = 1 - 2 r,  r = 1 / (1 + e^2a e^2b)
// The exponentials are computed once for each row and unit and stored as x 2^power: a row [2 U]
// holds all x, then all powers. Where |a| <= kPlainBound the power is 0.
namespace qkv::kernels {

// Largest |a| whose exp(2a) is stored whole, that is, with power 0, in float32 (float64). The
// product of two whole factors overflows to infinity at worst. A factor with a power may overflow,
// at 2^128 (2^1024); a whole one is at least 2^-101 (2^-953), so their product is then above 2^26
// (2^70), and tanh is 1.
template <class T>
inline constexpr T kPlainBound = sizeof(T) == 4 ? T(35) : T(330);

// Largest |a| of the form kSmall: the product of two such exponentials is below 2^62.
template <class T>
inline constexpr T kSmallBound = T(10.5);

// The form of a row's exponentials. kSmall: |a| <= kSmallBound; kWhole: powers are 0; kPowers: any.
// A pair of rows uses the more general form of the two. Where a simpler form suffices, a more
// general one gives bit-identical results.
enum class ExponentialForm : std::uint8_t { kSmall, kWhole, kPowers };

// Number of contiguous units in a block: a multiple of the lanes of every target's registers.
inline constexpr Index kUnitLanes = 16;

// The parameters of one head's score.
template <class T>
struct AdditiveUnits {
  const T* v = nullptr;  // [units]
  Index units = 0;
};

// The exponentials of rows in kUnitLanes units: x and power, each [rows][kUnitLanes].
template <class T>
struct UnitColumn {
  const T* x = nullptr;
  const T* power = nullptr;
};

// The sums that a tile of pairs adds to: left and weights [rows][kUnitLanes], right
// [keys][kUnitLanes]. t is tanh(a_iu + b_ju).
template <class T>
struct PairSums {
  T* left = nullptr;     // sum_j ds_ij (1 - t^2)
  T* weights = nullptr;  // sum_j ds_ij t
  T* right = nullptr;    // sum_i ds_ij (1 - t^2)
};

template <class T>
struct AdditiveKernels {
  // Computes exp(2 a_n) = x_n 2^power_n for n values; returns their form.
  ExponentialForm (*exponentials)(const T* a, Index n, T* x, T* power);
  // Computes s_rn = scale * sum_u v_u tanh(a_ru + b_nu) for 1..kTileRows rows and the first `keys`
  // keys of a panel [units][kPanel]. scores_with_powers also reads powers: of a row at left +
  // units, of keys in the second half of panels [2 units][kPanel].
  using Scores = void(const RowsOf<const T>& left, Index rows, const T* panel, Index keys,
                      const AdditiveUnits<T>& by, T scale, const RowsOf<T>& s);
  Scores* scores_of_small;
  Scores* scores;
  Scores* scores_with_powers;
  // Adds the derivatives of the pairs of 1..kTileRows rows and `keys` keys, keys ascending, to
  // `to`. ds_rn is at ds.data[r * ds.stride + n].
  void (*add_pairs)(ExponentialForm form, const UnitColumn<T>& left, Index rows,
                    const UnitColumn<T>& right, Index keys, const RowsOf<const T>& ds,
                    const PairSums<T>& to);
};

// The kernels of a target for which is_supported() is true.
template <class T>
const AdditiveKernels<T>& additive_kernels(Target target) noexcept;

}  // namespace qkv::kernels

#endif  // QKV_KERNELS_ADDITIVE_KERNELS_H_
