// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include "tests/attention/frozen/cases.h"
#include "tests/attention/paths.h"
#include "tests/support/scale.h"

// The bits of frozen calls must be those in result_hashes.tsv: refactoring must not change any
// of them.
namespace qkv::test {
namespace {

constexpr const char* kFile = QKV_SOURCE_DIR "/tests/attention/result_hashes.tsv";
constexpr std::string_view kTargets[] = {"avx512bf16", "avx512", "avx2", "sse4"};

// Whether a target has a row for a case: avx512bf16 is avx512 but for bfloat16.
bool has_case(std::string_view target, int n) {
  if (target != "avx512bf16") return true;
  return frozen::run_case(n, "", 1).name.find(" bfloat16 ") != std::string::npos;
}

constexpr const char* kHead =
    "# SPDX-License-Identifier: Apache-2.0\n"
    "# Hashes of the results of 276 calls (tests/attention/frozen/), which result_hashes_test.cc\n"
    "# compares: FNV-1a, 64 bits, of the bytes of all results in C order, every NaN the same.\n"
    "# Columns, separated by tabs:\n"
    "#   case    its number and what is drawn; results after ->, gradients after <-\n"
    "#   target  Bits are the same on every CPU that has the target, whoever made it. They differ\n"
    "#           between targets: SSE4 has no fused multiply-add, AVX-512 an estimate for the\n"
    "#           reciprocals of additive scores in float32, and each its own order of a few sums\n"
    "#           within a row\n"
    "#   hash\n"
    "# A program writes this file, never a hand: where bits were meant to change,\n"
    "#   QKV_WRITE_HASHES=1 build/release/tests/test_order --gtest_filter='*ResultHashes*'\n"
    "# replaces the rows of the targets that the CPU has, keeps the others, and fails, so that it "
    "is\n"
    "# not left on. CHANGELOG.md says that bits have changed; rows of targets that the CPU lacks "
    "are\n"
    "# then out of date: delete them, or write them on one that has it.\n";

bool writes() { return std::getenv("QKV_WRITE_HASHES") != nullptr; }

std::string hexadecimal(std::uint64_t value) {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

// ---- the file -------------------------------------------------------------------------------

// The hash of each case and target.
using Hashes = std::map<std::string, std::map<std::string, std::string>>;

Hashes read_hashes() {
  Hashes hashes;
  std::ifstream file(kFile);
  if (!file && !writes()) throw std::runtime_error(std::string("cannot open ") + kFile);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t first = line.find('\t');
    const std::size_t second = line.find('\t', first + 1);
    if (second == std::string::npos) throw std::runtime_error(std::string(kFile) + ": " + line);
    hashes[line.substr(0, first)][line.substr(first + 1, second - first - 1)] =
        line.substr(second + 1);
  }
  return hashes;
}

// By case; rows of cases that no longer exist are removed.
void write_hashes(const Hashes& hashes, const std::set<std::string>& names) {
  std::ofstream file(kFile);
  file << kHead;
  for (const auto& [name, targets] : hashes) {
    if (!names.contains(name)) continue;
    for (const auto& [target, hash] : targets)
      file << name << '\t' << target << '\t' << hash << '\n';
  }
}

bool has_rows(const Hashes& hashes, const std::string& target) {
  for (const auto& [name, targets] : hashes) {
    if (targets.contains(target)) return true;
  }
  return false;
}

// ---- the tests ------------------------------------------------------------------------------

class ResultHashes : public testing::TestWithParam<std::string_view> {};

const std::set<std::string>& all_names() {
  static const std::set<std::string> names = [] {
    std::set<std::string> all;
    for (int n = 0; n < frozen::kCases; ++n) all.insert(frozen::run_case(n, "", 1).name);
    return all;
  }();
  return names;
}

void write(const std::string& target, Hashes hashes) {
  for (auto& [name, targets] : hashes) targets.erase(target);
  for (int n = 0; n < frozen::kCases; ++n) {
    if (!has_case(target, n)) continue;
    const frozen::Outcome outcome = frozen::run_case(n, target, 1);
    hashes[outcome.name][target] = hexadecimal(outcome.hash.value());
  }
  write_hashes(hashes, all_names());
}

// Every second case runs on two threads: bits do not depend on them.
TEST_P(ResultHashes, AreThoseOfTheFile) {
  const std::string target(GetParam());
  bool found = false;
  for (const std::string& path : fast_paths(ScoreKind::kDot, DType::kBFloat16))
    found = found || path == "dot/" + target;
  if (!found) GTEST_SKIP() << "this CPU has no " << target << ", or QKV_TARGET names another";
  Hashes hashes = read_hashes();
  if (writes()) {
    write(target, std::move(hashes));
    FAIL() << "written: " << kFile << "; run it again without QKV_WRITE_HASHES";
  }
  if (!has_rows(hashes, target)) {
    GTEST_SKIP() << frozen::kCases << " cases are not compared: " << kFile << " has no row for "
                 << target << ". On a machine that has it, QKV_WRITE_HASHES=1 adds them.";
  }
  int compared = 0;
  for (int n = 0; n < frozen::kCases; n += is_brief() ? 4 : 1) {
    if (!has_case(target, n)) continue;
    const frozen::Outcome outcome = frozen::run_case(n, target, 1 + n % 2);
    ++compared;
    const std::string got = hexadecimal(outcome.hash.value());
    const auto& of_case = hashes[outcome.name];
    const auto want = of_case.find(target);
    EXPECT_EQ(got, want == of_case.end() ? "no row" : want->second)
        << "The bits of a result have changed, on " << target << ", of the case\n  " << outcome.name
        << "\nIf they were not meant to, the change is wrong. If they were: QKV_WRITE_HASHES=1 "
        << "with this test\nwrites tests/attention/result_hashes.tsv anew; say so in CHANGELOG.md, "
        << "and why.";
  }
  RecordProperty("compared", compared);
}

INSTANTIATE_TEST_SUITE_P(Target, ResultHashes, testing::ValuesIn(kTargets),
                         [](const auto& one) { return std::string(one.param); });

TEST(ResultHashes, TheFileHasTheCasesThatThereAre) {
  for (const auto& [name, targets] : read_hashes()) {
    EXPECT_TRUE(all_names().contains(name)) << "no such case: " << name;
  }
  EXPECT_EQ(all_names().size(), static_cast<std::size_t>(frozen::kCases));
}

// What the cases cover: each of these is drawn more than once.
TEST(ResultHashes, TheCasesDrawEverything) {
  std::map<std::string, int> counts;
  for (int n = 0; n < frozen::kCases; ++n) {
    for (const std::string& feature : frozen::run_case(n, "", 1).features) ++counts[feature];
  }
  for (const char* feature : {"scaled dot",
                              "dot",
                              "bilinear",
                              "additive",
                              "b",
                              "without b",
                              "parameter of each head",
                              "float32",
                              "float64",
                              "bfloat16",
                              "float16",
                              "float32/bfloat16",
                              "float32/float16",
                              "rank 2",
                              "rank 3",
                              "rank 4",
                              "rank 5",
                              "odd slope",
                              "odd sink",
                              "ranks differ",
                              "B 1 of keys",
                              "k repeats",
                              "grouped",
                              "packed",
                              "[B,T,H,D] in memory",
                              "every second channel",
                              "backwards in memory",
                              "Tq 1",
                              "Tq 5",
                              "Tq 48",
                              "Tq 49",
                              "Tq 130",
                              "Tq 600",
                              "Tk 1",
                              "Tk 63",
                              "Tk 64",
                              "Tk 65",
                              "Tk 511",
                              "Tk 513",
                              "Tk 700",
                              "D 1",
                              "D 8",
                              "D 40",
                              "D 64",
                              "D 65",
                              "D 128",
                              "D 130",
                              "D 200",
                              "E 1",
                              "E 8",
                              "E 40",
                              "E 64",
                              "E 65",
                              "E 128",
                              "E 130",
                              "E 200",
                              "scale",
                              "softcap",
                              "score_mod",
                              "score_mods",
                              "score_mod -inf",
                              "score_mod squares",
                              "bias",
                              "bias broadcast",
                              "bias -inf",
                              "top left",
                              "offset",
                              "offsets",
                              "bottom right",
                              "alibi [H]",
                              "alibi [B,H]",
                              "causal",
                              "window",
                              "keep",
                              "padding",
                              "lengths",
                              "lengths [B,Tq]",
                              "mask_mod",
                              "mask_mod precomputed",
                              "sinks",
                              "dropout",
                              "NaN behind",
                              "odd q",
                              "odd k",
                              "odd v",
                              "out",
                              "lse",
                              "row_max",
                              "column_sums",
                              "top",
                              "weights",
                              "dropped",
                              "raw",
                              "capped",
                              "masked",
                              "named rows",
                              "without v",
                              "dout",
                              "dlse",
                              "dweights",
                              "dweights of rows",
                              "added to",
                              "dq",
                              "dk",
                              "dv",
                              "dW",
                              "dWq",
                              "dWk",
                              "dv_u",
                              "db",
                              "dbias",
                              "dalibi",
                              "dsinks",
                              "AdditiveMemory",
                              "softmax",
                              "masked_softmax",
                              "batch_dot",
                              "MultiHeadAttention",
                              "Gru",
                              "Linear",
                              "cosine",
                              "norm",
                              "gain_q",
                              "gain_k",
                              "gain of each head",
                              "without a gain",
                              "dgain_q",
                              "dgain_k",
                              "rotary neighbours",
                              "rotary halves",
                              "partial width",
                              "frequencies",
                              "base 500",
                              "q_positions",
                              "k_positions",
                              "positions of entries",
                              "norm and rotary",
                              "packed maps",
                              "decode grouped",
                              "decode packed",
                              "decode C",
                              "decode [B,T,H,D]",
                              "decode 2nd channels",
                              "decode backwards",
                              "decode scale",
                              "decode softcap",
                              "decode bias",
                              "decode causal",
                              "decode window",
                              "decode keep",
                              "decode lengths",
                              "decode offsets",
                              "decode NaN behind",
                              "decode alibi",
                              "decode sinks",
                              "decode odd",
                              "decode without options"}) {
    EXPECT_GE(counts[feature], 2) << feature;
  }
  EXPECT_GE(counts["dout"], 80);
  for (int rows = 1; rows <= 16; ++rows) {
    EXPECT_GE(counts["decode rows " + std::to_string(rows)], 2) << rows;
  }
}

}  // namespace
}  // namespace qkv::test
