// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_OPTIONS_H_
#define QKV_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include <qkv/alternatives.h>
#include <qkv/mods.h>
#include <qkv/scores.h>
#include <qkv/view.h>

// The letters of shapes and formulas: B batch entries, H query heads, G key/value heads, Tq
// queries, Tk keys, D query/key width (Dq, Dk where they differ), E value width, U units. The
// indices are b (batch entry), h (head), i (query), j (key), c (channel) and u (unit).
namespace qkv {

// ---- the diagonal ---------------------------------------------------------------------------

// The diagonal j = i + o that causal masks, windows, ALiBi and rotary positions share: o = Tk - Tq
// (BottomRight), o = 0 (TopLeft), or a given o, one number or one per batch entry. It masks nothing
// by itself.
struct BottomRight {
  static constexpr std::string_view kName = "bottom_right";
};
struct TopLeft {
  static constexpr std::string_view kName = "top_left";
};
struct Offset {
  Index o = 0;

  static constexpr std::string_view kName = "offset";
};
struct Offsets {
  ConstView o{};  // [B], integers

  static constexpr std::string_view kName = "offsets";
};
using Diagonal = std::variant<BottomRight, TopLeft, Offset, Offsets>;

// ---- a part of a longer sequence ------------------------------------------------------------

// The place of a call's arrays in longer sequences: q has the queries first_query ..
// first_query+Tq-1 of `queries`, and k and v have the keys first_key .. first_key+Tk-1 of `keys`.
// Everything that depends on positions counts in the whole sequences: the diagonal and its corners,
// key lengths, rotary positions, dropout, user functions. Arrays in options have the sizes of the
// call. The softmax is over the keys of the call: merge() joins the results of several calls, of
// which exactly one is given the sinks. With dropout, first_key must be a multiple of 4.
struct Shard {
  Index first_query = 0;
  Index queries = 0;
  Index first_key = 0;
  Index keys = 0;
  // Head h of q is head first_head + h * head_step for dropout and user functions.
  Index first_head = 0;
  Index head_step = 1;

  friend bool operator==(const Shard&, const Shard&) = default;
};

// A shard's first_key must be a multiple of this number where the results of steps or ranks are to
// be bit-identical to those of one call: blocks of the sums over keys begin at its multiples.
inline constexpr Index kShardKeys = 512;

// ---- masks: a query may attend to a key if all given masks allow it -------------------------

// Allows j <= i + o.
struct Causal {
  static constexpr std::string_view kName = "causal";
};

// Allows i + o - left <= j <= i + o + right; -1 is unbounded.
struct Window {
  Index left = -1;
  Index right = -1;

  static constexpr std::string_view kName = "window";
};

// Allows the pairs with keep[b,h,i,j] != 0. `keep` is bool or integers, broadcastable to the
// weights.
struct Keep {
  ConstView keep{};

  static constexpr std::string_view kName = "keep";
};

// Allows the keys at which `padding` [B,Tk] is 0: non-zero marks padding, as in torch's
// key_padding_mask and document 003, which is the opposite sense of Keep.
struct Padding {
  ConstView padding{};

  static constexpr std::string_view kName = "padding";
};

// Allows j < length. `lengths` is [B] or [B,Tq], integers from 0 to Tk ("valid_len").
struct KeyLengths {
  ConstView lengths{};

  static constexpr std::string_view kName = "key_lengths";
};

using Mask = std::variant<Causal, Window, Keep, Padding, KeyLengths, MaskMod>;

// ---- dropout, and all options ---------------------------------------------------------------

// Drops each weight with probability p in [0,1) and divides the kept ones by 1-p. The draw is
// Philox4x32-10 (Salmon et al. 2011) of (seed; j, i, h, b), whatever the number of threads.
struct Dropout {
  double p = 0;
  std::optional<std::uint64_t> seed{};  // required if p > 0
};

// The options of a call. The members are in the order in which they are applied.
struct Options {
  std::optional<QkNorm> qk_norm{};  // on each row of q and k
  std::optional<Rotary> rotary{};   // after qk_norm
  Score score{};                    // ScaledDot by default
  std::optional<double> scale{};    // default: 1/sqrt(D) for ScaledDot, else 1
  double softcap = 0;               // s <- softcap * tanh(s / softcap); 0 = off
  std::vector<ScoreMod> mods{};     // applied in order
  ConstView bias{};                 // added; broadcastable to the weights; -inf masks
  Diagonal diagonal{};              // of ALiBi, Causal, Window and Rotary
  ConstView alibi{};                // slopes [H] or [B,H]: adds -slope_h * |i + o - j|
  std::vector<Mask> masks{};        // a pair must be allowed by all
  ConstView sinks{};                // [H]: one more logit per head, with value 0
  Dropout dropout{};                // on the weights, after the softmax
};

}  // namespace qkv

#endif  // QKV_OPTIONS_H_
