// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PROBLEM_H_
#define QKV_BENCH_PROBLEM_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "memory.h"

namespace qkv::bench {

// The sizes of a problem: B batch entries, H query heads, G key heads, Tq queries and Tk keys;
// queries and keys are D wide, values E or, if E is 0, D. All arrays are of `dtype`; if it is q8,
// keys and values are q8 and the others float32.
struct Shape {
  Index B = 1;
  Index H = 1;
  Index G = 1;
  Index Tq = 0;
  Index Tk = 0;
  Index D = 0;
  DType dtype = DType::kFloat32;
  Index E = 0;

  Index value_width() const { return E == 0 ? D : E; }
  DType real() const { return dtype == DType::kQ8 ? DType::kFloat32 : dtype; }
};

// The shape of T queries and T keys in one head.
inline Shape square(Index T, Index D) { return {.Tq = T, .Tk = T, .D = D}; }
// The name of a shape in rows: "T1024-D64".
std::string name_of(const Shape& shape);

enum class Pass { kForward, kBackward };

// A call of attention with the memory that its views point into.
struct Problem {
  Shape shape{};
  Pass pass = Pass::kForward;
  View q{};
  View k{};
  View v{};
  View out{};
  Options options{};
  View block_tables{};  // given if k and v are in pages
  View context_lens{};
  Outputs besides{};  // results of the forward pass besides out
  // For the backward pass: lse, saved by the forward pass; the gradient of out; the results.
  View lse{};
  View dout{};
  View dq{};
  View dk{};
  View dv{};
  View dbias{};
  ScoreGradient dscore{};
  std::deque<Memory> memory{};

  Inputs inputs() const {
    return {.q = q, .k = k, .v = v, .block_tables = block_tables, .context_lens = context_lens};
  }
  // The arrays that the call writes: out; or dq, dk, dv, with a bias dbias, and then the gradients
  // of the score's parameters in the order of views_of().
  std::vector<View> results() const;
  // Adds an array of zeros to the problem's memory.
  View add(DType dtype, const Dims& dims);
  // Adds an array of random numbers of the type shape.real(), determined by the seed.
  View add_random(const Dims& dims, std::uint64_t seed, double deviation = 1);
  // Adds random keys or values of the type shape.dtype; `dims` counts numbers, not q8 blocks.
  View add_keys(const Dims& dims, std::uint64_t seed);
};

// Fills a C-ordered array of real numbers with uniform random ones of mean 0 and this standard
// deviation, determined by the seed.
void fill_random(const View& view, std::uint64_t seed, double deviation = 1);
// A forward problem whose inputs are random numbers of mean 0 and variance 1 from fixed seeds.
Problem make_problem(const Shape& shape);
// Reinterprets the memory of keys and values as [B,Tk,G,.], without moving numbers.
void set_by_token(Problem& problem);
// Reinterprets the memory of keys and values as pages of `page` keys, in random order. Tk must be a
// multiple of `page`.
void set_in_pages(Problem& problem, Index page);
// score_additive() and score_bilinear() set a score with random parameters, such that projected
// queries and keys have variance 1, and scores about 1.
void score_additive(Problem& problem, Index U);
void score_bilinear(Problem& problem);
// The gradients of parameters that are given, in the order of for_each_parameter().
std::vector<View> views_of(const ScoreGradient& gradient);
// Makes a problem the backward pass of its call, for a random dout. The options must be set before.
// Throws Error for q8, which has no backward pass.
void make_backward(Problem& problem);

// The offset o of the options' diagonal, j = i + o.
Index offset_of(Index Tq, Index Tk, const Options& options);
// The number of live pairs: query-key pairs that the causal masks and windows of these options
// allow, in each of the B H heads. Other masks count as allowing all pairs.
double live_pairs(Index Tq, Index Tk, const Options& options);
// Whether a call has no option but its score, no keys in pages, and no results besides out.
bool has_score_alone(const Problem& problem);
// The units U of an additive score; 0 for other scores.
Index units_of(const Problem& problem);
// The work of a call. For each live pair it is 2 B H (D + E) floating-point operations, in the
// backward pass 2 B H (3 D + 2 E); for additive scores it is the units, B H U, in either pass.
double work_of(const Problem& problem);
// Bytes of the array that an unfused call would hold: B H Tq Tk scores, or for additive scores B H
// Tq Tk U values of tanh.
double array_bytes(const Problem& problem);

// The library's plan of a problem, ready to run its pass. The constructor of a backward pass runs
// the forward pass, which gives out and lse.
class Kernel {
 public:
  Kernel(Problem& problem, int threads, const std::atomic<bool>* stop);
  void run();
  std::string path() const;
  std::size_t scratch_bytes() const;

 private:
  bool is_backward() const { return problem_->pass == Pass::kBackward; }

  Problem* problem_;
  Context context_;
  Plan plan_;
};

}  // namespace qkv::bench

#endif  // QKV_BENCH_PROBLEM_H_
