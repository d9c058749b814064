// SPDX-License-Identifier: Apache-2.0
// The groups "additive" and "bilinear": scores with parameters. Times include the projections of
// queries and keys, but rows "-memory" leave out those of keys. Additive scores are measured in
// units per second, for large calls and for the shapes of models; bilinear scores are compared with
// the plain call.
#include <algorithm>

#include <fmt/format.h>

#include <qkv/additive_memory.h>

#include "groups.h"

namespace qkv::bench {
namespace {

// A call with an additive score of U units.
struct ScoreCase {
  std::string name{};
  Shape shape{};
  Index U = 256;
  std::optional<double> forward{};   // the target of the forward pass, in units per second
  std::optional<double> backward{};  // the target of the backward pass
  int threads = 1;
};

constexpr Index kLargeLength = 2048;

Index units(const Session& session, Index U) { return session.is_quick() ? U / 8 : U; }

ScoreCase large(const Session& session, Index D, Index U) {
  const Index T = session.length(kLargeLength);
  const Index count = units(session, U);
  return {.name = fmt::format("T{}-U{}-D{}", T, count, D), .shape = square(T, D), .U = count};
}

// The large call whose rate is the base of run_share().
ScoreCase standard(const Session& session) {
  ScoreCase one = large(session, 64, 256);
  one.forward = 25e9;
  one.backward = 11e9;
  return one;
}

std::vector<ScoreCase> large_cases(const Session& session) {
  std::vector<ScoreCase> cases = {standard(session), large(session, 256, 256)};
  for (const Index U : {128, 512, 1024}) cases.push_back(large(session, 64, U));
  ScoreCase doubles = large(session, 64, 256);
  doubles.name += "-float64";
  doubles.shape.dtype = DType::kFloat64;
  cases.push_back(doubles);
  ScoreCase threads = large(session, 64, 256);
  threads.name += "-threads";
  threads.threads = session.threads();
  if (session.threads() > 1) cases.push_back(threads);
  return cases;
}

// A call as in a model. A quick run has at most 2 batch entries and 32 keys, and fewer units.
ScoreCase model(const Session& session, const std::string& name, const Shape& shape) {
  ScoreCase one{.name = fmt::format("{}-D{}", name, shape.D), .shape = shape};
  one.U = units(session, one.U);
  if (session.is_quick()) {
    one.shape.B = std::min<Index>(2, shape.B);
    one.shape.Tk = std::min<Index>(32, shape.Tk);
    one.shape.Tq = std::min(one.shape.Tk, shape.Tq);
  }
  return one;
}

// Calls of training, which have a query for each word of a target. If D is 16, projections cost
// little compared with the score.
std::vector<ScoreCase> training_cases(const Session& session) {
  std::vector<ScoreCase> cases;
  for (const Index D : {16, 64, 256}) {
    const Shape shape{.B = 64, .Tq = 30, .Tk = 30, .D = D, .E = std::max<Index>(D, 64)};
    cases.push_back(model(session, "translator", shape));
  }
  for (const Index D : {16, 64}) {
    const Shape shape{.B = 128, .Tq = 100, .Tk = 100, .D = D, .E = 64};
    cases.push_back(model(session, "pointer", shape));
  }
  return cases;
}

// Calls of decoding steps, which have one query for each source sentence.
std::vector<ScoreCase> step_cases(const Session& session) {
  return {model(session, "translator-step", {.B = 64, .Tq = 1, .Tk = 30, .D = 64}),
          model(session, "speech-step", {.B = 16, .Tq = 1, .Tk = 800, .D = 64})};
}

Problem make_problem(const ScoreCase& one, Pass pass) {
  Problem problem = make_problem(one.shape);
  score_additive(problem, one.U);
  if (pass == Pass::kBackward) make_backward(problem);
  return problem;
}

std::string name_of(const ScoreCase& one, Pass pass) {
  return "additive/" + one.name + (pass == Pass::kBackward ? "-backward" : "");
}

void run_one(Session& session, const ScoreCase& one, Pass pass) {
  Problem problem = make_problem(one, pass);
  const auto& target = pass == Pass::kBackward ? one.backward : one.forward;
  session.unit_rate({name_of(one, pass), target, one.threads}, problem);
}

// Measures a call with keys that AdditiveMemory projected before. The backward pass is timed
// without key_gradients(), which a program calls once, after its last step.
void run_with_memory(Session& session, const ScoreCase& one, Pass pass) {
  Problem problem = make_problem(one, pass);
  const auto& score = std::get<Additive>(problem.options.score);
  Context context;
  AdditiveMemory memory(problem.k, score, context);
  Calls calls;
  calls.path = memory.path();
  calls.run = [&] { memory.attention(problem.inputs(), problem.options, {.out = problem.out}); };
  calls.finish = [] {};
  if (pass == Pass::kBackward) {
    const auto& to = std::get<AdditiveGradient>(problem.dscore);
    calls.run = [&] {
      memory.attention_backward(
          problem.inputs(), problem.options, {problem.out, problem.lse}, {.out = problem.dout},
          {.q = problem.dq, .v = problem.dv, .score = AdditiveGradient{to.wq, {}, to.v, to.b}});
    };
    calls.finish = [&] { memory.key_gradients(problem.dk, to.wk); };
  }
  session.unit_rate({name_of(one, pass) + "-memory"}, problem, &calls);
}

// Measures the rate of units as a share of the large call's rate. The multiply-adds of projections,
// D for each token and unit, do not count as work.
void run_share(Session& session, const ScoreCase& one, Pass pass) {
  constexpr double kTarget = 0.7;
  Problem problem = make_problem(one, pass);
  Problem base = make_problem(standard(session), pass);
  session.against({name_of(one, pass) + "-share", kTarget}, problem, base, Figure::kRateShare);
  const Shape& s = one.shape;
  const double pairs = static_cast<double>(s.Tq) * static_cast<double>(s.Tk);
  const double each = static_cast<double>((s.Tq + s.Tk) * s.D) / pairs;
  session.rows().back().note =
      pass == Pass::kForward
          ? fmt::format("{:.1f} multiply-adds of projections for each (i,j,u)", each)
          : fmt::format("{:.1f} multiply-adds of projections and their gradients for each (i,j,u)",
                        3 * each);
}

}  // namespace

void run_additive(Session& session) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (const ScoreCase& one : large_cases(session)) run_one(session, one, pass);
    for (const ScoreCase& one : training_cases(session)) {
      run_one(session, one, pass);
      run_share(session, one, pass);
    }
    for (const ScoreCase& one : step_cases(session)) {
      run_one(session, one, pass);
      run_with_memory(session, one, pass);
    }
  }
}

// Compares bilinear scores with the plain call, which has no projection. In the forward pass, the
// projection adds T D^2 multiply-adds to the plain call's 2 T^2 D; in the backward pass, the
// projection and its two gradients add 3 T D^2 to 5 T^2 D.
void run_bilinear(Session& session) {
  const Index T = session.length(kLargeLength);
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (const Index D : {64, 128}) {
      Problem problem = make_problem(square(T, D));
      Problem plain = make_problem(square(T, D));
      score_bilinear(problem);
      const bool backward = pass == Pass::kBackward;
      if (backward) make_backward(problem);
      if (backward) make_backward(plain);
      const std::string name = fmt::format("bilinear/T{}-D{}{}", T, D, backward ? "-backward" : "");
      session.against({name}, problem, plain, Figure::kPlainRatio);
      const double more = static_cast<double>(D) / static_cast<double>(T) * (backward ? 0.6 : 0.5);
      session.rows().back().note =
          fmt::format("the projection adds {:.1f} % of multiply-adds", 100 * more);
    }
  }
}

}  // namespace qkv::bench
