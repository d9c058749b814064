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

// D is the width of queries and keys, and of values if E is 0. `dtype` is that of all arrays, or q8
// for keys and values beside float32.
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

// A square one: T queries and keys, one head.
inline Shape square(Index T, Index D) { return {.Tq = T, .Tk = T, .D = D}; }
// T1024-D64
std::string name_of(const Shape& shape);

enum class Pass { kForward, kBackward };

// A call with the memory its views point into.
struct Problem {
  Shape shape{};
  Pass pass = Pass::kForward;
  View q{};
  View k{};
  View v{};
  View out{};
  Options options{};
  View block_tables{};  // k and v are in pages then
  View context_lens{};
  Outputs besides{};  // results of the forward pass besides out
  // For the backward pass: saved by the forward pass besides out, inputs, outputs.
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
  // What the call writes: out, or dq, dk, dv, with a bias dbias, and then the gradients
  // of the score's parameters in the order of views_of().
  std::vector<View> results() const;
  // An array owned by the problem, of zeros; with a seed, of random numbers of shape.real(), or
  // the keys or values `dims` of them.
  View add(DType dtype, const Dims& dims);
  View add_random(const Dims& dims, std::uint64_t seed, double deviation = 1);
  View add_keys(const Dims& dims, std::uint64_t seed);
};

// Numbers of mean 0, determined by the seed; float32 or float64, C-ordered.
void fill_random(const View& view, std::uint64_t seed, double deviation = 1);
// Arrays of random numbers (of mean 0 and variance 1, from a fixed seed).
Problem make_problem(const Shape& shape);
// Other orders of the same memory of keys and values: [B,Tk,G,.], and pages of it in random order,
// for Tk a multiple of `page`.
void set_by_token(Problem& problem);
void set_in_pages(Problem& problem, Index page);
// Scores with parameters. Projected queries and keys have variance 1, scores about 1.
void score_additive(Problem& problem, Index U);
void score_bilinear(Problem& problem);
// Those that are given.
std::vector<View> views_of(const ScoreGradient& gradient);
// Makes it the backward pass of the same call, for a random gradient of out. Set options first.
void turn_backward(Problem& problem);

// The diagonal of these options: j = i + o.
Index offset_of(Index Tq, Index Tk, const Options& options);
// Pairs of a query and a key that causal masks and windows of these options allow, for each of the
// B H heads. Other masks cost no less than no mask, and count as allowing all pairs.
double live_pairs(Index Tq, Index Tk, const Options& options);
// Units U of an additive score, 0 for others.
Index units_of(const Problem& problem);
// Floating-point operations for each live pair: 2 B H (D + E), in the backward pass 2 B H (3 D + 2
// E); for additive scores the units, B H U in either pass.
double work_of(const Problem& problem);
// Bytes of the arrays that an unfused call would hold: B H Tq Tk scores, or B H Tq Tk U
// values of tanh.
double array_bytes(const Problem& problem);

// A plan and its context. Before a backward pass the forward pass has run.
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
