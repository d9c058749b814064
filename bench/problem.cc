// SPDX-License-Identifier: Apache-2.0
#include "problem.h"

#include <algorithm>
#include <cmath>
#include <variant>

namespace qkv::bench {
namespace {

// Steele, Lea, Flood 2014 (splitmix64): fast enough for a gigabyte.
std::uint64_t next(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

template <class T>
void fill_with(const View& view, std::uint64_t seed) {
  const double scale = 2 * std::sqrt(3.0) * 0x1p-32;  // uniform of variance 1
  T* values = view.as<T>();
  for (Index n = 0; n < view.element_count(); ++n) {
    const double word = static_cast<double>(next(seed) >> 32) - 0x1p31;
    values[n] = static_cast<T>(word * scale);
  }
}

// The last key + 1 and the first key that row i may see.
struct Reach {
  Index first = 0;
  Index end = 0;
};

Reach reach_of(Index i, Index Tk, Index o, const Options& options) {
  Reach reach{0, Tk};
  for (const Mask& mask : options.masks) {
    if (std::holds_alternative<Causal>(mask)) reach.end = std::min(reach.end, i + o + 1);
    if (const auto* window = std::get_if<Window>(&mask)) {
      if (window->left >= 0) reach.first = std::max(reach.first, i + o - window->left);
      if (window->right >= 0) reach.end = std::min(reach.end, i + o + window->right + 1);
    }
  }
  return reach;
}

}  // namespace

std::vector<View> Problem::results() const {
  if (pass == Pass::kForward) return {out};
  std::vector<View> gradients = {dq, dk, dv};
  if (dbias.given()) gradients.push_back(dbias);
  return gradients;
}

View Problem::add(DType dtype, const Dims& dims) {
  const std::size_t bytes = static_cast<std::size_t>(element_count(dims)) * size_of(dtype);
  return {memory.emplace_back(bytes).data(), dtype, dims, contiguous_strides(dims)};
}

View Problem::add_random(const Dims& dims, std::uint64_t seed) {
  const View view = add(shape.dtype, dims);
  if (shape.dtype == DType::kFloat64) {
    fill_with<double>(view, seed);
  } else {
    fill_with<float>(view, seed);
  }
  return view;
}

Problem make_problem(const Shape& shape) {
  Problem problem;
  problem.shape = shape;
  problem.q = problem.add_random({shape.B, shape.H, shape.Tq, shape.D}, 1);
  problem.k = problem.add_random({shape.B, shape.G, shape.Tk, shape.D}, 2);
  problem.v = problem.add_random({shape.B, shape.G, shape.Tk, shape.D}, 3);
  problem.out = problem.add(shape.dtype, problem.q.shape());
  return problem;
}

void turn_backward(Problem& problem) {
  const Shape& s = problem.shape;
  problem.pass = Pass::kBackward;
  problem.lse = problem.add(s.dtype, {s.B, s.H, s.Tq});  // float32 or float64, as the call itself
  problem.dout = problem.add_random(problem.out.shape(), 6);
  problem.dq = problem.add(s.dtype, problem.q.shape());
  problem.dk = problem.add(s.dtype, problem.k.shape());
  problem.dv = problem.add(s.dtype, problem.v.shape());
  const ConstView& bias = problem.options.bias;
  if (bias.given()) problem.dbias = problem.add(s.dtype, bias.shape());
}

Index offset_of(Index Tq, Index Tk, const Options& options) {
  if (std::holds_alternative<BottomRight>(options.diagonal)) return Tk - Tq;
  if (const auto* given = std::get_if<Offset>(&options.diagonal)) return given->o;
  return 0;
}

double live_pairs(Index Tq, Index Tk, const Options& options) {
  const Index o = offset_of(Tq, Tk, options);
  double pairs = 0;
  for (Index i = 0; i < Tq; ++i) {
    const Reach reach = reach_of(i, Tk, o, options);
    pairs += static_cast<double>(std::max<Index>(0, reach.end - reach.first));
  }
  return pairs;
}

double work_of(const Problem& problem) {
  const Shape& s = problem.shape;
  const Index operations = problem.pass == Pass::kBackward ? 10 : 4;
  const auto each = static_cast<double>(operations * s.B * s.H * s.D);
  return each * live_pairs(s.Tq, s.Tk, problem.options);
}

double matrix_bytes(const Shape& shape) {
  const auto elements = static_cast<double>(shape.B * shape.H) * static_cast<double>(shape.Tq) *
                        static_cast<double>(shape.Tk);
  return elements * static_cast<double>(size_of(shape.dtype));
}

Kernel::Kernel(Problem& problem, int threads, const std::atomic<bool>* stop)
    : problem_(&problem),
      context_(threads == 1 ? Executor() : Executor::threads(threads)),
      plan_(problem.inputs(), problem.options, context_) {
  context_.set_stop_flag(stop);
  if (is_backward()) plan_.run(problem.inputs(), {.out = problem.out, .lse = problem.lse});
}

void Kernel::run() {
  const Problem& p = *problem_;
  if (is_backward()) {
    plan_.backward(p.inputs(), {p.out, p.lse}, {.out = p.dout},
                   {.q = p.dq, .k = p.dk, .v = p.dv, .bias = p.dbias});
  } else {
    plan_.run(p.inputs(), {.out = p.out});
  }
}

std::string Kernel::path() const {
  return std::string(is_backward() ? plan_.backward_path() : plan_.path());
}

std::size_t Kernel::scratch_bytes() const {
  return is_backward() ? plan_.backward_scratch_bytes() : plan_.scratch_bytes();
}

}  // namespace qkv::bench
