// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_PARTS_H_
#define QKV_TESTS_ATTENTION_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <qkv/attention.h>
#include <qkv/expression.h>
#include <qkv/tensor.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"

// Calls on parts of longer sequences.
namespace qkv::test {

// Queries or keys begin .. end - 1.
struct Part {
  Index begin = 0;
  Index end = 0;
};

// A whole call, and the option arrays for it and for its parts.
struct Whole {
  Index B, H, G, Tq, Tk, D, E;
  DType dtype;
  SeededScore score;
  Tensor q, k, v, dout, bias, keep, padding, lengths, slopes, sinks, documents, relative;

  Whole(Index queries, Index keys, DType type, ScoreKind kind = ScoreKind::kDot, Index width = 17,
        Index key_heads = 2)
      : B(2),
        H(4),
        G(key_heads),
        Tq(queries),
        Tk(keys),
        D(width),
        E(9),
        dtype(type),
        score(kind, {.H = H, .Dq = D, .Dk = D, .U = 6}, type),
        q(normal({B, H, Tq, D}, 1, type)),
        k(normal({B, G, Tk, D}, 2, type)),
        v(normal({B, G, Tk, E}, 3, type)),
        dout(normal({B, H, Tq, E}, 4, type)),
        bias(normal({H, Tq, Tk}, 5, accumulator_of(type))),
        keep(DType::kBool, {1, H, Tq, Tk}),
        padding(DType::kBool, {B, Tk}),
        lengths(DType::kInt64, {B, Tq}),
        slopes(normal({B, H}, 6, accumulator_of(type))),
        sinks(normal({H}, 7, accumulator_of(type))),
        documents(DType::kInt64, {std::max(Tq, Tk)}),
        relative(normal({H, Tq + Tk}, 8, accumulator_of(type))) {
    std::uint32_t bits = 1;
    const auto draw = [&](std::uint32_t below) {
      bits = bits * 1664525U + 1013904223U;
      return (bits >> 8) % below;
    };
    for (bool& x : keep.values<bool>()) x = draw(4) != 0;
    for (bool& x : padding.values<bool>()) x = draw(5) == 0;
    for (Index& x : lengths.values<Index>()) x = draw(static_cast<std::uint32_t>(Tk + 1));
    Index n = 0;
    for (Index& x : documents.values<Index>()) x = n++ / 97;
  }
  Inputs inputs(const Part& i, const Part& j) const {
    const auto rows = [](const Tensor& x, const Part& part) {
      return slice(ConstView(x.view()), 2, part.begin, part.end);
    };
    Inputs inputs{rows(q, i), rows(k, j), rows(v, j)};
    if (i.begin != 0 || j.begin != 0 || i.end != Tq || j.end != Tk) {
      inputs.shard = Shard{i.begin, Tq, j.begin, Tk};
    }
    return inputs;
  }
  Inputs inputs() const { return {q, k, v}; }
  Part queries() const { return {0, Tq}; }
  Part keys() const { return {0, Tk}; }
  ConstView bias_of(const Part& i, const Part& j) const {
    return slice(slice(ConstView(bias.view()), 1, i.begin, i.end), 2, j.begin, j.end);
  }
};

using OptionsOf = std::function<Options(const Whole&, const Part& queries, const Part& keys)>;

// Options of every kind, each alone and several together.
inline std::vector<std::pair<std::string, OptionsOf>> options_by_name() {
  const auto fixed = [](Options options) {
    return
        [options = std::move(options)](const Whole&, const Part&, const Part&) { return options; };
  };
  std::vector<std::pair<std::string, OptionsOf>> all{
      {"plain", fixed({})},
      {"causal", fixed({.masks = {Causal{}}})},
      {"causal, top left", fixed({.diagonal = TopLeft{}, .masks = {Causal{}}})},
      {"window", fixed({.softcap = 5, .masks = {Window{200, 30}}})},
      {"offset", fixed({.diagonal = Offset{77}, .masks = {Window{-1, 3}}})},
      {"dropout", fixed({.dropout = {0.3, 5}})},
      {"rotary", fixed({.qk_norm = QkNorm{}, .rotary = Rotary{.width = 8}})},
  };
  const auto add = [&](const char* name, OptionsOf options) {
    all.emplace_back(name, std::move(options));
  };
  add("offsets", [](const Whole& x, const Part&, const Part&) {
    static const std::vector<Index> kOffsets{40, 300};
    return Options{.diagonal = Offsets{kOffsets}, .alibi = x.slopes, .masks = {Causal{}}};
  });
  add("alibi", [](const Whole& x, const Part&, const Part&) { return Options{.alibi = x.slopes}; });
  add("sinks", [](const Whole& x, const Part&, const Part&) { return Options{.sinks = x.sinks}; });
  add("bias", [](const Whole& x, const Part& i, const Part& j) {
    return Options{.bias = x.bias_of(i, j)};
  });
  add("keep", [](const Whole& x, const Part& i, const Part& j) {
    const ConstView rows = slice(ConstView(x.keep.view()), 2, i.begin, i.end);
    return Options{.masks = {Keep{slice(rows, 3, j.begin, j.end)}}};
  });
  add("padding", [](const Whole& x, const Part&, const Part& j) {
    return Options{.masks = {Padding{slice(ConstView(x.padding.view()), 1, j.begin, j.end)}}};
  });
  add("lengths", [](const Whole& x, const Part& i, const Part&) {
    return Options{.masks = {KeyLengths{slice(ConstView(x.lengths.view()), 1, i.begin, i.end)}}};
  });
  add("function", [](const Whole&, const Part&, const Part&) {
    return Options{.mods = {score_mod(
                       [](auto s, At at) { return s - 0.01F * ((at.i + 3 * at.j + at.h) % 11); })},
                   .masks = {mask_mod([](At at) { return (at.i + at.j + at.h) % 3 != 0; })}};
  });
  add("expression", [](const Whole& x, const Part&, const Part&) {
    const Symbols at;
    const Captured document(x.documents, "document"), relative(x.relative, "relative");
    return Options{
        .mods = {score_mod(at.s + relative(at.h, at.j - at.i + (x.Tq - 1)) +
                           at.s * (at.Tk - at.j) / (2.0 * at.Tk))},
        .masks = {mask_mod(document(at.i) == document(at.j) || at.j < at.Tq / (2 + at.h))}};
  });
  add("known keys", [](const Whole&, const Part&, const Part&) {
    const Symbols at;
    return Options{.mods = {score_mod(where(at.j <= at.i + (at.Tk - at.Tq) + 3 * at.h, at.s,
                                            -std::numeric_limits<double>::infinity()))},
                   .masks = {mask_mod((at.j / 7) % 2 == 0 || at.j > at.Tk - 50 * (at.h + 1))}};
  });
  add("all together", [](const Whole& x, const Part& i, const Part& j) {
    return Options{.rotary = Rotary{.width = 8},
                   .softcap = 20,
                   .mods = {score_mod([](auto s, At at) { return s - 0.01F * (at.j % 7); })},
                   .bias = x.bias_of(i, j),
                   .alibi = x.slopes,
                   .masks = {Causal{}, Window{900, 0},
                             KeyLengths{slice(ConstView(x.lengths.view()), 1, i.begin, i.end)}},
                   .sinks = x.sinks,
                   .dropout = {0.2, 9}};
  });
  return all;
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_PARTS_H_
