// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_OPTIONS_H_
#define QKV_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include <qkv/mods.h>
#include <qkv/view.h>

// Letters: B batch, H query heads, G key/value heads, Tq queries, Tk keys, D query/key width (Dq,
// Dk where they differ), E value width, U units. b, h; i query, j key, c channel, u unit.
namespace qkv {

// ---- scores ---------------------------------------------------------------------------------

// s_ij = q_i . k_j / sqrt(D)   Vaswani et al. 2017, eq. 1.
struct ScaledDot {};

// s_ij = q_i . k_j             Luong et al. 2015, section 3.1, "dot".
struct Dot {};

// s_ij = (q_i^T W) . k_j       Luong et al. 2015, section 3.1, "general".
struct Bilinear {
  ConstView w{};  // [Dq,Dk] or one per head [H,Dq,Dk]
};

// s_ij = sum_u v_u tanh((Wq q_i + b)_u + (Wk k_j)_u)   Bahdanau et al. 2015, appendix A.1.2.
struct Additive {
  ConstView wq{};  // [U,Dq] or [H,U,Dq]
  ConstView wk{};  // [U,Dk] or [H,U,Dk]
  ConstView v{};   // [U] or [H,U]
  ConstView b{};   // [U] or [H,U]; may be absent

  // The form v^T tanh(W [k; q]): w [U, Dk+Dq] (or [H, U, Dk+Dq]) is cut after column `key_width`.
  // Throws Error when w is not so wide.
  QKV_API static Additive concat(const ConstView& w, Index key_width, const ConstView& v,
                                 const ConstView& b = {});
};

using Score = std::variant<ScaledDot, Dot, Bilinear, Additive>;

// ---- the diagonal ---------------------------------------------------------------------------

// Where the diagonal j = i + o of causal masks, windows and ALiBi lies: o = Tk - Tq, o = 0, or
// given, one number or one for each batch entry. Switches nothing on by itself.
struct BottomRight {};
struct TopLeft {};
struct Offset {
  Index o = 0;
};
struct Offsets {
  ConstView o{};  // [B], integers
};
using Diagonal = std::variant<BottomRight, TopLeft, Offset, Offsets>;

// ---- masks: true means "may attend"; all that are given hold together ------------------------

// j <= i + o
struct Causal {};

// i + o - left <= j <= i + o + right; -1 is unbounded.
struct Window {
  Index left = -1;
  Index right = -1;
};

// keep[b,h,i,j] != 0; bool or integers, broadcastable to the weights.
struct Keep {
  ConstView keep{};
};

// [B,Tk], non-zero where the key is padding (the opposite sense of Keep, as torch's
// key_padding_mask and seed 003 have it).
struct Padding {
  ConstView padding{};
};

// j < length: [B] or [B,Tq], integers from 0 to Tk ("valid_len").
struct KeyLengths {
  ConstView lengths{};
};

using Mask = std::variant<Causal, Window, Keep, Padding, KeyLengths, MaskMod>;

// ---- the rest -------------------------------------------------------------------------------

// Drops weights with probability p in [0,1) and divides the kept ones by 1-p. The mask is
// Philox4x32-10 (Salmon et al. 2011) of (seed; j, i, h, b): the same for any number of threads.
struct Dropout {
  double p = 0;
  std::optional<std::uint64_t> seed{};  // needed when p > 0
};

// Members stand in the order in which they act.
struct Options {
  Score score{};                  // ScaledDot unless given
  std::optional<double> scale{};  // unless given: 1/sqrt(D) for ScaledDot, else 1
  double softcap = 0;             // s <- softcap * tanh(s / softcap); 0 = off
  std::vector<ScoreMod> mods{};   // applied one after the other
  ConstView bias{};               // added; broadcastable to the weights; -inf masks
  Diagonal diagonal{};            // of ALiBi, Causal and Window
  ConstView alibi{};              // slopes [H] or [B,H]: adds -slope_h * |i + o - j|
  std::vector<Mask> masks{};      // all hold together
  ConstView sinks{};              // [H]: one more logit per head, with value 0
  Dropout dropout{};              // on the weights, after the softmax
};

}  // namespace qkv

#endif  // QKV_OPTIONS_H_
