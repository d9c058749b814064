// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PROBLEM_H_
#define QKV_BENCH_PROBLEM_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>

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

// A call with the memory its views look at.
struct Problem {
  Shape shape{};
  View q{};
  View k{};
  View v{};
  View out{};
  Options options{};
  std::deque<Memory> memory{};

  Inputs inputs() const { return {q, k, v}; }
  // An array of the problem's own, of zeros; with a seed, of random numbers.
  View add(DType dtype, const Dims& dims);
  View add_random(const Dims& dims, std::uint64_t seed);
};

// Arrays of random numbers (of mean 0 and variance 1, from a fixed seed).
Problem make_problem(const Shape& shape);

// Pairs of a query and a key that causal masks and windows of these options leave, for each of the
// B H heads. Other masks cost no less than no mask, and leave what they are told to leave: all.
double live_pairs(Index Tq, Index Tk, const Options& options);
// Floating-point operations: 4 B H D for each live pair.
double work_of(const Problem& problem);
// Bytes of the matrices that a call which forms them would hold: B H Tq Tk scores.
double matrix_bytes(const Shape& shape);

// A plan and where it runs.
class Kernel {
 public:
  Kernel(Problem& problem, int threads, const std::atomic<bool>* stop);
  void run() { plan_.run(problem_->inputs(), {.out = problem_->out}); }
  std::string path() const { return std::string(plan_.path()); }
  std::size_t scratch_bytes() const { return plan_.scratch_bytes(); }

 private:
  Problem* problem_;
  Context context_;
  Plan plan_;
};

// Compares what `out` holds with the path "reference": all rows of small problems, else some rows
// of the first and the last batch entry. What differs, or "".
std::string fault_of(const Problem& problem, const ConstView& out);

}  // namespace qkv::bench

#endif  // QKV_BENCH_PROBLEM_H_
