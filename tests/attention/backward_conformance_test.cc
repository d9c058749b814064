// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "attention/validate/bind.h"
#include "attention/validate/resolve.h"
#include "reference/backward.h"
#include "runtime/tasks.h"
#include "tests/attention/backward_call.h"
#include "tests/attention/conformance.h"
#include "tests/attention/gradient_agreement.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"

// Compares the backward pass of every path with the reference's on random calls over all shapes,
// memory layouts, options, given and requested gradients, and special values. A failure prints the
// command that repeats its call alone, with QKV_CONFORMANCE=SEED:INDEX. QKV_CONFORMANCE=SEED runs
// the calls of another seed.
namespace qkv::test {
namespace {

constexpr std::uint64_t kSeed = 2;
constexpr int kLeastOfEach = 1;  // the least number of calls with a feature, per path and part

// The features "asks NAME" for the parameters of a score: calls with the score must have them.
std::string_view asked_of(ScoreKind kind) {
  return kind == ScoreKind::kBilinear   ? "asks w"
         : kind == ScoreKind::kAdditive ? "asks wq, asks wk, asks score_v, asks score_b"
                                        : "";
}

// The reference's gradients of one call, computed from the results (out and lse) that the reference
// or another path saved, and the bounds of other paths' differences from these gradients.
class Reference {
 public:
  // `path` names the reference: the plain one, or one with products of BF16.
  Reference(const BackwardCall& call, bool overflows, std::string_view path)
      : call_(call), overflows_(overflows), path_(path), saved_(call, path_) {}

  // Returns the first difference of `got`, the path's gradients, from the reference's, or "".
  // `saved` are the results that the path saved. Sets `ill_conditioned` (GradientBounds).
  std::string judge(const std::string& path, const Gradients& got, const SavedTensors& saved,
                    bool& ill_conditioned) {
    const Same same = same_on(path, call_.options);
    const Gradients& want = gradients(same == Same::kScores ? saved : saved_);
    const auto rounded = is_bfloat16_reference(path_)
                             ? GradientBounds::Rounded::kInProductsOfBFloat16
                             : GradientBounds::Rounded::kNot;
    const auto [bounds, first] = bounds_.try_emplace(same, call_, saved_.views(), same, rounded);
    ill_conditioned = bounds->second.ill_conditioned();
    return bounds->second.check(got, want, overflows_);
  }

 private:
  const Gradients& gradients(const SavedTensors& saved) {
    for (const Known& known : known_) {
      if (known.saved == &saved || known.saved->same_bits_as(saved)) return known.gradients;
    }
    Known& known = known_.emplace_back(&saved, Gradients(call_));
    run_backward(call_, path_, saved.views(), known.gradients);
    return known.gradients;
  }

  struct Known {
    const SavedTensors* saved;
    Gradients gradients;
  };
  const BackwardCall& call_;
  bool overflows_;
  std::string_view path_;
  SavedTensors saved_;
  std::deque<Known> known_;
  std::map<Same, GradientBounds> bounds_;
};

// Returns which byte outside the gradients' elements was written, or "".
std::string stray_write(const Gradients& gradients) {
  for (const auto& [name, array] : gradients.arrays()) {
    const testing::AssertionResult intact = array.intact();
    if (!intact) return "d" + name + ": " + intact.message();
  }
  return "";
}

// Checks one call on those of `paths` that have a backward pass for it.
void check_paths(const BackwardCall& call, bool overflows, const std::vector<std::string>& paths,
                 const std::set<std::string>& features, const std::string& replay,
                 Findings& findings, std::string_view reference_path = kReferencePath) {
  Reference reference(call, overflows, reference_path);
  std::deque<SavedTensors> all_saved;  // `reference` refers to them
  for (const std::string& path : paths) {
    if (!takes_backward(path, call.inputs, call.options)) continue;
    findings.count(path, features);
    ++findings.counts[path]["calls"];
    const Gradients got(call);
    std::string difference;
    try {
      const SavedTensors& saved = all_saved.emplace_back(call, path);
      run_backward(call, path, saved.views(), got);
      difference = stray_write(got);
      bool ill_conditioned = false;
      if (difference.empty()) difference = reference.judge(path, got, saved, ill_conditioned);
      if (ill_conditioned) ++findings.counts[path]["ill-conditioned"];
    } catch (const std::exception& error) {
      difference = error.what();
    }
    if (!difference.empty()) findings.tell(path, difference, replay);
  }
}

void check_call(const RandomBackward& random, const std::vector<std::string>& paths,
                const std::string& replay, Findings& findings, std::string_view reference_path) {
  check_paths(random.call(), random.overflows(), paths, random.features(), replay, findings,
              reference_path);
  const testing::AssertionResult intact = random.intact();
  if (!intact) findings.tell("inputs", intact.message(), replay);
}

// Expects that the calls on a path have met every feature, and that at most a quarter of the calls
// were ill-conditioned.
void expect_met(Findings& findings, const std::string& path, ScoreKind kind, bool of_bfloat16) {
  Counts& counts = findings.counts[path];
  EXPECT_LE(counts["ill-conditioned"], counts["calls"] / 4) << path;
  for (const std::string_view features :
       {kCoveredOfCalls, kCoveredGradients, covered_of(kind), asked_of(kind)}) {
    findings.expect_met_at_scale(path, features, kLeastOfEach, of_bfloat16);
  }
}

class BackwardConformance : public testing::TestWithParam<int> {};

TEST_P(BackwardConformance, EveryPathAgreesWithTheReference) {
  Findings findings;
  const PathsOfScores fast = paths_of_scores(&fast_backward_paths);
  const auto check = [&](std::uint64_t seed, std::uint64_t index, bool again) {
    const RandomBackward random(seed, index);
    std::vector<std::string> paths = fast.at(random.forward().score());
    if (again) paths.emplace_back(kReferencePath);
    check_call(random, paths,
               replay_of(random.describe(), seed, index, "*BackwardConformance.Every*0"), findings,
               kReferencePath);
  };
  if (!run_part(kSeed, GetParam(), at_scale(400, 8), findings, check)) return;
  for (const auto& [kind, paths] : fast) {
    for (const std::string& path : paths) expect_met(findings, path, kind, false);
  }
}

INSTANTIATE_TEST_SUITE_P(Part, BackwardConformance, testing::Range(0, kParts));

// Paths with products of BF16 agree with the reference that has the same products.
TEST(BFloat16BackwardConformance, AgreesWithTheReferenceOfItsProducts) {
  const std::vector<std::string> paths = bfloat16_paths();
  if (paths.empty()) GTEST_SKIP() << "this CPU has no products of BF16";
  Findings findings;
  const auto check = [&](std::uint64_t seed, std::uint64_t index, bool) {
    const RandomBackward random(seed, index, RandomCall::Draw::kBFloat16);
    for (const std::string& path : paths) {
      check_call(random, {path, std::string(reference_of(path))},
                 replay_of(random.describe(), seed, index, "BFloat16BackwardConformance*"),
                 findings, reference_of(path));
    }
  };
  if (!run_part(kSeed, 0, at_scale(240, 24), findings, check)) return;
  for (const std::string& path : paths) expect_met(findings, path, ScoreKind::kDot, true);
}

// Features that check_sizes() must meet with every score, over all its calls.
constexpr std::string_view kCoveredSizes =
    "float32, float64, B 1, B 2, threads 1, threads 2, no mask, causal, window, offset, "
    "no dropout, dropout";

// Checks one pair of lengths; `seed` chooses the dtype, the widths, the batch size, the threads and
// the options, each independently of the others.
void check_sizes(ScoreKind kind, Index Tq, Index Tk, std::uint64_t seed,
                 const std::vector<std::string>& paths, Findings& findings) {
  // Dq, E, Dk (used if the score allows Dk != Dq) and U. Most do not fill registers exactly.
  constexpr Index kWidths[][4] = {{7, 3, 4, 33}, {17, 5, 17, 5}, {1, 33, 2, 64}, {9, 1, 30, 31}};
  const std::pair<std::string, Options> kMasked[] = {
      {"no mask", {}},
      {"causal", {.masks = {Causal{}}}},
      {"window", {.masks = {Window{70, 3}}}},
      {"offset", {.diagonal = Offset{1}, .masks = {Causal{}}}}};
  Random random(seed);
  const DType dtype = random.whole(0, 2) == 0 ? DType::kFloat64 : DType::kFloat32;
  const auto [Dq, E, other, U] = kWidths[random.whole(0, 3)];
  const Index B = random.whole(1, 2);
  const auto threads = static_cast<int>(random.whole(1, 2));
  const auto& [mask, options] = kMasked[random.whole(0, 3)];
  const bool drops = random.whole(0, 1) == 1;
  const Index Dk = has_one_width(kind) ? Dq : other;
  const Tensor q = normal({B, Tq, Dq}, 1, dtype);
  const Tensor k = normal({1, Tk, Dk}, 2, dtype);
  const Tensor v = normal({1, Tk, E}, 3, dtype);
  const Tensor dout = normal({B, Tq, E}, 4, dtype);
  const SeededScore score(kind, {.Dq = Dq, .Dk = Dk, .U = U}, dtype);
  BackwardCall call{
      .inputs = {q, k, v}, .options = options, .sources = {.out = dout}, .threads = threads};
  if (drops) call.options.dropout = {0.3, 5};
  call.options.score = score.score();
  for (const std::string& name : BackwardCall::askable(call.inputs, call.options)) {
    call.ask(name, Layout::kContiguous);
  }
  std::set<std::string> features;  // each with the score's name in front
  std::string text = " of Tq " + std::to_string(Tq) + ", Tk " + std::to_string(Tk) + ", Dq " +
                     std::to_string(Dq) + ", Dk " + std::to_string(Dk) + ", E " +
                     std::to_string(E) + ", U " + std::to_string(U);
  for (const std::string& feature :
       {std::string(name_of(dtype)), "B " + std::to_string(B), "threads " + std::to_string(threads),
        mask, std::string(drops ? "dropout" : "no dropout")}) {
    features.insert(std::string(name_of(kind)) + " " + feature);
    text += ", " + feature;
  }
  check_paths(call, false, paths, features, text, findings);
}

// Lengths lie on both sides of the edges of tiles (6 rows), panels (64 keys) and gradient blocks
// (128 keys or queries).
TEST(BackwardSizesConformance, OnBothSidesOfBlocks) {
  constexpr Index kLengths[] = {1,   5,   6,   7,   63,  64,  65,  127,
                                128, 129, 130, 255, 256, 257, 300, 700};
  // With seeds from this one on, `make test` meets all of kCoveredSizes.
  constexpr std::uint64_t kFirstSeed = 618134;
  Findings findings;
  const PathsOfScores fast = paths_of_scores(&fast_backward_paths);
  const int every = 100 / at_scale(100, 8);
  int count = 0;
  int taken = 0;
  for (const Index Tq : kLengths) {
    for (const Index Tk : kLengths) {
      ++count;
      // A thorough run takes every pair of lengths with at most 90,000 query-key pairs.
      if (count % every != 0 || Tq * Tk > at_scale(90'000, 7'500)) continue;
      for (const auto& [kind, paths] : fast) {
        // The reference's projections and tanh are slow: a thorough run checks each score, except
        // dot products, on every ninth pair of lengths. A shorter run, which takes fewer pairs,
        // checks each score on every third of them.
        const int number = static_cast<int>(kind);
        const bool is_due = is_thorough() ? kind == ScoreKind::kDot || taken % 9 == number
                                          : taken % 3 == (kind == ScoreKind::kDot ? 0 : number - 1);
        if (paths.empty() || !is_due) continue;
        check_sizes(kind, Tq, Tk, kFirstSeed + static_cast<std::uint64_t>(4 * count + number),
                    paths, findings);
      }
      ++taken;
    }
  }
  if (!is_thorough() && test_scale() != 10) return;
  for (const auto& [kind, paths] : fast) {
    for (const std::string& path : paths) {
      for_each_feature(kCoveredSizes, [&](const std::string& feature) {
        const std::string name = std::string(name_of(kind)) + " " + feature;
        EXPECT_GE(findings.counts[path][name], is_thorough() ? 5 : 1) << path << ": " << name;
      });
    }
  }
}

// Computes the reference's gradients in float64, from the out and lse that it saved in float32. The
// bounds must also hold between these gradients and the reference's float32 gradients.
void run_in_double(const BackwardCall& call, const Saved& saved, const Gradients& gradients) {
  core::ResolvedProblem p;
  attn::resolve("bounds", {}, call.inputs, call.options, p);
  const core::GradientSources from = attn::bind_sources(p, saved, call.sources);
  const core::GradientResults to =
      attn::bind_gradients(p, call.inputs, call.options, gradients.views());
  core::MeasuringArena measure;
  reference::Backward<double> pass(p, from, to);
  pass.take_shared(measure);
  Context context;
  runtime::Call run(context, "bounds", measure.bytes(), pass.worker_bytes());
  pass.run(run);
}

// Whether a finite saved lse is above 2^23 in absolute value, where float32 numbers are at least 1
// apart.
bool is_rounded_away(const SavedTensors& saved) {
  for (const double lse : values_of(saved.lse.view())) {
    if (std::isfinite(lse) && std::fabs(lse) * std::numeric_limits<float>::epsilon() > 1)
      return true;
  }
  return false;
}

TEST(GradientBounds, HoldTheReferenceInFloat32AgainstFloat64) {
  const std::uint64_t calls = at_scale(150, 12);
  int compared = 0;
  for (std::uint64_t n = 0; n < calls; ++n) {
    const RandomBackward random(3, n);
    const BackwardCall& call = random.call();
    if (random.forward().sums() != DType::kFloat32 || random.overflows()) continue;
    const SavedTensors saved(call, kReferencePath);
    if (is_rounded_away(saved)) continue;
    const Gradients got(call);
    const Gradients want(call);
    run_backward(call, kReferencePath, saved.views(), got);
    run_in_double(call, saved.views(), want);
    const GradientBounds bounds(call, saved.views(), Same::kNothing);
    if (!bounds.ill_conditioned()) ++compared;
    EXPECT_EQ(bounds.check(got, want, false), "") << n << ": " << random.describe();
  }
  EXPECT_GE(compared, static_cast<int>(calls / 4));
}

}  // namespace
}  // namespace qkv::test
