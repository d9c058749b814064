// SPDX-License-Identifier: Apache-2.0
#include "broadcast.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <variant>

#include <fmt/format.h>
#include <sleef.h>

#include <qkv/target.h>

#include "broadcast_loops.h"

namespace qkv::bench {
namespace {

// The loops for the vector width of the library's CPU target, if there are any. The targets
// avx512bf16 and amx differ from avx512 only in products of BF16, which the formula does not use.
std::optional<BroadcastLoops> loops_here() {
  const std::string_view target = cpu_target();
  if (target == "amx" || target == "avx512bf16" || target == "avx512") return broadcast_avx512();
  if (target == "avx2") return broadcast_avx2();
  return std::nullopt;
}

// Transposes a matrix [rows,columns].
void transpose(const float* from, float* to, Index rows, Index columns) {
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
  }
}

// A call by the broadcast formula. Memory holds the values of tanh for one query and at most
// `block` keys at a time.
class Composition {
 public:
  Composition(const Problem& problem, float* out, const BroadcastLoops& loops, Index block)
      : problem_(&problem),
        out_(out),
        loops_(loops),
        block_(block),
        U_(units_of(problem)),
        wq_(problem.shape.D * U_),
        wk_(problem.shape.D * U_),
        a_(problem.shape.Tq * U_),
        b_(problem.shape.Tk * U_),
        t_(block * U_),
        s_(problem.shape.Tk + loops.lanes) {}

  void run() {
    const auto& score = std::get<Additive>(problem_->options.score);
    const Shape& s = problem_->shape;
    transpose(score.wq.as<float>(), floats(wq_), U_, s.D);
    transpose(score.wk.as<float>(), floats(wk_), U_, s.D);
    for (Index b = 0; b < s.B; ++b) run_entry(score, b);
  }

 private:
  struct Array {
    explicit Array(Index count) : memory(static_cast<std::size_t>(count) * sizeof(float)) {}
    Memory memory;
  };
  static float* floats(const Array& array) { return static_cast<float*>(array.memory.data()); }

  void run_entry(const Additive& score, Index b) {
    const Shape& s = problem_->shape;
    const Index E = s.value_width();
    const float* values = problem_->v.as<float>() + b * s.Tk * E;
    loops_.project(problem_->q.as<float>() + b * s.Tq * s.D, floats(wq_), score.b.as<float>(),
                   floats(a_), s.Tq, s.D, U_);
    loops_.project(problem_->k.as<float>() + b * s.Tk * s.D, floats(wk_), nullptr, floats(b_), s.Tk,
                   s.D, U_);
    for (Index i = 0; i < s.Tq; ++i) {
      for (Index j = 0; j < s.Tk; j += block_) {
        const Index keys = std::min(block_, s.Tk - j);
        loops_.tanh_of_sums(floats(a_) + i * U_, floats(b_) + j * U_, floats(t_), keys, U_);
        loops_.times_v(floats(t_), score.v.as<float>(), floats(s_) + j, keys, U_);
      }
      loops_.softmax(floats(s_), s.Tk);
      loops_.weighted_sum(floats(s_), values, out_ + (b * s.Tq + i) * E, s.Tk, E);
    }
  }

  const Problem* problem_;
  float* out_;
  BroadcastLoops loops_;
  Index block_;
  Index U_;
  Array wq_, wk_, a_, b_, t_, s_;
};

// Whether the formula supports the problem.
bool is_supported(const Problem& problem, const BroadcastLoops& loops) {
  const Shape& s = problem.shape;
  return units_of(problem) > 0 && problem.pass == Pass::kForward && s.H * s.G == 1 &&
         s.dtype == DType::kFloat32 && units_of(problem) % loops.lanes == 0 &&
         s.value_width() % loops.lanes == 0 && has_score_alone(problem);
}

// Returns a function that runs the formula with the fastest of several blocks of keys, found by
// experiment; an empty one if the problem is not supported.
std::function<void()> bind(const Problem& problem, const std::vector<View>& results, int threads) {
  const std::optional<BroadcastLoops> loops = loops_here();
  if (threads > 1 || !loops || !is_supported(problem, *loops)) return nullptr;
  std::shared_ptr<Composition> best;
  double best_time = std::numeric_limits<double>::infinity();
  for (const Index block : {16, 64, 256, 2048}) {
    const auto candidate =
        std::make_shared<Composition>(problem, results[0].as<float>(), *loops, block);
    const Subject subject = {[&] { candidate->run(); }};
    const Effort effort = {.burst = 0.02, .seconds = 0.1, .rounds = 1};
    const double time = summarise(alternate({&subject, 1}, effort)[0], Clock::kWall).best;
    if (time >= best_time) continue;
    best_time = time;
    best = candidate;
  }
  return [best] { best->run(); };
}

}  // namespace

Peer broadcast_peer() {
  return {fmt::format("broadcast, SLEEF {}.{}.{}", SLEEF_VERSION_MAJOR, SLEEF_VERSION_MINOR,
                      SLEEF_VERSION_PATCHLEVEL),
          bind};
}

}  // namespace qkv::bench
