// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "tests/attention/frozen/call.h"

// Cosine scores and what is made of rows before the score: QK-norm and rotary positions.
namespace qkv::test::frozen {

// In turn: the cosine score, QK-norm, rotary positions; the latter two with any score.
void Call::draw_mapped_score() {
  const bool cosine = index_ % 3 == 0;
  switch (cosine ? 0 : draw_.whole(0, 6)) {
    case 0:
      score_ = Cosine{};
      score_name_ = "cosine";
      break;
    case 1:
    case 2:
    case 3:
      score_ = ScaledDot{};
      score_name_ = "scaled dot";
      break;
    case 4:
      score_ = Dot{};
      score_name_ = "dot";
      break;
    case 5:
      score_ = Bilinear{};
      score_name_ = "bilinear";
      break;
    default:
      score_ = Additive{};
      score_name_ = "additive";
  }
}

void Call::draw_maps() {
  const bool norm = index_ % 3 == 1 || draw_.chance(15);
  const bool rotary = index_ % 3 == 2 || draw_.chance(40);
  if (norm) draw_norm();
  if (rotary) draw_rotary();
  if (options_.qk_norm && options_.rotary) features_.insert("norm and rotary");
  if (packed_) features_.insert("packed maps");
}

ConstView Call::gain(const char* name, Index heads, Index width) {
  if (draw_.chance(35)) {
    features_.insert("without a gain");
    return {};
  }
  note(name);
  if (!draw_.chance(50)) return parameter(Dims(width), 1);
  features_.insert("gain of each head");
  return parameter({heads, width}, 1);
}

void Call::draw_norm() {
  constexpr double kEps[] = {1e-6, 1e-5, 0, 0.25};
  note("norm");
  QkNorm norm;
  norm.q = gain("gain_q", H, Dq);
  norm.k = gain("gain_k", G, Dk);
  norm.eps = draw_.one_of(kEps);
  options_.qk_norm = norm;
}

// [rows] or [B,rows], or none.
ConstView Call::positions(const char* name, Index rows) {
  if (!draw_.chance(40)) return {};
  constexpr DType kTypes[] = {DType::kInt64, DType::kInt32};
  const bool of_entries = !packed_ && draw_.chance(50);
  note(name);
  if (of_entries) features_.insert("positions of entries");
  const DType dtype = draw_.one_of(kTypes);
  return whole_numbers(dtype, of_entries ? Dims(B, rows) : Dims(rows), -5, 2000);
}

void Call::draw_rotary() {
  const Index most = std::min(Dq, Dk) / 2;
  if (most < 1) return;
  Rotary rotary;
  rotary.pairs = draw_.chance(50) ? RotaryPairs::kHalves : RotaryPairs::kNeighbours;
  note(rotary.pairs == RotaryPairs::kHalves ? "rotary halves" : "rotary neighbours");
  features_.insert("rotary");
  const bool partial = most > 1 && draw_.chance(50);
  if (partial || Dq != Dk || Dq % 2 != 0) rotary.width = 2 * most;
  if (partial) {
    rotary.width = 2 * draw_.whole(1, most - 1);
    note("width " + std::to_string(rotary.width));
    features_.insert("partial width");
  }
  if (draw_.chance(25)) {
    rotary.frequencies =
        make(DType::kFloat64, Dims((rotary.width > 0 ? rotary.width : Dq) / 2), 0x1p-3);
    note("frequencies");
  } else if (draw_.chance(30)) {
    rotary.base = 500;
    note("base 500");
  }
  rotary.q_positions = positions("q_positions", inputs_.q.size(-2 - (packed_ ? 1 : 0)));
  rotary.k_positions = positions("k_positions", inputs_.k.size(-2 - (packed_ ? 1 : 0)));
  options_.rotary = rotary;
}

}  // namespace qkv::test::frozen
