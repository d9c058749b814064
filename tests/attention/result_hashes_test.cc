// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/qkv.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/conformance.h"
#include "tests/layers/support.h"

// Results must have the hashes in result_hashes.tsv on every CPU that has the target, and after
// every change that is not meant to change results. A row is one or a few calls. Its cells are
// hashes of the arguments (`drawn`) and, for each target, of all results: "-" if the target takes
// none of the calls, "?" if they were never run on it. The table is written by this command only:
//   QKV_WRITE_HASHES=1 build/release/tests/test_order --gtest_filter='*ResultHashes.AreThose*'
// Run it if results were meant to change, which CHANGELOG.md must then say, and if tests draw other
// calls (random_*.cc, backward_call.cc, support/random.h). It fills in the targets of this CPU, and
// "?" for other targets in rows whose calls are drawn differently. If results were meant to change
// on a target that this CPU lacks, write "?" by hand.
namespace qkv::test {
namespace {

constexpr const char* kFile = QKV_SOURCE_DIR "/tests/attention/result_hashes.tsv";
constexpr const char* kColumns[] = {"drawn", "amx",       "avx512bf16", "avx512",      "avx2",
                                    "sse4",  "reference", "neon",       "avx2 forward"};
// On NEON attention() returns the bits of AVX2, since both have fused multiply-adds and divisions.
// Some gradients differ: the sums of sum_of and dots_with (kernels/gradient-inl.h) take as many
// terms at once as a register has lanes.
constexpr const char* kForward = "avx2 forward";
bool has_forward_of_avx2(std::string_view target) { return target == "avx2" || target == "neon"; }
constexpr int kCallsOfARow = 4;
constexpr std::uint64_t kSeed = 13;  // TheRowsHaveEveryFeature passes with it

// The 64-bit FNV-1a hash of bytes in C order. All NaNs count as one, because the compiler decides
// which of two NaNs a sum has. The compiler also decides the sign of a maximum of -0 and 0;
// `one_zero` makes both zeros count as one.
struct Hash {
  void add(const ConstView& x, bool one_zero = false) {
    if (!x.given()) return;
    // A mask may hold any bytes, of which only 0 and 1 can be read as bool.
    const bool is_mask = x.dtype() == DType::kBool;
    Tensor copy =
        contiguous(is_mask ? ConstView(x.data(), DType::kUInt8, x.shape(), x.strides()) : x);
    for (Index n = 0; is_real(x.dtype()) && n < copy.element_count(); ++n) {
      const double real = core::load<double>(x.dtype(), copy.view().data(), n);
      if (std::isnan(real)) core::store(x.dtype(), copy.view().data(), n, NAN);
      if (real == 0 && one_zero) core::store(x.dtype(), copy.view().data(), n, 0.0);
    }
    for (const std::uint8_t byte : bytes_of(copy)) add(byte);
  }
  void add(std::uint8_t byte) { value = (value ^ byte) * 0x100000001B3; }
  std::string cell() const {
    std::ostringstream text;
    text << std::hex << value;
    return value == kEmpty ? "-" : text.str();
  }

  static constexpr std::uint64_t kEmpty = 0xCBF29CE484222325;
  std::uint64_t value = kEmpty;
};

// The path of a target for calls with this kind of score and this dtype of q, or "" if the target
// runs them on the path of another target.
std::string path_of(const std::string& target, ScoreKind kind, DType dtype) {
  if (target == kReferencePath) return target;
  const std::string path = (kind == ScoreKind::kAdditive ? "additive/" : "dot/") + target;
  const bool of_bfloat16 = kind == ScoreKind::kDot && dtype == DType::kBFloat16;
  if (has_bfloat16_products(path) && !of_bfloat16) return "";
  // Emulated tiles give the bits of AMX.
  const bool lacks_amx = target == "amx" && !kernels::is_supported(kernels::Target::kAmx);
  return lacks_amx ? path + "-emulated" : path;
}

// ---- random calls, forward and backward -----------------------------------------------------

struct RandomRows {
  const char* name;
  RandomCall::Draw draw;
  int count;
};
constexpr RandomRows kRandom[] = {{"calls ", RandomCall::Draw::kAnything, 44},
                                  {"calls with QK-norm, rotary ", RandomCall::Draw::kMaps, 8},
                                  {"calls of bfloat16 ", RandomCall::Draw::kBFloat16, 6},
                                  {"decoding ", RandomCall::Draw::kDecode, 12}};

RandomBackward random_call(const RandomRows& rows, int n) {
  return RandomBackward(kSeed, static_cast<std::uint64_t>(n), rows.draw);
}

// Adds a random call's arguments to `drawn`, what attention() returns to `returned`, and all
// results, gradients included, to `results`.
void run_random(const RandomBackward& random, const std::string& target, Hash& drawn, Hash& results,
                Hash& returned) {
  const BackwardCall& call = random.call();
  for (const char byte : random.describe()) drawn.add(static_cast<std::uint8_t>(byte));
  for (const Guarded& x : random.forward().arrays()) drawn.add(x);
  for (const ConstView& x :
       {call.options.bias, call.sources.out, call.sources.lse, call.sources.weights.matrix}) {
    drawn.add(x);
  }
  const std::string path = path_of(target, random.forward().score(), random.forward().dtype());
  if (path.empty() || refusal(path, call.inputs, call.options).has_value()) return;
  const Results forward(random.forward(), -777);
  Context context = context_on(path, call.threads);
  attention(call.inputs, call.options, forward.outputs(), context);
  for (const auto& [name, array] : forward.arrays()) {
    for (Hash* hash : {&results, &returned}) hash->add(array, name == "row_max");
  }
  if (!takes_backward(path, call.inputs, call.options)) return;
  const SavedTensors saved(call, path);
  const Gradients gradients(call);
  run_backward(call, path, saved.views(), gradients);
  for (const auto& [name, array] : gradients.arrays()) results.add(array.view());
}

// ---- functions and classes over calls -------------------------------------------------------

struct Pass {
  View draw(const Dims& shape, std::uint64_t seed) {
    Random random(seed);
    return inputs.emplace_back(d, shape, Layout::kContiguous).fill_normal(random).view();
  }
  View result(const Dims& shape, DType dtype = DType::kNone) {
    return results.emplace_back(dtype == DType::kNone ? d : dtype, shape);
  }
  template <class Gradients>
  void add(const Gradients& gradients) {
    for_each_parameter(gradients, [&](const auto& p) { results.push_back(contiguous(p.value)); });
  }

  DType d;
  Context& context;
  std::deque<Guarded> inputs{};
  std::deque<Tensor> results{};
};

// Steps of several queries against one source, and the gradients of k and Wk over all of them.
void run_memory(Pass& x) {
  const Additive score{x.draw({4, 33, 7}, 5), x.draw({33, 9}, 6), x.draw({4, 33}, 7),
                       x.draw(Dims(33), 8)};
  const Options options{
      .score = score,
      .softcap = 4,
      .mods = {score_mod([](auto s, At at) { return soft_cap(s * s, 4.0F) + (at.j & 1); })},
      .dropout = {0.25, 99}};
  const View k = x.draw({2, 2, 130, 9}, 1), v = x.draw({2, 2, 130, 5}, 2);
  AdditiveMemory memory(k, score, x.context);
  for (const Index Tq : {1, 7, 49}) {
    const Inputs inputs{x.draw({2, 4, Tq, 7}, 3), k, v};
    const View out = x.result({2, 4, Tq, 5}), lse = x.result({2, 4, Tq}, accumulator_of(x.d));
    memory.attention(inputs, options, {.out = out, .lse = lse});
    memory.attention_backward(inputs, options, {out, lse}, {.out = x.draw({2, 4, Tq, 5}, 4)},
                              {.q = x.result({2, 4, Tq, 7}), .v = x.result(v.shape())});
  }
  const View dk = x.result(k.shape()), dwk = x.result({33, 9});
  memory.key_gradients(dk, dwk);
}

// A prefill and three steps.
void run_cache(Pass& x, DType stored, Index window) {
  KvCache cache({.dtype = stored, .B = 2, .G = 2, .D = 64, .E = 32, .window = window});
  cache.append(x.draw({2, 2, 530, 64}, 1), x.draw({2, 2, 530, 32}, 2));
  for (const std::uint64_t step : {0U, 1U, 2U}) {
    cache.append(x.draw({2, 2, 1, 64}, 5 + step), x.draw({2, 2, 1, 32}, 10 + step));
    cache.attention(x.draw({2, 4, 1, 64}, 15 + step), {}, {.out = x.result({2, 4, 1, 32})},
                    x.context);
  }
}

void run_arrays(Pass& x) {
  const std::vector<Index> lengths{700, 0, 511};
  const View rows = x.draw({3, 5, 700}, 1), a = x.draw({2, 49, 130}, 2), b = x.draw({65, 130}, 3);
  softmax(rows, x.result(rows.shape()), x.context);
  masked_softmax(rows, lengths, x.result(rows.shape()), x.context);
  batch_dot(a, b, x.result({2, 49, 65}), Transpose::kNo, Transpose::kYes, x.context);
}

void run_heads(Pass& x) {
  const auto layer = initialised(MultiHeadAttention(
      {.width = 32, .heads = 4, .dtype = x.d, .key_heads = 2, .sinks = true, .bias_kv = true}));
  const Dims shape{2, 65, 32};
  const View q = x.draw(shape, 1);
  RunState run{Mode::kTrain, 11, 3};
  MultiHeadAttention::Saved saved;
  layer.forward({q, q, q}, run, saved, {.out = x.result(shape)}, x.context);
  auto gradients = layer.zero_gradients();
  layer.backward(saved, {.out = x.draw(shape, 2)},
                 {.q = x.result(shape), .k = x.result(shape), .v = x.result(shape)}, gradients,
                 x.context);
  x.add(gradients);
}

void run_gru(Pass& x) {
  const auto layer =
      initialised(Gru({.input = 70, .hidden = 33, .bidirectional = true, .dtype = x.d}));
  const std::vector<Index> lengths{9, 1, 5};
  const View rows = x.draw({3, 9, 70}, 1), out = x.result({3, 9, 66}), dx = x.result({3, 9, 70});
  Gru::Saved saved;
  layer.forward({.x = rows, .lengths = lengths}, saved, {.out = out}, x.context);
  auto gradients = layer.zero_gradients();
  layer.backward(saved, {.out = x.draw(out.shape(), 2)}, {.x = dx}, gradients, x.context);
  x.add(gradients);
}

void run_linear(Pass& x) {
  const auto layer = initialised(Linear(130, 65, true, x.d));
  const View rows = x.draw({7, 49, 130}, 1), y = x.result({7, 49, 65}), dx = x.result(rows.shape());
  Linear::Saved saved;
  layer.forward(rows, saved, y, x.context);
  auto gradients = layer.zero_gradients();
  layer.backward(saved, x.draw(y.shape(), 2), dx, gradients, Write::kOverwrite, x.context);
  x.add(gradients);
}

struct FixedRows {
  const char* name;
  void (*run)(Pass&);
  std::vector<DType> types;
  ScoreKind kind = ScoreKind::kDot;
};
const std::vector<DType> kAll(kReals.begin(), kReals.end()), kWide{kF32, kF64};
const FixedRows kFixed[] = {
    {"AdditiveMemory ", &run_memory, {kF32, kF64, DType::kBFloat16}, ScoreKind::kAdditive},
    {"KvCache ", [](Pass& x) { run_cache(x, x.d, 0); }, kAll},
    {"KvCache of q8 ", [](Pass& x) { run_cache(x, DType::kQ8, 300); }, {kF32}},
    {"softmax, batch_dot ", &run_arrays, kAll},
    {"MultiHeadAttention ", &run_heads, kWide},
    {"Gru ", &run_gru, kWide},
    {"Linear ", &run_linear, kWide}};

void run_fixed(const FixedRows& row, DType d, const std::string& target, Hash& drawn, Hash& results,
               Hash& returned) {
  const std::string path = path_of(target, row.kind, d);
  Context context = context_on(path, 2);
  Pass pass{d, context};
  drawn.add(pass.draw(Dims(99), 1));
  if (path.empty()) return;
  row.run(pass);
  for (const Tensor& x : pass.results) {
    for (Hash* hash : {&results, &returned}) hash->add(x);
  }
}

// ---- the table ------------------------------------------------------------------------------

using Run =
    std::function<void(const std::string& target, Hash& drawn, Hash& results, Hash& returned)>;

std::map<std::string, Run> all_rows() {
  std::map<std::string, Run> rows;
  for (const RandomRows& kind : kRandom) {
    for (int row = 0; row < kind.count; ++row) {
      rows[kind.name + std::to_string(row)] = [=](const auto& target, auto&... hashes) {
        for (int n = row * kCallsOfARow; n < (row + 1) * kCallsOfARow; ++n) {
          run_random(random_call(kind, n), target, hashes...);
        }
      };
    }
  }
  for (const FixedRows& row : kFixed) {
    for (const DType d : row.types) {
      rows[row.name + std::string(name_of(d))] = [&row, d](auto&&... to) {
        run_fixed(row, d, to...);
      };
    }
  }
  return rows;
}

using Table = std::map<std::string, std::map<std::string, std::string>>;  // by row and column

Table read_table() {
  Table table;
  std::ifstream file(kFile);
  for (std::string line, row; std::getline(file, line);) {
    std::istringstream cells(line);
    if (line.starts_with("#") || !std::getline(cells, row, '\t')) continue;
    for (const char* column : kColumns) std::getline(cells, table[row][column], '\t');
  }
  return table;
}

void write_table(const Table& table) {
  std::ofstream file(kFile);
  file << "# SPDX-License-Identifier: Apache-2.0\n# result_hashes_test.cc writes this file.\n# row";
  for (const char* column : kColumns) file << '\t' << column;
  for (const auto& [row, cells] : table) {
    file << '\n' << row;
    for (const char* column : kColumns) file << '\t' << cells.at(column);
  }
  file << '\n';
}

class ResultHashes : public testing::TestWithParam<const char*> {};

TEST_P(ResultHashes, AreThoseOfTheTable) {
  const std::string target = GetParam();
  const std::vector<std::string> paths = all_paths(ScoreKind::kDot, DType::kBFloat16);
  if (std::ranges::count(paths, path_of(target, ScoreKind::kDot, DType::kBFloat16)) == 0) {
    GTEST_SKIP() << "this CPU has no " << target << ", or QKV_TARGET names another";
  }
  const bool writes = std::getenv("QKV_WRITE_HASHES") != nullptr;
  Table table = read_table(), written;
  int unknown = 0, n = 0;
  for (const auto& [row, run] : all_rows()) {
    if (!writes && is_brief() && n++ % 4 != 0) continue;
    Hash drawn, results, returned;
    run(target, drawn, results, returned);
    auto& want = table[row];
    const bool same_calls = want["drawn"] == drawn.cell();
    if (writes) {
      for (const char* column : kColumns) written[row][column] = same_calls ? want[column] : "?";
      written[row]["drawn"] = drawn.cell(), written[row][target] = results.cell();
      if (target == "avx2") written[row][kForward] = returned.cell();
    } else if (!same_calls) {
      ADD_FAILURE() << row
                    << ": tests draw other calls than those of the table. If this is meant, write "
                    << "the table anew, with a library whose bits are those of the table.";
    } else {
      const bool compares_forward = has_forward_of_avx2(target);
      if (want[target] == "?" || (compares_forward && want[kForward] == "?")) ++unknown;
      if (want[target] != "?") {
        EXPECT_EQ(results.cell(), want[target])
            << row << ", " << target << ": the bits of a result have changed. If this is meant, "
            << "write the table anew, and say in CHANGELOG.md that they change, and why.";
      }
      if (compares_forward && want[kForward] != "?") {
        EXPECT_EQ(returned.cell(), want[kForward])
            << row << ": results (of random calls, without gradients) are not those of avx2";
      }
    }
  }
  if (writes) write_table(written);
  ASSERT_FALSE(writes) << "written: " << kFile << "; run it again without QKV_WRITE_HASHES";
  if (unknown > 0) {
    GTEST_SKIP() << unknown << " rows were never run on " << target << " or avx2";
  }
}

INSTANTIATE_TEST_SUITE_P(Target, ResultHashes,
                         testing::ValuesIn(kColumns + 1, std::end(kColumns) - 1),
                         [](const auto& one) { return std::string(one.param); });

TEST(ResultHashes, TheTableHasTheRowsOfThisTest) {
  std::set<std::string> have, want;
  for (const auto& row : read_table()) have.insert(row.first);
  for (const auto& row : all_rows()) want.insert(row.first);
  EXPECT_EQ(have, want);
  EXPECT_LE(have.size(), 100U);
}

// Each alternative of the lists of options, each type of keys, each result and gradient, and each
// feature that conformance tests count occurs in some row.
TEST(ResultHashes, TheRowsHaveEveryFeature) {
  std::set<std::string> drawn;
  const auto note = [&](const char* list, std::string_view x) {
    drawn.insert(list + std::string(x));
  };
  for (const RandomRows& kind : kRandom) {
    for (int n = 0; n < kind.count * kCallsOfARow; ++n) {
      const RandomBackward random = random_call(kind, n);
      drawn.insert(random.features().begin(), random.features().end());
      note("score ", name_of(random.call().options.score));
      note("diagonal ", name_of(random.call().options.diagonal));
      for (const Mask& mask : random.call().options.masks) note("mask ", name_of(mask));
      note("keys ", name_of(random.call().inputs.k.dtype()));
    }
  }
  const auto expect = [&](const char* list, std::string_view x) {
    EXPECT_TRUE(drawn.contains(list + std::string(x))) << "no row has " << list << x;
  };
  for (const std::string_view name : qkv::names_of<Score>()) expect("score ", name);
  for (const std::string_view name : qkv::names_of<Mask>()) expect("mask ", name);
  for (const std::string_view name : qkv::names_of<Diagonal>()) expect("diagonal ", name);
  for (int n = 1; n < static_cast<int>(DType::kQ8); ++n) {
    const auto dtype = static_cast<DType>(n);
    if (is_real(dtype)) expect("keys ", name_of(dtype));
  }
  for (const char* name : BackwardCall::kNames) expect("asks ", name);
  for (int rows = 1; rows <= 16; ++rows) expect("decode rows ", std::to_string(rows));
  std::vector<std::string_view> lists{kCoveredOfCalls, kCoveredOutputs, kCoveredGradients,
                                      kCoveredMaps};
  for (const ScoreKind kind : kScoreKinds) lists.push_back(covered_of(kind));
  for (const std::string_view list : lists) {
    for_each_feature(list, [&](const std::string& name) { expect("", name); });
  }
  // If Outputs gets a new field, this does not compile until the field is added here. It must then
  // also be added to kCoveredOutputs.
  [[maybe_unused]] const auto& [out, lse, row_max, entropy, column_sums, value_sums, pooled, top,
                                weights, dropped, raw, capped, masked] = Outputs{};
}

}  // namespace
}  // namespace qkv::test
