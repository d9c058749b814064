// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_WORDS_H_
#define QKV_CUDA_DEVICE_WORDS_H_

#include <cstdint>

#include "cuda/device/forward_shape.h"

// The operations of a GPU that the kernels use. nvcc compiles them to instructions. For any other
// compiler they are only declared, and tests/cuda/emulator.cc defines them, so that the source of
// a kernel also runs on a machine without a GPU. Shared memory is addressed in bytes from the start
// of the block's allocation.
#ifdef __CUDACC__
#define QKV_DEVICE __device__ __forceinline__
#define QKV_UNROLL _Pragma("unroll")
#define QKV_ROLLED _Pragma("unroll 1")
#else
#define QKV_DEVICE inline
#define QKV_UNROLL
#define QKV_ROLLED
#endif

namespace qkv::cuda {

inline constexpr int kLanes = 32;  // of a warp

#ifdef __CUDACC__

// ---- indices --------------------------------------------------------------------------------

QKV_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
QKV_DEVICE int block_index() { return static_cast<int>(blockIdx.x); }

extern __shared__ __align__(1024) unsigned char qkv_shared_memory[];

QKV_DEVICE std::uint32_t shared_address(std::uint32_t byte) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(qkv_shared_memory)) + byte;
}

// ---- threads together -----------------------------------------------------------------------

QKV_DEVICE void sync_threads() { __syncthreads(); }
QKV_DEVICE bool any_thread(bool x) { return __syncthreads_or(x) != 0; }
QKV_DEVICE void sync_warp() { __syncwarp(); }
QKV_DEVICE bool any_lane(bool x) { return __any_sync(0xFFFFFFFFU, x) != 0; }
QKV_DEVICE float exchange(float x, int lane_mask) {
  return __shfl_xor_sync(0xFFFFFFFFU, x, lane_mask);
}
QKV_DEVICE std::uint32_t exchange(std::uint32_t x, int lane_mask) {
  return __shfl_xor_sync(0xFFFFFFFFU, x, lane_mask);
}
QKV_DEVICE int exchange(int x, int lane_mask) { return __shfl_xor_sync(0xFFFFFFFFU, x, lane_mask); }

// ---- shared memory --------------------------------------------------------------------------

struct Words4 {
  std::uint32_t w[4];
};

QKV_DEVICE void store_shared(std::uint32_t to, const Words4& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(to)), "r"(x.w[0]),
               "r"(x.w[1]), "r"(x.w[2]), "r"(x.w[3])
               : "memory");
}
QKV_DEVICE Words4 load_shared_words(std::uint32_t from) {
  Words4 x;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])
               : "r"(shared_address(from))
               : "memory");
  return x;
}
QKV_DEVICE void store_shared(std::uint32_t to, std::uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared_address(to)), "r"(x) : "memory");
}
QKV_DEVICE std::uint32_t load_shared(std::uint32_t from) {
  std::uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(shared_address(from)) : "memory");
  return x;
}

// Returns x but hides its value from the compiler: numbers computed from the result in a loop are
// not hoisted out of the loop and kept in registers.
QKV_DEVICE std::uint32_t opaque(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Copies 16 bytes from global memory to shared memory, or writes zeros if not `valid`; `from` is
// read only if valid. The bytes are there after commit_copies() and wait_copies(), and for other
// threads after a barrier.
QKV_DEVICE void copy_16(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
QKV_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `kLeft` of the committed groups are unfinished.
template <int kLeft>
QKV_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// ---- tensor cores ---------------------------------------------------------------------------

// Loads four matrices of 8 rows of 16 bytes: lane l gives the address of row l % 8 of matrix l / 8.
// In x[m], lane l receives elements 2 * (l % 4) and 2 * (l % 4) + 1 of row l / 4 of matrix m; from
// load_transposed(), the elements of rows 2 * (l % 4) and 2 * (l % 4) + 1 in column l / 4.
QKV_DEVICE void load_matrices(std::uint32_t (&x)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row))
               : "memory");
}
QKV_DEVICE void load_transposed(std::uint32_t (&x)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row))
               : "memory");
}

// c += a b for a of 16 x 16, b of 16 x 8 and c of 16 x 8 numbers, held by the lanes of a warp in
// the layout of mma.m16n8k16 (PTX manual, "Matrix Fragments for mma.m16n8k16").
QKV_DEVICE void multiply_add(BFloat16Tiles, float (&c)[4], const std::uint32_t (&a)[4],
                             std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
QKV_DEVICE void multiply_add(Float16Tiles, float (&c)[4], const std::uint32_t (&a)[4],
                             std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- numbers --------------------------------------------------------------------------------

// 2^x; subnormal results are 0.
QKV_DEVICE float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
QKV_DEVICE float log2_of(float x) { return log2f(x); }
QKV_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
QKV_DEVICE float square_root(float x) { return __fsqrt_rn(x); }
QKV_DEVICE float divide(float x, float y) { return __fdiv_rn(x, y); }
// Operations that the compiler does not fuse with others.
QKV_DEVICE float rounded_product(float x, float y) { return __fmul_rn(x, y); }
QKV_DEVICE float rounded_sum(float x, float y) { return __fadd_rn(x, y); }
QKV_DEVICE float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }
QKV_DEVICE float max_of(float x, float y) { return fmaxf(x, y); }

// Two numbers rounded to nearest even, the first in the low half.
QKV_DEVICE std::uint32_t rounded_pair(BFloat16Tiles, float low, float high) {
  std::uint32_t x;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
QKV_DEVICE std::uint32_t rounded_pair(Float16Tiles, float low, float high) {
  std::uint32_t x;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
QKV_DEVICE float bits_to_float(std::uint32_t x) { return __uint_as_float(x); }
QKV_DEVICE std::uint32_t float_to_bits(float x) { return __float_as_uint(x); }
QKV_DEVICE double bits_to_double(std::uint64_t x) {
  return __longlong_as_double(static_cast<long long>(x));
}
QKV_DEVICE std::uint64_t double_to_bits(double x) {
  return static_cast<std::uint64_t>(__double_as_longlong(x));
}
QKV_DEVICE float size_of(float x) { return fabsf(x); }
QKV_DEVICE float widened(BFloat16Tiles, std::uint16_t x) {
  return __uint_as_float(static_cast<std::uint32_t>(x) << 16);
}
QKV_DEVICE float widened(Float16Tiles, std::uint16_t x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

#else  // the emulator: tests/cuda/emulator.cc

int thread_index();
int block_index();
void sync_threads();
bool any_thread(bool x);
void sync_warp();
bool any_lane(bool x);
float exchange(float x, int lane_mask);
std::uint32_t exchange(std::uint32_t x, int lane_mask);
int exchange(int x, int lane_mask);
struct Words4 {
  std::uint32_t w[4];
};
void store_shared(std::uint32_t to, const Words4& x);
Words4 load_shared_words(std::uint32_t from);
void store_shared(std::uint32_t to, std::uint32_t x);
std::uint32_t load_shared(std::uint32_t from);
inline std::uint32_t opaque(std::uint32_t x) { return x; }
void copy_16(std::uint32_t to, const void* from, bool valid);
void commit_copies();
void wait_for_copies(int left);
template <int kLeft>
void wait_copies() {
  wait_for_copies(kLeft);
}
void load_matrices(std::uint32_t (&x)[4], std::uint32_t row);
void load_transposed(std::uint32_t (&x)[4], std::uint32_t row);
void multiply_add(BFloat16Tiles, float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                  std::uint32_t b1);
void multiply_add(Float16Tiles, float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                  std::uint32_t b1);
float exp2_of(float x);
float log2_of(float x);
float reciprocal(float x);
float square_root(float x);
float divide(float x, float y);
float rounded_product(float x, float y);
float rounded_sum(float x, float y);
float fused(float x, float y, float z);
float max_of(float x, float y);
std::uint32_t rounded_pair(BFloat16Tiles, float low, float high);
std::uint32_t rounded_pair(Float16Tiles, float low, float high);
float bits_to_float(std::uint32_t x);
std::uint32_t float_to_bits(float x);
double bits_to_double(std::uint64_t x);
std::uint64_t double_to_bits(double x);
float size_of(float x);
float widened(BFloat16Tiles, std::uint16_t x);
float widened(Float16Tiles, std::uint16_t x);

#endif

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_WORDS_H_
