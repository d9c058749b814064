// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "tests/attention/random_call.h"
#include "tests/support/compare.h"

// Functions of RandomCall that draw the options.
namespace qkv::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace

// Draws a shape that broadcasts to the weights: axes of size 1, leading axes omitted.
Dims RandomCall::broadcastable() {
  std::vector<Index> axes(weights_shape.begin(), weights_shape.end());
  for (Index& size : axes) {
    if (chance(0.3)) size = 1;
  }
  const auto from =
      static_cast<std::size_t>(chance(0.5) ? 0 : whole(0, static_cast<Index>(axes.size()) - 1));
  Dims shape;
  for (std::size_t n = from; n < axes.size(); ++n) shape.push_back(axes[n]);
  return shape;
}

void RandomCall::draw_options() {
  draw_score();
  if (chance(0.3)) {
    constexpr double kScales[] = {0.3, 0.05, 1, -0.5, 0};
    options_.scale = one_of(kScales);
    note("scale");
  }
  if (chance(0.2)) {
    constexpr double kCaps[] = {1, 5, 30};
    options_.softcap = one_of(kCaps);
    note("softcap");
  }
  if (chance(0.2)) {
    note("mods");
    switch (whole(0, 2)) {
      case 0:
        options_.mods = {score_mod([](auto s, At at) { return s * 0.3F + 0.1F * (at.j % 7); })};
        break;
      case 1:
        options_.mods = {score_mod([](auto s, At at) { return s - 0.05F * abs(at.i - at.j); }),
                         score_mod([](auto s, At at) { return s + 0.1F * (at.h + at.b); })};
        break;
      default:
        options_.mods = {score_mod([](auto s, At at) {
          return select((at.i + at.j) % 3 != 0, s, decltype(s)(-INFINITY));
        })};
        note("mods -inf");
    }
  }
  if (!packed_ && chance(0.25)) draw_bias();
  draw_diagonal();
  const DType parameters = chance(0.2) ? sums() : dtype_;
  if (chance(0.2)) {
    const bool per_entry = chance(0.4);
    Guarded& slopes = make(parameters, per_entry ? Dims(B, H) : Dims(H)).fill_normal(random_, 0.1);
    options_.alibi = slopes.view();
    note(per_entry ? "alibi per entry" : "alibi");
    if (chance(0.1)) plant(slopes, "alibi", 0);
  }
  draw_masks();
  if (chance(0.25)) {
    Guarded& sinks = make(parameters, Dims(H)).fill_normal(random_, 2);
    note("sinks");
    if (H > 0 && chance(0.3)) {
      const double kOdd[] = {-kInf, -kInf, kInf, std::nan("")};
      const double value = one_of(kOdd);  // drawn first: compilers choose the order of arguments
      store_at(sinks, whole(0, H - 1), value);
      note("odd sink");
    }
    options_.sinks = sinks.view();
  }
  if (chance(0.2)) {
    constexpr double kDrop[] = {0.1, 0.5, 0.9};
    options_.dropout = {one_of(kDrop), random_()};
    note("dropout");
  }
}

void RandomCall::draw_bias() {
  const Dims shape = broadcastable();
  Guarded& bias = make(chance(0.15) ? sums() : dtype_, shape);
  bias.fill_normal(random_);
  note("bias");
  options_.bias = bias.view();
  const Index elements = element_count(shape);
  if (elements == 0) return;
  if (chance(0.4)) {
    const Index masked = elements / whole(2, 10) + 1;
    for (Index n = 0; n < masked; ++n) store_at(bias, whole(0, elements - 1), -kInf);
    note("bias -inf");
  }
  if (chance(0.1)) plant(bias, "bias", 0);
}

void RandomCall::draw_diagonal() {
  constexpr Index kFar[] = {
      -1100, -513, -64, -5, -1, 1, 7, 63, 64, 512, 700, Index{1} << 40, -(Index{1} << 40)};
  switch (whole(0, 5)) {
    case 0:
      options_.diagonal = TopLeft{};
      note("top left");
      break;
    case 1:
      options_.diagonal = Offset{one_of(kFar)};
      note("offset");
      break;
    case 2: {
      std::vector<double> each;
      for (Index b = 0; b < B; ++b) {
        each.push_back(static_cast<double>(chance(0.3) ? one_of(kFar) : whole(-Tq - 3, Tk + 3)));
      }
      options_.diagonal = Offsets{make(DType::kInt64, Dims(B)).fill(each).view()};
      note("offsets");
      break;
    }
    default:
      note("bottom right");
  }
}

void RandomCall::draw_masks() {
  if (chance(0.3)) {
    options_.masks.emplace_back(Causal{});
    note("causal");
  }
  if (chance(0.25)) {
    constexpr Index kReach[] = {-1, 0, 1, 5, 63, 64, 100, 600};
    options_.masks.emplace_back(Window{one_of(kReach), one_of(kReach)});
    note("window");
  }
  if (!packed_ && chance(0.25)) draw_keep();
  if (!packed_ && chance(0.2)) {
    Guarded& padding = make(chance(0.5) ? DType::kBool : DType::kUInt8, Dims(B, Tk));
    std::vector<double> values;
    const Index tail = whole(0, Tk);
    for (Index n = 0; n < B * Tk; ++n) values.push_back(n % Tk >= tail || chance(0.1) ? 1 : 0);
    options_.masks.emplace_back(Padding{padding.fill(values).view()});
    note("padding");
  }
  if (chance(0.3)) draw_lengths();
  if (chance(0.15)) {
    if (chance(0.5)) {
      options_.masks.emplace_back(mask_mod([](At at) { return (at.i + at.j) % 5 != 0; }));
    } else {
      options_.masks.emplace_back(mask_mod([](At at) { return at.i / 70 == at.j / 70; }));
    }
    note("mask_mod");
  }
}

void RandomCall::draw_keep() {
  constexpr DType kTypes[] = {DType::kBool, DType::kUInt8, DType::kInt32, DType::kInt64,
                              DType::kBool};
  const Dims shape = broadcastable();
  Guarded& keep = make(one_of(kTypes), shape);
  const bool is_bool = keep.view().dtype() == DType::kBool;
  const double share = chance(0.3) ? 0.05 : 0.7;
  std::vector<double> values;
  for (Index n = 0; n < element_count(shape); ++n) {
    values.push_back(chance(share) ? (is_bool ? 1 : static_cast<double>(whole(1, 100))) : 0);
  }
  options_.masks.emplace_back(Keep{keep.fill(values).view()});
  if (is_bool && chance(0.3)) {  // in foreign memory a true bool may be any byte but 0
    const View view = keep.view();
    auto* bytes = static_cast<unsigned char*>(view.data());
    for (Index n = 0; n < view.element_count(); ++n) {
      unsigned char& byte = bytes[offset_of_element(view, n)];
      if (byte != 0) byte = 0x80;
    }
    note("keep bytes");
  }
  note("keep");
}

void RandomCall::draw_lengths() {
  const bool per_query = !packed_ && chance(0.4);
  constexpr DType kTypes[] = {DType::kInt64, DType::kInt32, DType::kInt16};
  Guarded& lengths = make_list(one_of(kTypes), per_query ? Dims(B, Tq) : Dims(B));
  const bool half = chance(0.5);  // if true, special values in the second half stay masked
  std::vector<double> values;
  for (Index n = 0; n < B * (per_query ? Tq : 1); ++n) {
    Index most = Tk;
    if (packed_) {
      const auto cu = values_of(inputs_.cu_seqlens_k);
      const auto b = static_cast<std::size_t>(n);
      most = static_cast<Index>(cu[b + 1] - cu[b]);
    }
    values.push_back(static_cast<double>(chance(0.1) ? 0 : whole(0, half ? most / 2 : most)));
  }
  options_.masks.emplace_back(KeyLengths{lengths.fill(values).view()});
  note(per_query ? "lengths per query" : "lengths");
}

}  // namespace qkv::test
