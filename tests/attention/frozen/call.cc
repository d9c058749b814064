// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/frozen/call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <variant>

// Sizes, inputs and scores of a frozen call. Each draw is a separate statement: the evaluation
// order of arguments is up to the compiler.
namespace qkv::test::frozen {
namespace {

// Around the edges of kernels: tiles (6 rows), blocks of rows (48, 128), panels (64 keys), chunks
// (256 and 512 keys), blocks of channels (64).
constexpr Index kQueries[] = {1, 5, 48, 49, 130, 600};
constexpr Index kKeys[] = {1, 63, 64, 65, 257, 511, 513, 700, 63, 65, 511, 513, 700};
constexpr Index kWidths[] = {1, 8, 40, 64, 65, 128, 130, 200};
constexpr Index kUnits[] = {1, 3, 32, 33, 65};
constexpr Index kMostCost = 6'000'000;  // multiply-adds of a forward pass

// The next smaller width.
bool make_narrower(Index& width) {
  const Index* const at = std::find(std::begin(kWidths), std::end(kWidths), width);
  if (at == std::begin(kWidths)) return false;
  width = at[-1];
  return true;
}

}  // namespace

Call::Call(Family family, int index, bool only_named)
    : family_(family),
      index_(index),
      only_named_(only_named),
      draw_((family == Family::kScores ? 0x5EED0000 : 0x5EED5000) +
            static_cast<std::uint64_t>(index)) {
  draw_score();
  draw_sizes();
  packed_ ? draw_packed_inputs() : draw_inputs();
  matrix_ = result_shapes(inputs_).matrix;
  if (family_ == Family::kMaps) draw_maps();
  draw_options();
  backward_ = family_ == Family::kMaps || draw_.chance(58);
  draw_outputs();
  if (backward_) draw_backward();
}

std::string Call::kind() const {
  if (std::holds_alternative<Bilinear>(score_)) return "bilinear";
  return std::holds_alternative<Additive>(score_) ? "additive" : "dot";
}

std::string Call::name() const { return score_name_ + " " + described(inputs_) + words_; }

// ---- arrays ---------------------------------------------------------------------------------

View Call::own(Tensor tensor) {
  tensors_.push_back(std::move(tensor));
  return tensors_.back();
}

View Call::lay_out(Tensor values, Order order) {
  return frozen::lay_out(std::move(values), order, tensors_, features_);
}

View Call::make(DType dtype, const Dims& shape, double size) {
  const Order order = draw_order(draw_);
  Draw of_array(draw_.bits());
  return lay_out(only_named_ ? Tensor(dtype, shape) : numbers(of_array, dtype, shape, size), order);
}

View Call::whole_numbers(DType dtype, const Dims& shape, Index low, Index high) {
  Tensor x = frozen::whole_numbers(draw_, dtype, shape, low, high);
  const Order order = draw_order(draw_);
  return lay_out(std::move(x), order);
}

// A parameter has q's dtype or the accumulator's.
View Call::parameter(const Dims& shape, double size) {
  const DType dtype = draw_.chance(25) ? sums() : dtype_;
  return make(dtype, shape, size);
}

// ---- score and sizes ------------------------------------------------------------------------

void Call::draw_score() {
  constexpr DType kTypes[] = {DType::kFloat32,  DType::kFloat32, DType::kFloat32,  DType::kFloat32,
                              DType::kFloat32,  DType::kFloat64, DType::kFloat64,  DType::kFloat64,
                              DType::kBFloat16, DType::kFloat16, DType::kBFloat16, DType::kFloat16};
  const auto type = static_cast<std::size_t>(draw_.whole(0, 11));
  keys_ = kTypes[type];
  dtype_ = type >= 10 ? DType::kFloat32 : keys_;
  family_ == Family::kMaps ? draw_mapped_score() : draw_plain_score();
  features_.insert(score_name_);
  features_.insert(dtype_ == keys_ ? std::string(name_of(dtype_))
                                   : "float32/" + std::string(name_of(keys_)));
  packed_ = draw_.chance(family_ == Family::kMaps ? 25 : 15);
}

void Call::draw_plain_score() {
  switch (draw_.whole(0, 7)) {
    case 0:
    case 1:
    case 2:
      score_ = ScaledDot{};
      score_name_ = "scaled dot";
      break;
    case 3:
      score_ = Dot{};
      score_name_ = "dot";
      break;
    case 4:
    case 5:
      score_ = Bilinear{};
      score_name_ = "bilinear";
      break;
    default:
      score_ = Additive{};
      score_name_ = "additive";
  }
}

Index Call::cost() const {
  const bool additive = std::holds_alternative<Additive>(score_);
  const Index channels = E + (additive ? 6 * U : Dk);
  const Index types = dtype_ == DType::kFloat64 ? 2 : 1;
  return types * B * H * Tq * Tk * channels;
}

// Makes the call cheaper by one step.
bool Call::shrink() {
  if (B > 1) return --B, true;
  if (H > G) return H = G, true;
  if (G > 1) return H = G = 1, true;
  if (std::holds_alternative<Additive>(score_) && U > 3) return U = 3, true;
  const bool keys_first = Dk > E;
  if (!make_narrower(keys_first ? Dk : E)) return false;
  Dq = keys_first && std::holds_alternative<ScaledDot>(score_) ? Dk : Dq;
  return true;
}

void Call::draw_sizes() {
  constexpr Index kHeads[] = {1, 1, 2, 3};
  if (family_ == Family::kScores) {
    Tq = kQueries[index_ % 6];
    Tk = kKeys[index_ / 6 % 13];
  } else {
    Tq = kQueries[index_ / 3 % 6];
    Tk = draw_.one_of(kKeys);
  }
  B = draw_.whole(1, 3);
  G = draw_.one_of(kHeads);
  H = G * draw_.one_of(kHeads);
  Dk = draw_.one_of(kWidths);
  E = draw_.one_of(kWidths);
  Index other = draw_.one_of(kWidths);
  U = draw_.one_of(kUnits);
  if (family_ == Family::kMaps) {  // rows of one channel test little
    Dk = std::max<Index>(Dk, 8);
    other = std::max<Index>(other, 8);
  }
  while (cost() > kMostCost * (index_ % 16 == 0 ? 4 : 1) && shrink()) {
  }
  const bool products = kind() == "dot";
  Dq = products ? Dk : std::min<Index>(other, 130);
  note_size("Tq", Tq);
  note_size("Tk", Tk);
  note_size("D", Dk);
  note_size("E", E);
}

// ---- inputs ---------------------------------------------------------------------------------

void Call::draw_inputs() {
  const Index form = draw_.whole(0, 9);
  Dims batch{B, H};
  if (form == 0) {
    B = H = G = 1;
    batch = {};
  } else if (form <= 2) {
    H = G = 1;
    batch = {B};
  }
  Dims keys = batch;
  if (batch.rank() == 2) {
    keys = {B, G};
    if (form == 3) {  // another rank
      keys = {G};
    } else if (form == 6) {  // batch axes [2,B], of which keys have the second
      batch = {2, B, H};
    } else if (form <= 5 && B > 1) {  // all queries see the same keys
      keys = {1, G};
      note("B 1 of keys");
    }
    if (H > G) note("grouped");
  }
  note_size("rank", batch.rank() + 2);
  if (keys.rank() != batch.rank()) note("ranks differ");
  const auto shape = [](Dims axes, Index rows, Index width) {
    axes.push_back(rows);
    axes.push_back(width);
    return axes;
  };
  q_ = make(dtype_, shape(batch, Tq, Dq));
  if (batch.rank() == 3) B *= 2;
  k_ = make(keys_, shape(keys, Tk, Dk));
  v_ = make(keys_, shape(keys, Tk, E));
  inputs_ = {.q = q_, .k = k_, .v = v_};
  if (form == 4 && B > 1) {
    inputs_.k = broadcast_to(k_, {B, G, Tk, Dk});
    note("k repeats");
  }
}

// Sequences of the drawn lengths, one with a query that sees nothing, and a short one.
void Call::draw_packed_inputs() {
  note("packed");
  if (H > G) note("grouped");
  B = 3;
  const Index short_q = draw_.whole(1, 9);
  const Index short_k = draw_.whole(1, 70);
  const auto list = [&](Index a, Index b, Index c) {
    Tensor cu(DType::kInt64, Dims(4));
    const std::span<std::int64_t> n = cu.values<std::int64_t>();
    n[1] = a;
    n[2] = a + b;
    n[3] = a + b + c;
    return own(std::move(cu));
  };
  q_ = make(dtype_, {Tq + 1 + short_q, H, Dq});
  k_ = make(keys_, {Tk + short_k, G, Dk});
  v_ = make(keys_, {Tk + short_k, G, E});
  inputs_ = {.q = q_, .k = k_, .v = v_};
  inputs_.cu_seqlens_q = list(Tq, 1, short_q);
  inputs_.cu_seqlens_k = list(Tk, 0, short_k);
}

Dims Call::with_heads(const Dims& shape) {
  if (!draw_.chance(50)) return shape;
  features_.insert("parameter of each head");
  Dims heads(H);
  for (const Index size : shape) heads.push_back(size);
  return heads;
}

}  // namespace qkv::test::frozen
