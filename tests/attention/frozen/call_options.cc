// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <variant>

#include "tests/attention/frozen/call.h"

// The options of a frozen call.
namespace qkv::test::frozen {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The largest power of two whose square is at most 1/n.
double inverse_root(Index n) {
  double size = 1;
  while (size * size * static_cast<double>(n) > 1) size /= 2;
  return size;
}

}  // namespace

void Call::draw_options() {
  if (std::holds_alternative<Bilinear>(score_)) {
    const Dims w = with_heads({Dq, Dk});
    score_ = Bilinear{parameter(w, inverse_root(Dq * Dk))};
  } else if (std::holds_alternative<Additive>(score_)) {
    Additive a;
    const Dims wq = with_heads({U, Dq});
    a.wq = parameter(wq, inverse_root(Dq));
    const Dims wk = with_heads({U, Dk});
    a.wk = parameter(wk, inverse_root(Dk));
    const Dims v = with_heads({U});
    a.v = parameter(v, 2 * inverse_root(U));
    note("U " + std::to_string(U));
    if (draw_.chance(60)) {
      const Dims b = with_heads({U});
      a.b = parameter(b, 0.5);
      note("b");
    } else {
      features_.insert("without b");
    }
    score_ = a;
  }
  options_.score = score_;
  if (draw_.chance(30)) {
    constexpr double kScales[] = {0.25, 1, -0.5, 0.0625, 2};
    options_.scale = draw_.one_of(kScales);
    note("scale");
  }
  if (draw_.chance(30)) {
    constexpr double kCaps[] = {2, 8, 30};
    options_.softcap = draw_.one_of(kCaps);
    note("softcap");
  }
  if (draw_.chance(25)) draw_mods();
  if (!packed_ && draw_.chance(35)) draw_bias();
  draw_diagonal();
  if (draw_.chance(30)) {
    const bool of_entries = draw_.chance(50);
    const View slopes = parameter(of_entries ? Dims(B, H) : Dims(H), 0x1p-5);
    options_.alibi = slopes;
    note(of_entries ? "alibi [B,H]" : "alibi [H]");
    if (draw_.chance(options_.bias.given() ? 20 : 5)) plant("slope", slopes);
  }
  draw_masks();
  if (draw_.chance(30)) {
    const View sinks = parameter(Dims(H), 2);
    note("sinks");
    if (draw_.chance(20)) plant("sink", sinks);
    options_.sinks = sinks;
  }
  if (draw_.chance(30)) {
    constexpr double kDrop[] = {0.1, 0.5, 0.25};
    const double p = draw_.one_of(kDrop);
    options_.dropout = {p, draw_.bits()};
    note("dropout");
  }
  if (!draw_.chance(8)) return;
  const Index which = draw_.whole(0, 2);
  plant(which == 0 ? "q" : which == 1 ? "k" : "v", which == 0 ? q_ : which == 1 ? k_ : v_);
}

// Functions of additions and products only, except for the soft-cap: libm is not involved.
void Call::draw_mods() {
  switch (draw_.whole(0, 3)) {
    case 0:
      options_.mods = {score_mod([](auto s, At at) { return s * 0.5F + 0.125F * (at.j % 7); })};
      note("score_mod");
      break;
    case 1:
      options_.mods = {score_mod([](auto s, At at) { return s - 0.0625F * abs(at.i - at.j); }),
                       score_mod([](auto s, At at) { return s + 0.125F * (at.h + at.b); })};
      note("score_mods");
      break;
    case 2:
      options_.mods = {score_mod([](auto s, At at) {
        return select((at.i + at.j) % 3 != 0, s,
                      decltype(s)(-std::numeric_limits<float>::infinity()));
      })};
      note("score_mod -inf");
      break;
    default:
      options_.mods = {
          score_mod([](auto s, At at) { return soft_cap(s * s * 0.25F - s, 4.0F) + (at.j & 1); })};
      note("score_mod squares");
  }
}

// A shape that broadcasts to the weights.
Dims Call::broadcastable() {
  const Index from = draw_.whole(0, matrix_.rank() - 1);
  Dims shape;
  for (int axis = static_cast<int>(from); axis < matrix_.rank(); ++axis) {
    shape.push_back(draw_.chance(25) ? 1 : matrix_[axis]);
  }
  return shape;
}

void Call::draw_bias() {
  const Dims shape = broadcastable();
  const View bias = parameter(shape, 1);
  options_.bias = bias;
  note(shape == matrix_ ? "bias" : "bias" + to_string(shape));
  if (!(shape == matrix_)) features_.insert("bias broadcast");
  if (!draw_.chance(40)) return;
  const int axis = static_cast<int>(draw_.whole(0, bias.rank() - 1));
  const Index size = bias.size(axis);
  if (size < 5) return;
  fill(slice(bias, axis, size / 3, size / 3 + size / 5), -kInf);
  note("bias -inf");
}

// Such that most rows see something.
void Call::draw_diagonal() {
  const Index low = -std::min(Tq, Tk) / 4;
  switch (draw_.whole(Tq > Tk ? 1 : 0, 5)) {
    case 1:
    case 2:
      options_.diagonal = TopLeft{};
      note("top left");
      break;
    case 3:
      options_.diagonal = Offset{draw_.whole(low, Tk / 2 + 1)};
      note("offset");
      break;
    case 4:
      options_.diagonal = Offsets{whole_numbers(DType::kInt64, Dims(B), low, Tk)};
      note("offsets");
      break;
    default:
      features_.insert("bottom right");
  }
}

// At most two, so that some pairs remain.
void Call::draw_masks() {
  const auto one_more = [&](Index percent) {
    return draw_.chance(percent) && options_.masks.size() < 2;
  };
  if (one_more(30)) {
    options_.masks.emplace_back(Causal{});
    note("causal");
  }
  if (one_more(25)) {
    constexpr Index kReach[] = {-1, 0, 5, 63, 64, 100, 400};
    const Index left = draw_.one_of(kReach);
    const Index right = draw_.one_of(kReach);
    options_.masks.emplace_back(Window{left, right});
    note("window");
  }
  if (!packed_ && one_more(30)) draw_keep();
  if (!packed_ && one_more(25)) {
    Tensor padding(draw_.chance(50) ? DType::kBool : DType::kUInt8, {B, Tk});
    for (Index b = 0; b < B; ++b) {
      for (Index j = draw_.whole((Tk + 1) / 2, Tk); j < Tk; ++j) {
        core::store(padding.dtype(), padding.view().data(), b * Tk + j, 1.0);
      }
    }
    options_.masks.emplace_back(Padding{own(std::move(padding))});
    note("padding");
  }
  if (one_more(40)) draw_lengths();
  if (one_more(40)) draw_mask_mod();
}

// Keeps three out of four.
void Call::draw_keep() {
  constexpr DType kTypes[] = {DType::kBool, DType::kUInt8, DType::kInt32};
  const DType dtype = draw_.one_of(kTypes);
  const Dims shape = broadcastable();
  if (element_count(shape) < 8) return;
  Tensor keep = contiguous(whole_numbers(DType::kInt32, shape, 0, 3));
  if (dtype != DType::kInt32) {
    Tensor other(dtype, shape);
    copy(keep, other);
    keep = std::move(other);
  }
  const Order order = draw_order(draw_);
  options_.masks.emplace_back(Keep{lay_out(std::move(keep), order)});
  note("keep" + to_string(shape));
  features_.insert("keep");
}

void Call::draw_mask_mod() {
  const Index kind = draw_.whole(0, 2);
  const bool of_all = kind != 1;  // the same for all batch entries and heads
  const MaskMod mask =
      kind == 0   ? mask_mod([](At at) { return (at.i + at.j) % 5 != 0; })
      : kind == 1 ? mask_mod([](At at) { return (at.b + at.h + at.i / 16 + at.j / 32) % 3 != 0; })
                  : mask_mod([](At at) { return at.i / 70 == at.j / 70 || at.j < 3; });
  if (!packed_ && draw_.chance(50)) {
    options_.masks.emplace_back(precompute(mask, Tq, Tk, of_all ? 1 : B, of_all ? 1 : H));
    note("mask_mod precomputed");
  } else {
    options_.masks.emplace_back(mask);
    note("mask_mod");
  }
}

void Call::draw_lengths() {
  if (packed_) {
    Tensor lengths(DType::kInt32, Dims(B));
    const std::span<std::int32_t> n = lengths.values<std::int32_t>();
    n[0] = static_cast<std::int32_t>(draw_.whole(Tk / 2, Tk));
    n[2] = 1;
    options_.masks.emplace_back(KeyLengths{own(std::move(lengths))});
    note("lengths");
    return;
  }
  const bool of_queries = draw_.chance(40);
  const bool behind = draw_.chance(60) && Tk > 1;
  const Index most = behind ? Tk - Tk / 4 - 1 : Tk;
  options_.masks.emplace_back(KeyLengths{
      whole_numbers(DType::kInt64, of_queries ? Dims(B, Tq) : Dims(B), (most + 1) / 2, most)});
  note(of_queries ? "lengths [B,Tq]" : "lengths");
  if (behind) poison_behind(most);
}

// NaN and infinity in keys and values that no query sees.
void Call::poison_behind(Index key) {
  fill(slice(k_, -2, key, Tk), kNaN);
  fill(slice(v_, -2, key, Tk), draw_.chance(50) ? kNaN : kInf);
  note("NaN behind");
}

// A special value that some query sees. Not among row maps, whose results it would hide.
void Call::plant(const char* name, const View& x) {
  if (family_ == Family::kMaps) return;
  constexpr double kOdd[] = {kNaN, kInf, -kInf};
  core::store(x.dtype(), x.data(), 0, draw_.one_of(kOdd));
  note(std::string("odd ") + name);
}

}  // namespace qkv::test::frozen
