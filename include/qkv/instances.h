// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_INSTANCES_H_
#define QKV_INSTANCES_H_

#include <cstdint>

#include <qkv/tile_loops.h>

// Compiles the loops of tile_loops.h around a user's function, in the user's own source file, once
// for each CPU target, and makes the tables in which the library finds the results ("instances").
// Included by <qkv/mods.h>.

// The compiler attributes of an instance.
//   flatten    inlines the user's function into the loop
//   optimize   "O3": gcc vectorises the loops at -O3 only. "fp-contract=off": gcc must not fuse
//              multiplications and additions on targets that can, as results would then differ
//              between targets. "no-tree-sink": gcc must not move one side of select() into a
//              branch, which it cannot vectorise for AVX2
// clang vectorises from -O2 on. It fuses multiplications and additions of the user's function
// unless called with -ffp-contract=off, because no attribute reaches into that function.
#if defined(__clang__)
#define QKV_INSTANCE __attribute__((flatten))
#elif defined(__GNUC__)
#define QKV_INSTANCE __attribute__((flatten, optimize("O3", "fp-contract=off", "no-tree-sink")))
#else
#define QKV_INSTANCE
#endif

#if defined(__GNUC__) && defined(__x86_64__)
#define QKV_INSTANCES_X86 1
#define QKV_AVX2 __attribute__((target("avx2,fma")))
#if defined(__clang__)
#define QKV_AVX512 \
  __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define QKV_AVX512 \
  __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#else
#define QKV_INSTANCES_X86 0
#endif

namespace qkv::detail {

// CPU targets in ascending order: an instance runs on the CPUs of its own target and of all later
// ones.
enum class InstanceTarget : std::uint8_t { kBaseline, kAvx2, kAvx512 };

struct ScoreInstance {
  InstanceTarget target;
  void (*f32)(const void*, const ScoreTile<float>&);
  void (*f64)(const void*, const ScoreTile<double>&);
};

struct MaskInstance {
  InstanceTarget target;
  void (*apply)(const void*, const MaskTile&);
};

template <class F, class T>
QKV_INSTANCE void score_baseline(const void* callable, const ScoreTile<T>& tile) {
  apply_score<F, T>(callable, tile);
}
template <class F>
QKV_INSTANCE void mask_baseline(const void* callable, const MaskTile& tile) {
  apply_mask<F>(callable, tile);
}

#if QKV_INSTANCES_X86
template <class F, class T>
QKV_INSTANCE QKV_AVX2 void score_avx2(const void* callable, const ScoreTile<T>& tile) {
  apply_score<F, T>(callable, tile);
}
template <class F, class T>
QKV_INSTANCE QKV_AVX512 void score_avx512(const void* callable, const ScoreTile<T>& tile) {
  apply_score<F, T>(callable, tile);
}
template <class F>
QKV_INSTANCE QKV_AVX2 void mask_avx2(const void* callable, const MaskTile& tile) {
  apply_mask<F>(callable, tile);
}
template <class F>
QKV_INSTANCE QKV_AVX512 void mask_avx512(const void* callable, const MaskTile& tile) {
  apply_mask<F>(callable, tile);
}
#endif

// The instances in ascending order of target. The baseline always exists and is first.
template <class F>
inline constexpr ScoreInstance kScoreInstances[] = {
    {InstanceTarget::kBaseline, &score_baseline<F, float>, &score_baseline<F, double>},
#if QKV_INSTANCES_X86
    {InstanceTarget::kAvx2, &score_avx2<F, float>, &score_avx2<F, double>},
    {InstanceTarget::kAvx512, &score_avx512<F, float>, &score_avx512<F, double>},
#endif
};

template <class F>
inline constexpr MaskInstance kMaskInstances[] = {
    {InstanceTarget::kBaseline, &mask_baseline<F>},
#if QKV_INSTANCES_X86
    {InstanceTarget::kAvx2, &mask_avx2<F>},
    {InstanceTarget::kAvx512, &mask_avx512<F>},
#endif
};

}  // namespace qkv::detail

// Private to this header.
#undef QKV_INSTANCE
#undef QKV_AVX2
#undef QKV_AVX512
#undef QKV_INSTANCES_X86

#endif  // QKV_INSTANCES_H_
