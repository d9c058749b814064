// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/frozen/cases.h"

#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include <qkv/additive_memory.h>
#include <qkv/softmax.h>

#include "tests/attention/frozen/call.h"
#include "tests/attention/frozen/draw.h"

namespace qkv::test::frozen {

Outcome run_case(int number, const std::string& target, int threads) {
  using Run = Outcome (*)(int, const std::string&, int);
  constexpr std::pair<int, Run> kKinds[] = {
      {kAttentionCases, &run_attention}, {kMemoryCases, &run_memory}, {kArrayCases, &run_arrays},
      {kLayerCases, &run_layer},         {kMapCases, &run_maps},      {kDecodeCases, &run_decode}};
  int index = number;
  for (const auto& [count, run] : kKinds) {
    if (index < count) {
      Outcome outcome = run(index, target, threads);
      char digits[8];
      std::snprintf(digits, sizeof(digits), "%03d ", number);
      outcome.name.insert(0, digits);
      return outcome;
    }
    index -= count;
  }
  return {};
}

namespace {

Outcome run_call(Family family, int index, const std::string& target, int threads) {
  Call call(family, index, target.empty());
  Outcome outcome{.name = call.name(), .features = call.features()};
  if (target.empty()) return outcome;
  Context context =
      context_of((call.kind() == "additive" ? "additive/" : "dot/") + target, threads);
  call.run(context, outcome.hash);
  return outcome;
}

}  // namespace

Outcome run_attention(int index, const std::string& target, int threads) {
  return run_call(Family::kScores, index, target, threads);
}

Outcome run_maps(int index, const std::string& target, int threads) {
  return run_call(Family::kMaps, index, target, threads);
}

// ---- AdditiveMemory -------------------------------------------------------------------------

// Steps of several queries against one source, forward and backward, and the resulting gradients of
// k and Wk.
Outcome run_memory(int index, const std::string& target, int threads) {
  constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat32};
  constexpr Index kUnits[] = {33, 5};
  const DType d = kTypes[index % 4];
  const DType sums = accumulator_of(d);
  const Index U = kUnits[index / 4];
  Outcome outcome;
  outcome.name = "AdditiveMemory " + std::string(name_of(d)) + " k[2,2,130,9] v[2,2,130,5] U " +
                 std::to_string(U) + ", steps of 1, 7 and 49 queries, " +
                 (index % 2 == 0 ? "lengths" : "softcap and dropout");
  outcome.features = {"AdditiveMemory"};
  if (target.empty()) return outcome;

  Draw draw(0x5EED1000 + static_cast<std::uint64_t>(index));
  const Index B = 2, H = 4, G = 2, Tk = 130;
  const Tensor k = numbers(draw, d, {B, G, Tk, 9});
  const Tensor v = numbers(draw, d, {B, G, Tk, 5});
  const Tensor wq = numbers(draw, d, {H, U, 7}, 0.5);
  const Tensor wk = numbers(draw, d, {U, 9}, 0.5);
  const Tensor score_v = numbers(draw, d, {H, U}, 0.5);
  const Tensor b = numbers(draw, d, Dims(U), 0.5);
  const std::vector<Index> lengths{Tk, 65};
  const Additive score{wq, wk, score_v, b};
  Options options{.score = score};
  if (index % 2 == 0) {
    options.masks = {KeyLengths{lengths}};
  } else {
    options.softcap = 4;
    options.dropout = {0.25, 99};
  }
  Context context = context_of("additive/" + target, threads);
  AdditiveMemory memory(k, score, context);
  for (const Index Tq : {1, 7, 49}) {
    const Tensor q = numbers(draw, d, {B, H, Tq, 7});
    const Tensor dout = numbers(draw, d, {B, H, Tq, 5});
    Tensor out(d, {B, H, Tq, 5}), lse(sums, {B, H, Tq}), dq(d, q.shape()), dv(d, v.shape()),
        dwq(d, wq.shape());
    memory.attention({q, k, v}, options, {.out = out, .lse = lse});
    memory.attention_backward({q, k, v}, options, {.out = out, .lse = lse}, {.out = dout},
                              {.q = dq, .v = dv, .score = AdditiveGradient{.wq = dwq}});
    for (const Tensor* x : {&out, &lse, &dq, &dv, &dwq}) outcome.hash.add(*x);
  }
  Tensor dk(d, k.shape()), dwk(d, wk.shape());
  memory.key_gradients(dk, dwk);
  outcome.hash.add(dk);
  outcome.hash.add(dwk);
  return outcome;
}

// ---- softmax, masked_softmax, batch_dot -----------------------------------------------------

Outcome run_arrays(int index, const std::string& target, int threads) {
  constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16};
  Outcome outcome;
  const auto run = [&](const std::string& name, DType d, const auto& call) {
    outcome.name = name + " " + std::string(name_of(d));
    outcome.features = {name.substr(0, name.find(' '))};
    if (target.empty()) return;
    Draw draw(0x5EED2000 + static_cast<std::uint64_t>(index));
    Context context = context_of("dot/" + target, threads);
    call(draw, context);
  };
  if (index < 3) {
    const DType d = kTypes[index];
    run("softmax [3,5,513]", d, [&](Draw& draw, Context& context) {
      const Tensor x = numbers(draw, d, {3, 5, 513}, 4);
      Tensor y(d, x.shape());
      softmax(x, y, context);
      outcome.hash.add(y);
    });
  } else if (index < 6) {
    const DType d = kTypes[index - 3];
    const bool of_rows = index == 4;
    const std::string lengths = of_rows ? " lengths [B,T]" : " lengths [B]";
    run("masked_softmax [3,4,700]" + lengths, d, [&](Draw& draw, Context& context) {
      const Tensor x = numbers(draw, d, {3, 4, 700}, 4);
      Tensor n(DType::kInt64, of_rows ? Dims(3, 4) : Dims(3));
      for (std::int64_t& value : n.values<std::int64_t>()) value = draw.whole(0, 700);
      Tensor y(d, x.shape());
      masked_softmax(x, n, y, context);
      outcome.hash.add(y);
    });
  } else {
    const DType d = kTypes[index - 6];
    const Transpose a = index % 2 == 0 ? Transpose::kNo : Transpose::kYes;
    const Transpose b = index < 8 ? Transpose::kNo : Transpose::kYes;
    const std::string name = std::string("batch_dot [2,49,130] [130,65]") +
                             (a == Transpose::kYes ? " a transposed" : "") +
                             (b == Transpose::kYes ? " b transposed" : "");
    run(name, d, [&](Draw& draw, Context& context) {
      const Tensor x = numbers(draw, d, {2, 49, 130});
      const Tensor y = numbers(draw, d, {130, 65});
      const Tensor xt = contiguous(transpose(x.view(), 1, 2));
      const Tensor yt = contiguous(transpose(y.view(), 0, 1));
      Tensor z(d, {2, 49, 65});
      batch_dot(a == Transpose::kYes ? xt : x, b == Transpose::kYes ? yt : y, z, a, b, context);
      outcome.hash.add(z);
    });
  }
  return outcome;
}

}  // namespace qkv::test::frozen
