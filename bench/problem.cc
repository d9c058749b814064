// SPDX-License-Identifier: Apache-2.0
#include "problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include <qkv/error.h>

namespace qkv::bench {
namespace {

// The next random number by splitmix64 (Steele, Lea, Flood 2014), fast enough for a gigabyte of
// numbers.
std::uint64_t next(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

// The type in which a number is computed before it is rounded to T.
template <class T>
using Number = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
void fill_with(const View& view, std::uint64_t seed, double deviation) {
  const double scale = deviation * 2 * std::sqrt(3.0) * 0x1p-32;  // numbers are uniform
  T* values = view.as<T>();
  for (Index n = 0; n < view.element_count(); ++n) {
    const double word = static_cast<double>(next(seed) >> 32) - 0x1p31;
    values[n] = static_cast<T>(static_cast<Number<T>>(word * scale));
  }
}

// The keys that a row may attend to: [first, end), or none if end <= first.
struct Reach {
  Index first = 0;
  Index end = 0;
};

// Narrows `reach` by a mask. Masks that are arrays, lengths or functions count as if they masked
// nothing.
struct Narrow {
  Reach& reach;
  Index diagonal;  // i + o of the row

  void operator()(const Causal&) const { reach.end = std::min(reach.end, diagonal + 1); }
  void operator()(const Window& window) const {
    if (window.left >= 0) reach.first = std::max(reach.first, diagonal - window.left);
    if (window.right >= 0) reach.end = std::min(reach.end, diagonal + window.right + 1);
  }
  void operator()(const Keep&) const {}
  void operator()(const Padding&) const {}
  void operator()(const KeyLengths&) const {}
  void operator()(const MaskMod&) const {}
};

Reach reach_of(Index i, Index Tk, Index o, const Options& options) {
  Reach reach{0, Tk};
  for (const Mask& mask : options.masks) std::visit(Narrow{reach, i + o}, mask);
  return reach;
}

// Adds a buffer for the gradient of `source`; returns an empty view if `source` is not given.
View gradient_of(Problem& problem, const ConstView& source) {
  return source.given() ? problem.add(source.dtype(), source.shape()) : View();
}

ScoreGradient gradient_of(Problem& problem, const Score& score) {
  return std::visit(
      [&]<class S>(const S& one) -> ScoreGradient {
        typename S::Gradient gradient;
        S::for_each_parameter([&](const char*, auto value, auto its) {
          gradient.*its = gradient_of(problem, one.*value);
        });
        return gradient;
      },
      score);
}

}  // namespace

std::string name_of(const Shape& shape) { return fmt::format("T{}-D{}", shape.Tq, shape.D); }

std::vector<View> views_of(const ScoreGradient& gradient) {
  std::vector<View> views;
  for_each_alternative<Score>([&]<class S>() {
    const auto* given = std::get_if<typename S::Gradient>(&gradient);
    if (given == nullptr) return;
    S::for_each_parameter([&](const char*, auto, auto its) {
      if (((*given).*its).given()) views.push_back((*given).*its);
    });
  });
  return views;
}

std::vector<View> Problem::results() const {
  if (pass == Pass::kForward) return {out};
  std::vector<View> gradients = {dq, dk, dv};
  if (dbias.given()) gradients.push_back(dbias);
  for (const View& view : views_of(dscore)) gradients.push_back(view);
  return gradients;
}

View Problem::add(DType dtype, const Dims& dims) {
  const std::size_t bytes = static_cast<std::size_t>(element_count(dims)) * size_of(dtype);
  return {memory.emplace_back(bytes).data(), dtype, dims, contiguous_strides(dims)};
}

View Problem::add_random(const Dims& dims, std::uint64_t seed, double deviation) {
  const View view = add(shape.real(), dims);
  fill_random(view, seed, deviation);
  return view;
}

// Blocks of q8 have random integers and a scale by which the numbers have variance 1.
View Problem::add_keys(const Dims& dims, std::uint64_t seed) {
  if (shape.dtype != DType::kQ8) return add_random(dims, seed);
  Dims blocks = dims;
  blocks[dims.rank() - 1] /= BlockQ8::kNumbers;
  const View view = add(DType::kQ8, blocks);
  auto* to = view.as<BlockQ8>();
  const Float16 scale(static_cast<float>(std::sqrt(3.0) / 128));
  for (Index n = 0; n < view.element_count(); ++n) {
    to[n].scale = scale;
    for (std::int8_t& value : to[n].values) value = static_cast<std::int8_t>(next(seed) >> 56);
  }
  return view;
}

void fill_random(const View& view, std::uint64_t seed, double deviation) {
  switch (view.dtype()) {
    case DType::kFloat64:
      return fill_with<double>(view, seed, deviation);
    case DType::kBFloat16:
      return fill_with<BFloat16>(view, seed, deviation);
    case DType::kFloat16:
      return fill_with<Float16>(view, seed, deviation);
    default:
      return fill_with<float>(view, seed, deviation);  // as<float>() refuses any other type
  }
}

Problem make_problem(const Shape& shape) {
  Problem problem;
  problem.shape = shape;
  problem.q = problem.add_random({shape.B, shape.H, shape.Tq, shape.D}, 1);
  problem.k = problem.add_keys({shape.B, shape.G, shape.Tk, shape.D}, 2);
  problem.v = problem.add_keys({shape.B, shape.G, shape.Tk, shape.value_width()}, 3);
  problem.out = problem.add(shape.real(), {shape.B, shape.H, shape.Tq, shape.value_width()});
  return problem;
}

void set_by_token(Problem& problem) {
  const Shape& s = problem.shape;
  const auto by_token = [&](const View& x) {
    const Dims shape{s.B, s.Tk, s.G, x.size(-1)};
    return permute(View(x.data(), s.dtype, shape, contiguous_strides(shape)), {0, 2, 1, 3});
  };
  problem.k = by_token(problem.k);
  problem.v = by_token(problem.v);
}

void set_in_pages(Problem& problem, Index page) {
  const Shape& s = problem.shape;
  const Index pages = s.B * (s.Tk / page);
  const auto in_pages = [&](const View& x) {
    const Dims shape{pages, page, s.G, x.size(-1)};
    return View(x.data(), s.dtype, shape, contiguous_strides(shape));
  };
  problem.k = in_pages(problem.k);
  problem.v = in_pages(problem.v);
  problem.block_tables = problem.add(DType::kInt64, {s.B, s.Tk / page});
  Index* const tables = problem.block_tables.as<Index>();
  std::iota(tables, tables + pages, Index{0});
  std::uint64_t state = 14;
  for (Index n = pages - 1; n > 0; --n) {  // Fisher, Yates 1938
    std::swap(tables[n], tables[next(state) % static_cast<std::uint64_t>(n + 1)]);
  }
  problem.context_lens = problem.add(DType::kInt64, {s.B});
  std::fill_n(problem.context_lens.as<Index>(), s.B, s.Tk);
}

void score_additive(Problem& problem, Index U) {
  const Index D = problem.shape.D;
  const double projecting = 1 / std::sqrt(static_cast<double>(D));
  Additive score;
  score.wq = problem.add_random({U, D}, 9, projecting);
  score.wk = problem.add_random({U, D}, 10, projecting);
  score.v = problem.add_random({U}, 11, 1 / std::sqrt(static_cast<double>(U)));
  score.b = problem.add_random({U}, 12, 0.1);
  problem.options.score = score;
}

void score_bilinear(Problem& problem) {
  const Index D = problem.shape.D;
  const double projecting = 1 / std::sqrt(static_cast<double>(D));
  problem.options.score = Bilinear{problem.add_random({D, D}, 13, projecting)};
  problem.options.scale = projecting;
}

void make_backward(Problem& problem) {
  const Shape& s = problem.shape;
  if (s.dtype == DType::kQ8) {
    throw Error("bench", "dtype", "is q8, but keys and values of q8 have no backward pass");
  }
  problem.pass = Pass::kBackward;
  problem.lse = problem.add(accumulator_of(s.dtype), {s.B, s.H, s.Tq});
  problem.dout = problem.add_random(problem.out.shape(), 6);
  problem.dq = problem.add(s.dtype, problem.q.shape());
  problem.dk = problem.add(s.dtype, problem.k.shape());
  problem.dv = problem.add(s.dtype, problem.v.shape());
  const ConstView& bias = problem.options.bias;
  if (bias.given()) problem.dbias = problem.add(s.dtype, bias.shape());
  problem.dscore = gradient_of(problem, problem.options.score);
}

Index offset_of(Index Tq, Index Tk, const Options& options) {
  struct OffsetOf {
    Index Tq, Tk;
    Index operator()(const BottomRight&) const { return Tk - Tq; }
    Index operator()(const TopLeft&) const { return 0; }
    Index operator()(const Offset& given) const { return given.o; }
    Index operator()(const Offsets&) const { return 0; }  // no benchmark has several offsets
  };
  return std::visit(OffsetOf{Tq, Tk}, options.diagonal);
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

bool has_score_alone(const Problem& problem) {
  // If Options gets a new member, this line does not compile until the member is named here. The
  // diagonal changes nothing without the options that are excluded below.
  const auto& [qk_norm, rotary, score, scale, softcap, mods, bias, diagonal, alibi, masks, sinks,
               dropout] = problem.options;
  bool has_others = problem.block_tables.given();
  for_each_buffer(problem.besides, [&](std::string_view, const View& x) {
    if (x.given()) has_others = true;
  });
  return !has_others && !qk_norm && !rotary && !scale && softcap == 0 && mods.empty() &&
         !bias.given() && !alibi.given() && masks.empty() && !sinks.given() && dropout.p == 0;
}

Index units_of(const Problem& problem) {
  const auto* additive = std::get_if<Additive>(&problem.options.score);
  return additive == nullptr ? 0 : additive->v.element_count();
}

double work_of(const Problem& problem) {
  const Shape& s = problem.shape;
  const Index E = s.value_width();
  const Index units = units_of(problem);
  const Index operations = problem.pass == Pass::kBackward ? 2 * (3 * s.D + 2 * E) : 2 * (s.D + E);
  const auto each = static_cast<double>(s.B * s.H * (units > 0 ? units : operations));
  return each * live_pairs(s.Tq, s.Tk, problem.options);
}

double array_bytes(const Problem& problem) {
  const Shape& s = problem.shape;
  const auto pairs = static_cast<double>(s.Tq) * static_cast<double>(s.Tk);
  const Index each = s.B * s.H * std::max<Index>(1, units_of(problem));
  return pairs * static_cast<double>(each) * static_cast<double>(size_of(s.real()));
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
                   {.q = p.dq, .k = p.dk, .v = p.dv, .score = p.dscore, .bias = p.dbias});
  } else {
    Outputs outputs = p.besides;
    outputs.out = p.out;
    plan_.run(p.inputs(), outputs);
  }
}

std::string Kernel::path() const {
  return std::string(is_backward() ? plan_.backward_path() : plan_.path());
}

std::size_t Kernel::scratch_bytes() const {
  return is_backward() ? plan_.backward_scratch_bytes() : plan_.scratch_bytes();
}

}  // namespace qkv::bench
