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

Index offset_of(Index Tq, Index Tk, const Options& options) {
  if (std::holds_alternative<BottomRight>(options.diagonal)) return Tk - Tq;
  if (const auto* given = std::get_if<Offset>(&options.diagonal)) return given->o;
  return 0;
}

// ---- the comparison -------------------------------------------------------------------------

double most_of(const ConstView& view) {
  const Tensor values = convert(view, DType::kFloat64);
  double most = 0;
  for (const double value : values.values<double>()) most = std::max(most, std::abs(value));
  return most;
}

// Both paths sum in the same order; what differs are the last bits of exponentials. An error of
// 2^-18 (2^-46) of the largest value is 32 to 64 units in the last place of it.
std::string difference(const ConstView& got, const ConstView& want, double largest) {
  const double bound = largest * (got.dtype() == DType::kFloat64 ? 0x1p-46 : 0x1p-18);
  const Tensor a = convert(got, DType::kFloat64);
  const Tensor b = convert(want, DType::kFloat64);
  const auto as = a.values<double>();
  const auto bs = b.values<double>();
  for (std::size_t n = 0; n < as.size(); ++n) {
    if (std::abs(as[n] - bs[n]) <= bound) continue;  // NaN fails
    return "got " + std::to_string(as[n]) + ", reference " + std::to_string(bs[n]);
  }
  return "";
}

// A part of a problem: batch entry b, rows first..first+count-1.
struct Part {
  Index b = 0;
  Index first = 0;
  Index count = 0;
};

std::string fault_in(const Problem& problem, const ConstView& out, const Part& part) {
  const auto entry = [&](const View& view) { return slice(view, 0, part.b, part.b + 1); };
  const auto rows = [&](const ConstView& view) {
    return slice(view, 2, part.first, part.first + part.count);
  };
  Options options = problem.options;
  const Shape& shape = problem.shape;
  options.diagonal = Offset{offset_of(shape.Tq, shape.Tk, options) + part.first};
  Tensor want(shape.dtype, {1, shape.H, part.count, shape.D});
  Context context;
  context.force_path("reference");
  const Inputs inputs{rows(entry(problem.q)), entry(problem.k), entry(problem.v)};
  attention(inputs, options, {.out = want}, context);
  const ConstView got = rows(slice(out, 0, part.b, part.b + 1));
  return difference(got, want, most_of(slice(inputs.v, 2, 0, std::min<Index>(shape.Tk, 1024))));
}

// Whether the rows of a part are the same in a call of their own: nothing but the diagonal tells
// a row its number.
bool is_divisible(const Options& options) {
  const auto knows_rows = [](const Mask& mask) {
    return !std::holds_alternative<Causal>(mask) && !std::holds_alternative<Window>(mask);
  };
  return options.mods.empty() && !options.bias.given() && options.dropout.p == 0 &&
         std::ranges::none_of(options.masks, knows_rows);
}

std::string whole_fault(const Problem& problem, const ConstView& out) {
  Tensor want(problem.shape.dtype, problem.out.shape());
  Context context;
  context.force_path("reference");
  attention(problem.inputs(), problem.options, {.out = want}, context);
  return difference(out, want, most_of(problem.v));
}

}  // namespace

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
  const auto each = static_cast<double>(4 * s.B * s.H * s.D);
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
}

std::string fault_of(const Problem& problem, const ConstView& out) {
  const Shape& shape = problem.shape;
  constexpr double kMostWork = 0x1p26;  // less than a tenth of a second of the reference
  constexpr Index kRows = 4;
  if (work_of(problem) < kMostWork || !is_divisible(problem.options)) {
    return whole_fault(problem, out);
  }
  for (const Index b : {Index{0}, shape.B - 1}) {
    const Index last = std::max<Index>(0, shape.Tq - kRows);
    for (const Index first : {Index{0}, last / 2, last}) {
      const Part part{b, first, std::min(kRows, shape.Tq - first)};
      std::string fault = fault_in(problem, out, part);
      if (!fault.empty()) return fault;
    }
  }
  return "";
}

}  // namespace qkv::bench
