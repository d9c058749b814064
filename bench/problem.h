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

// D is the width of queries, keys and values.
struct Shape {
  Index B = 1;
  Index H = 1;
  Index G = 1;
  Index Tq = 0;
  Index Tk = 0;
  Index D = 0;
  DType dtype = DType::kFloat32;
};

// A square one: T queries and keys, one head.
inline Shape square(Index T, Index D) { return {.Tq = T, .Tk = T, .D = D}; }

enum class Pass { kForward, kBackward };

// A call with the memory its views look at.
struct Problem {
  Shape shape{};
  Pass pass = Pass::kForward;
  View q{};
  View k{};
  View v{};
  View out{};
  Options options{};
  // Of the backward pass: what the forward pass leaves beside out, what comes in, what goes out.
  View lse{};
  View dout{};
  View dq{};
  View dk{};
  View dv{};
  View dbias{};
  std::deque<Memory> memory{};

  Inputs inputs() const { return {q, k, v}; }
  // What the call writes: out, or dq, dk, dv and, where there is a bias, dbias.
  std::vector<View> results() const;
  // An array of the problem's own, of zeros; with a seed, of random numbers.
  View add(DType dtype, const Dims& dims);
  View add_random(const Dims& dims, std::uint64_t seed);
};

// Arrays of random numbers (of mean 0 and variance 1, from a fixed seed).
Problem make_problem(const Shape& shape);
// Makes it the backward pass of the same call, for a random gradient of out. Options come before.
void turn_backward(Problem& problem);

// The diagonal of these options: j = i + o.
Index offset_of(Index Tq, Index Tk, const Options& options);
// Pairs of a query and a key that causal masks and windows of these options leave, for each of the
// B H heads. Other masks cost no less than no mask, and leave what they are told to leave: all.
double live_pairs(Index Tq, Index Tk, const Options& options);
// Floating-point operations for each live pair: 4 B H D, in the backward pass 10 B H D.
double work_of(const Problem& problem);
// Bytes of the matrices that a call which forms them would hold: B H Tq Tk scores.
double matrix_bytes(const Shape& shape);

// A plan and where it runs. Before a backward pass the forward pass has run.
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
