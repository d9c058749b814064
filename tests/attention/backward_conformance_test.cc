// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "attention/validate/bind.h"
#include "attention/validate/resolve.h"
#include "reference/backward.h"
#include "runtime/tasks.h"
#include "tests/attention/backward_call.h"
#include "tests/attention/gradient_agreement.h"
#include "tests/attention/paths.h"

// The backward pass of every path against the reference's: random calls over all shapes, memory
// layouts, options, gradients given and requested, and special values. A failure prints a line;
// QKV_CONFORMANCE=SEED:INDEX runs that call alone, SEED other calls.
namespace qkv::test {
namespace {

constexpr std::uint64_t kSeed = 2;
constexpr int kParts = 4;  // tests that ctest may run in parallel
// Calls per part, and the minimum with each feature among them, per path.
int calls_per_part() { return at_scale(400, 8); }
int least_of_each() { return is_thorough() ? 1 : 0; }

// The features every path must have met; drawn often enough in every part.
constexpr const char* kCovered[] = {"scale",
                                    "softcap",
                                    "mods",
                                    "mods -inf",
                                    "bias",
                                    "bias -inf",
                                    "top left",
                                    "bottom right",
                                    "offset",
                                    "offsets",
                                    "alibi",
                                    "causal",
                                    "window",
                                    "keep",
                                    "padding",
                                    "lengths",
                                    "lengths per query",
                                    "mask_mod",
                                    "sinks",
                                    "odd sink",
                                    "dropout",
                                    "packed",
                                    "empty sequence",
                                    "grouped heads",
                                    "rank 2",
                                    "rank 3",
                                    "rank 4",
                                    "rank 5",
                                    "mixed ranks",
                                    "no v",
                                    "dout",
                                    "dlse",
                                    "dweights of all rows",
                                    "dweights of named rows",
                                    "repeated names",
                                    "asks q",
                                    "asks k",
                                    "asks v",
                                    "asks bias",
                                    "asks alibi",
                                    "asks sinks",
                                    "asks one",
                                    "dbias [Tq,Tk]",
                                    "dbias [1,Tk]",
                                    "dbias [Tq,1]",
                                    "dbias [1,1]",
                                    "dbias per head",
                                    "added",
                                    "threads 1",
                                    "threads 2",
                                    "threads 3",
                                    "numbers plain",
                                    "numbers flat",
                                    "numbers steep",
                                    "numbers scores 1e4",
                                    "numbers scores 1e30",
                                    "numbers denormal",
                                    "numbers ties",
                                    "numbers one key",
                                    "numbers v 1e30",
                                    "NaN in q",
                                    "NaN in k",
                                    "NaN in v",
                                    "NaN in dout",
                                    "infinity in q",
                                    "infinity in k",
                                    "infinity in v",
                                    "infinity in dout",
                                    "layout permuted",
                                    "layout sliced",
                                    "layout negative",
                                    "layout offset",
                                    "layout broadcast",
                                    "float32",
                                    "float64"};

// The same for a single score.
std::vector<const char*> covered_of(ScoreKind kind) {
  switch (kind) {
    case ScoreKind::kDot:
      return {"dot", "scaled_dot"};
    case ScoreKind::kCosine:
      return {"cosine"};
    case ScoreKind::kBilinear:
      return {"w per head", "odd parameter", "asks w"};
    case ScoreKind::kAdditive:
      return {"U 1",
              "U 31",
              "U 32",
              "U 33",
              "U 65",
              "U 100",
              "wq per head",
              "wk per head",
              "score_v per head",
              "score_b per head",
              "no score_b",
              "odd parameter",
              "asks wq",
              "asks wk",
              "asks score_v",
              "asks score_b",
              "numbers projected 20",
              "numbers projected 60",
              "numbers projected 300",
              "numbers projected 1e4",
              "numbers projected 1e6",
              "numbers cancelling"};
  }
  return {};
}

using Counts = std::map<std::string, int>;

// The findings of a run of calls.
struct Findings {
  std::map<std::string, Counts> counts;  // of features, by path
  Counts differences;                    // by path and gradient; the first of each is shown
};

void tell(Findings& findings, const std::string& path, const std::string& difference,
          const std::string& replay) {
  const std::string kind = path + ", " + difference.substr(0, difference.find(' '));
  if (++findings.differences[kind] == 1) ADD_FAILURE() << path << ": " << difference << replay;
}

// The reference's gradients of one call, from its own saved results or another path's, and their
// bounds.
class Reference {
 public:
  // `pairs`: with products of bfloat16 in pairs.
  Reference(const BackwardCall& call, bool overflows, bool pairs)
      : call_(call),
        overflows_(overflows),
        pairs_(pairs),
        path_(pairs ? kPairedReferencePath : kReferencePath),
        saved_(call, path_) {}

  // Empty, or how the path's gradients differ from the reference's.
  std::string judge(const std::string& path, const Gradients& got, const SavedTensors& saved,
                    bool& ill_conditioned) {
    const Same same = same_on(path, call_.options);
    const Gradients& want = gradients(same == Same::kScores ? saved : saved_);
    const auto [bounds, first] = bounds_.try_emplace(same, call_, saved_.views(), same, pairs_);
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
  bool pairs_;
  std::string_view path_;
  SavedTensors saved_;
  std::deque<Known> known_;
  std::map<Same, GradientBounds> bounds_;
};

std::string touched(const Gradients& gradients) {
  for (const auto& [name, array] : gradients.arrays()) {
    const testing::AssertionResult intact = array.intact();
    if (!intact) return "d" + name + ": " + intact.message();
  }
  return "";
}

// Checks all these paths on one call.
void check_paths(const BackwardCall& call, bool overflows, const std::vector<std::string>& paths,
                 const std::set<std::string>& features, const std::string& replay,
                 Findings& findings, bool pairs = false) {
  Reference reference(call, overflows, pairs);
  std::deque<SavedTensors> all_saved;  // known to `reference`
  for (const std::string& path : paths) {
    if (!takes_backward(path, call.inputs, call.options)) continue;
    Counts& counts = findings.counts[path];
    for (const std::string& feature : features) ++counts[feature];
    const Gradients got(call);
    std::string difference;
    try {
      const SavedTensors& saved = all_saved.emplace_back(call, path);
      run_backward(call, path, saved.views(), got);
      difference = touched(got);
      bool ill_conditioned = false;
      if (difference.empty()) difference = reference.judge(path, got, saved, ill_conditioned);
      if (ill_conditioned) ++counts["ill-conditioned"];
    } catch (const std::exception& error) {
      difference = error.what();
    }
    if (!difference.empty()) tell(findings, path, difference, replay);
  }
}

// One call on the fast paths, and on the reference again.
void check_call(std::uint64_t seed, std::uint64_t index, const PathsOfScores& fast,
                bool reference_again, Findings& findings) {
  const RandomBackward random(seed, index);
  std::vector<std::string> paths = fast.at(random.forward().score());
  if (reference_again) paths.emplace_back(kReferencePath);
  const std::string replay =
      "\n  " + random.describe() + "\n  replay: QKV_CONFORMANCE=" + std::to_string(seed) + ":" +
      std::to_string(index) + " test_attention --gtest_filter='*BackwardConformance.Every*0'";
  check_paths(random.call(), random.overflows(), paths, random.features(), replay, findings);
  const testing::AssertionResult intact = random.intact();
  if (!intact) tell(findings, "inputs", intact.message(), replay);
}

class BackwardConformance : public testing::TestWithParam<int> {};

TEST_P(BackwardConformance, EveryPathAgreesWithTheReference) {
  Findings findings;
  const PathsOfScores fast = paths_of_scores(&fast_backward_paths);
  std::uint64_t seed = kSeed;
  if (const char* only = std::getenv("QKV_CONFORMANCE")) {
    char* end = nullptr;
    seed = std::strtoull(only, &end, 10);
    if (*end == ':') {
      check_call(seed, std::strtoull(end + 1, nullptr, 10), fast, true, findings);
      return;
    }
    ASSERT_EQ(*end, '\0') << "QKV_CONFORMANCE is SEED:INDEX or SEED";
  }
  // Comparing the reference with itself now and then tests the comparison's NaN, zeros and
  // sentinels.
  for (int n = 0; n < calls_per_part(); ++n) {
    const auto index = static_cast<std::uint64_t>(n * kParts + GetParam());
    check_call(seed, index, fast, n % 8 == 0, findings);
  }
  for (const auto& [kind, count] : findings.differences) {
    std::printf("%s: %d calls differ\n", kind.c_str(), count);
  }
  for (const auto& [kind, paths] : fast) {
    std::vector<const char*> features(std::begin(kCovered), std::end(kCovered));
    for (const char* feature : covered_of(kind)) features.push_back(feature);
    for (const std::string& path : paths) {
      Counts& counts = findings.counts[path];
      std::printf("%s: %d float32 and %d float64 calls, %d ill-conditioned\n", path.c_str(),
                  counts["float32"], counts["float64"], counts["ill-conditioned"]);
      if (is_brief()) continue;  // too few calls to have met everything
      // Most calls are compared tightly.
      EXPECT_LT(counts["ill-conditioned"], (counts["float32"] + counts["float64"]) / 2) << path;
      for (const char* feature : features) {
        EXPECT_GE(counts[feature], least_of_each()) << path << " hardly met: " << feature;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Part, BackwardConformance, testing::Range(0, kParts));

// Products of bfloat16 in pairs, against the reference that has them.
TEST(PairBackwardConformance, AgreesWithTheReferenceOfPairs) {
  const std::vector<std::string> paths = fast_paths(ScoreKind::kDot, DType::kBFloat16);
  if (paths.empty() || !is_of_pairs(paths.front())) GTEST_SKIP() << "this CPU has no avx512bf16";
  const std::string& path = paths.front();
  std::uint64_t first = 0;
  auto end = static_cast<std::uint64_t>(at_scale(240, 24));
  if (const char* only = std::getenv("QKV_CONFORMANCE")) {
    first = std::strtoull(only, nullptr, 10);
    end = first + 1;
  }
  Findings findings;
  for (std::uint64_t index = first; index < end; ++index) {
    const RandomBackward random(kSeed, index, RandomCall::Draw::kPairs);
    const std::string replay = "\n  " + random.describe() +
                               "\n  replay: QKV_CONFORMANCE=" + std::to_string(index) +
                               " test_attention --gtest_filter='PairBackwardConformance*'";
    check_paths(random.call(), random.overflows(), {path, std::string(kPairedReferencePath)},
                random.features(), replay, findings, true);
    const testing::AssertionResult intact = random.intact();
    if (!intact) tell(findings, "inputs", intact.message(), replay);
  }
  for (const auto& [kind, count] : findings.differences) {
    std::printf("%s: %d calls differ\n", kind.c_str(), count);
  }
  if (is_brief() || end == first + 1) return;
  Counts& counts = findings.counts[path];
  EXPECT_LT(counts["ill-conditioned"], static_cast<int>(end / 2));
  for (const char* feature : kCovered) {
    const std::string_view name = feature;  // other types, and numbers that are not drawn for this
    if (name.starts_with("float") || name.ends_with(" 1e30")) continue;
    EXPECT_GE(counts[feature], least_of_each()) << "hardly met: " << feature;
  }
}

// Lengths on both sides of kernel block edges: rows of a tile (6), panels (64), gradient blocks
// (128); and widths that fill no register.
void check_sizes(ScoreKind kind, Index Tq, Index Tk, int count,
                 const std::vector<std::string>& paths, Findings& findings) {
  constexpr Index kWidths[][4] = {{7, 3, 4, 33}, {17, 5, 17, 5}, {1, 33, 2, 64}, {9, 1, 30, 31}};
  const DType dtype = count % 3 == 0 ? DType::kFloat64 : DType::kFloat32;
  const auto [Dq, E, other, U] = kWidths[count / 3 % 4];
  const Index Dk = has_one_width(kind) ? Dq : other;
  const Index B = count % 2 + 1;
  const Tensor q = normal({B, Tq, Dq}, 1, dtype);
  const Tensor k = normal({1, Tk, Dk}, 2, dtype);
  const Tensor v = normal({1, Tk, E}, 3, dtype);
  const Tensor dout = normal({B, Tq, E}, 4, dtype);
  const SeededScore score(kind, {.Dq = Dq, .Dk = Dk, .U = U}, dtype);
  const std::vector<Options> options{{},
                                     {.masks = {Causal{}}},
                                     {.masks = {Window{70, 3}}},
                                     {.dropout = {0.3, 5}},
                                     {.diagonal = Offset{1}, .masks = {Causal{}}}};
  BackwardCall call{.inputs = {q, k, v},
                    .options = options[static_cast<std::size_t>(count % 5)],
                    .sources = {.out = dout},
                    .threads = 1 + count % 2};
  call.options.score = score.score();
  for (const std::string& name : BackwardCall::askable(call.inputs, call.options)) {
    call.ask(name, Layout::kContiguous);
  }
  check_paths(call, false, paths, {},
              " of Tq " + std::to_string(Tq) + ", Tk " + std::to_string(Tk) + ", Dq " +
                  std::to_string(Dq) + ", Dk " + std::to_string(Dk) + ", E " + std::to_string(E) +
                  ", U " + std::to_string(U) + ", options " + std::to_string(count % 5) + ", " +
                  std::string(name_of(dtype)),
              findings);
}

TEST(BackwardSizesConformance, OnBothSidesOfBlocks) {
  constexpr Index kLengths[] = {1,   5,   6,   7,   63,  64,  65,  127,
                                128, 129, 130, 255, 256, 257, 300, 700};
  Findings findings;
  const PathsOfScores fast = paths_of_scores(&fast_backward_paths);
  const int every = 100 / at_scale(100, 8);
  int count = 0;
  for (const Index Tq : kLengths) {
    for (const Index Tk : kLengths) {
      ++count;
      // In a thorough run, each pair of neighbouring lengths in one of two dtypes.
      if (count % every != 0 || Tq * Tk > at_scale(90'000, 7'500)) continue;
      for (const auto& [kind, paths] : fast) {
        // The reference's projections and tanh are slow.
        const bool some = kind == ScoreKind::kDot || count % 9 == static_cast<int>(kind);
        if (!paths.empty() && some) check_sizes(kind, Tq, Tk, count, paths, findings);
      }
    }
  }
}

// The bounds also hold between the reference in float32 and the same formulas in float64, given
// what the reference saved in float32. (An lse of 1e30 rounded to float32 is not an lse of the
// scores in float64.)
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

TEST(GradientBounds, HoldTheReferenceInFloat32AgainstFloat64) {
  const std::uint64_t calls = at_scale(150, 12);
  int compared = 0;
  for (std::uint64_t n = 0; n < calls; ++n) {
    const RandomBackward random(3, n);
    const BackwardCall& call = random.call();
    const bool rounded = random.features().count("numbers scores 1e30") != 0;
    if (random.forward().sums() != DType::kFloat32 || random.overflows() || rounded) continue;
    const SavedTensors saved(call, kReferencePath);
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
