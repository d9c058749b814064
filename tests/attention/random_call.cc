// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/random_call.h"

#include <cmath>
#include <limits>
#include <sstream>

#include "core/storage.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

// Lengths on both sides of the edges of kernels: rows of a tile (6), the most rows that count as
// few (48), a panel of keys (64), a gradient block (128), a chunk (512); and some others.
constexpr Index kLengths[] = {0,   1,   2,   5,   6,   7,   47,  48,  49,  63,   64,  65,
                              127, 128, 129, 130, 511, 512, 513, 520, 700, 1025, 1100};
constexpr Index kWidths[] = {1,  2,  3,  7,  8,  15, 16,  17,  31,  32, 33,
                             40, 63, 64, 65, 80, 96, 100, 128, 130, 200};
constexpr Index kMostPairs = 300'000;     // of one head
constexpr Index kMostElements = 400'000;  // of one output
constexpr Index kMostSliced = 20'000;     // elements; kSliced takes 16 times the memory on 4 axes
// Units around the chunks of 32 units, and around a register.
constexpr Index kUnits[] = {1, 3, 16, 31, 32, 33, 64, 65, 100};
// Numbers of keys of decoding calls, at edges of chunks (256 or 512 keys) and of panels (64).
constexpr Index kDecodeLengths[] = {511, 512, 513, 575, 768, 769, 1024, 1025, 1536};
constexpr Index kDecodeWidths[] = {40, 64, 80, 128, 200};
constexpr Index kMostStored = 400'000;  // elements of k and v of a decoding call
constexpr Index kLimits[] = {20'000, 60'000, 200'000, 600'000, 2'000'000};  // of multiply-adds
constexpr Index kTanh = 8;  // multiply-adds that take as long as one tanh
constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace

Index RandomCall::offset_of_element(const View& x, Index flat) {
  Index offset = 0;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    offset += flat % x.size(axis) * x.stride(axis);
    flat /= x.size(axis);
  }
  return offset;
}

void RandomCall::store_at(const View& x, Index flat, double value) {
  core::store(x.dtype(), x.data(), offset_of_element(x, flat), value);
}

RandomCall::RandomCall(std::uint64_t seed, std::uint64_t index, Draw draw)
    : random_(seed * 0x9E3779B97F4A7C15 + index), draw_(draw) {
  draw_type();
  draw_kind();
  packed_ = chance(0.15);
  decodes() ? draw_decode_sizes() : draw_sizes();
  packed_ ? draw_packed_inputs() : draw_inputs();
  if (decodes() && !packed_) note("decode rows " + std::to_string(H / G * Tq));
  draw_options();
  draw_outputs();
}

void RandomCall::draw_type() {
  constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat32, DType::kFloat32, DType::kFloat32,
                              DType::kFloat32, DType::kFloat64, DType::kFloat64, DType::kFloat64,
                              DType::kFloat64, DType::kFloat16, DType::kBFloat16};
  constexpr ScoreKind kScores[] = {ScoreKind::kDot, ScoreKind::kBilinear, ScoreKind::kAdditive};
  dtype_ = decodes() ? kReals[random_() % kReals.size()] : one_of(kTypes);
  score_ = one_of(kScores);
  if (score_ == ScoreKind::kDot && chance(0.3)) score_ = ScoreKind::kCosine;
  if (draw_ == Draw::kBFloat16) dtype_ = DType::kBFloat16;
  if (draw_ == Draw::kBFloat16 || decodes()) score_ = ScoreKind::kDot;
  note(std::string(name_of(dtype_)));
}

std::string RandomCall::describe() const {
  std::ostringstream text;
  text << qkv::describe(inputs_.q) << " " << qkv::describe(inputs_.k) << " "
       << qkv::describe(inputs_.v) << ":";
  for (const std::string& feature : features_) text << " " << feature;
  return text.str();
}

void RandomCall::draw_sizes() {
  const Index limit = one_of(kLimits);
  constexpr Index kBatches[] = {1, 1, 1, 2, 2, 3};
  constexpr Index kRatios[] = {1, 1, 1, 2, 3, 4};
  B = chance(0.02) ? 0 : one_of(kBatches);
  G = one_of(kBatches);
  H = chance(0.02) ? 0 : G * one_of(kRatios);
  Index most_pairs = kMostPairs;
  if (score_ == ScoreKind::kAdditive) {
    U = one_of(kUnits);
    note("U " + std::to_string(U));
    most_pairs = std::max<Index>(1000, limit / (kTanh * U));
  }
  do {
    Tq = one_of(kLengths);
    Tk = one_of(kLengths);
  } while (Tq * Tk > most_pairs);
  for (int attempt = 0; attempt < 20; ++attempt) {
    const bool last = attempt == 19;
    Dq = last ? 1 + whole(0, 4) : one_of(kWidths);
    Dk = last ? 1 + whole(0, 4) : one_of(kWidths);
    if (has_one_width(score_) || has("numbers cancelling")) Dk = Dq;
    E = last ? 1 + whole(0, 4) : one_of(kWidths);
    if (!too_long(limit)) break;
  }
  while (too_long(limit) && (B > 1 || H > G || G > 1)) {
    if (B > 1) {
      --B;
    } else {
      G = H = std::max<Index>(1, G - 1);
    }
  }
}

void RandomCall::draw_decode_sizes() {
  constexpr Index kBatches[] = {1, 1, 2, 3};
  const Index rows = whole(1, 16);
  Index group = chance(0.5) ? rows : whole(1, rows);
  while (rows % group != 0) --group;
  Tq = rows / group;
  Tk = chance(0.35) ? one_of(kDecodeLengths) : whole(300, 3000);
  Dq = Dk = one_of(kDecodeWidths);
  E = chance(0.7) ? Dk : one_of(kDecodeWidths);
  B = one_of(kBatches);
  G = one_of(kBatches);
  while (B * G * Tk * (Dk + E) > kMostStored && B * G > 1) {
    --(B > 1 ? B : G);
  }
  H = G * group;
}

// Whether the call takes more multiply-adds than `limit`.
bool RandomCall::too_long(Index limit) const {
  const Index pairs = std::max<Index>(1, Tq * Tk);
  Index work = pairs * (Dk + E);
  if (score_ == ScoreKind::kBilinear) work += Tq * Dq * Dk;
  if (score_ == ScoreKind::kAdditive) {
    work = pairs * (kTanh * U + E) + (Tq * Dq + Tk * Dk) * U;
  }
  return std::max<Index>(1, B * H) * work > limit;
}

// Draws a memory layout. Only the first axis of an input may repeat (kBroadcast).
Layout RandomCall::layout(Index elements, bool input) {
  if (chance(0.3)) return Layout::kContiguous;
  constexpr Layout kAny[] = {Layout::kPermuted, Layout::kSliced, Layout::kNegative, Layout::kOffset,
                             Layout::kBroadcast};
  Layout drawn = one_of(kAny);
  if (drawn == Layout::kBroadcast && !input) drawn = Layout::kOffset;
  if (drawn == Layout::kSliced && elements > kMostSliced) drawn = Layout::kOffset;
  note("layout " + std::string(name_of(drawn)));
  return drawn;
}

Guarded& RandomCall::make(DType dtype, const Dims& shape) {
  arrays_.emplace_back(dtype, shape, layout(element_count(shape), true));
  return arrays_.back();
}

// Makes an array in whose layout no axis repeats, so that every element has its own value.
Guarded& RandomCall::make_list(DType dtype, const Dims& shape) {
  arrays_.emplace_back(dtype, shape, layout(element_count(shape), false));
  return arrays_.back();
}

// Makes an array [..,H,T,C], sometimes stored as [..,T,H,C].
ConstView RandomCall::make_heads(DType dtype, const Dims& shape, const std::string& name) {
  const int rank = shape.rank();
  if (rank < 3 || packed_ || !chance(0.3)) {
    const View view = make(dtype, shape).view();
    writable_.push_back(view);
    return view;
  }
  note("heads inside (" + name + ")");
  Dims stored = shape;
  std::swap(stored[rank - 2], stored[rank - 3]);
  const View view = transpose(make(dtype, stored).view(), -2, -3);
  writable_.push_back(view);
  return view;
}

void RandomCall::draw_inputs() {
  const Index kind = whole(0, 6);
  Dims q, k, v;
  if (kind == 0) {
    B = H = G = 1;
    heads_ = false;
    note("rank 2");
  } else if (kind == 1) {
    H = G = 1;
    heads_ = false;
    batch_ = Dims(B);
    q = k = v = Dims(B);
    note("rank 3");
  } else if (kind == 2 && H > 0 && B > 0) {
    batch_ = Dims(B);
    note("mixed ranks");
    if (chance(0.5)) {
      q = Dims(H);
      k = v = Dims(B, G);
    } else {
      G = 1;
      q = Dims(B, H);
      v = Dims(B, G);
    }
  } else if (kind == 3) {
    batch_ = Dims(B, 2);
    q = {B, 2, H};
    k = {chance(0.5) ? B : 1, 2, G};
    v = {B, chance(0.5) ? 2 : 1, G};
    B *= 2;
    note("rank 5");
  } else {
    batch_ = Dims(B);
    q = Dims(B, H);
    k = v = Dims(B, G);
    note("rank 4");
  }
  const auto with = [](Dims shape, Index rows, Index width) {
    shape.push_back(rows);
    shape.push_back(width);
    return shape;
  };
  // float32 queries may be combined with narrower keys.
  DType keys = dtype_;
  if (dtype_ == DType::kFloat32 && chance(0.05)) {
    keys = DType::kBFloat16;
    note("narrow keys");
  }
  inputs_.q = make_heads(dtype_, with(q, Tq, Dq), "q");
  inputs_.k = make_heads(keys, with(k, Tk, Dk), "k");
  if (!chance(0.04)) inputs_.v = make_heads(keys, with(v, Tk, E), "v");
  note(inputs_.v.given() ? "v" : "no v");
  if (H > G) note("grouped heads");
  draw_numbers();
  weights_shape = results(Tq, Tk);
}

void RandomCall::draw_packed_inputs() {
  note("packed");
  B = whole(1, 5);
  const DType counts = chance(0.5) ? DType::kInt32 : DType::kInt64;
  std::vector<double> cu_q{0};
  std::vector<double> cu_k{0};
  for (Index b = 0; b < B; ++b) {
    const bool none = chance(0.2);
    if (none) note("empty sequence");
    const Index queries = none && chance(0.5) ? 0 : whole(0, std::max<Index>(1, Tq / B) * 2);
    const Index keys = none ? 0 : std::min(one_of(kLengths), std::max<Index>(1, 2 * Tk / B));
    cu_q.push_back(cu_q.back() + static_cast<double>(queries));
    cu_k.push_back(cu_k.back() + static_cast<double>(keys));
  }
  Tq = static_cast<Index>(cu_q.back());  // from here on the total number of rows
  Tk = static_cast<Index>(cu_k.back());
  inputs_.q = make_heads(dtype_, {Tq, H, Dq}, "q");
  inputs_.k = make_heads(dtype_, {Tk, G, Dk}, "k");
  inputs_.v = make_heads(dtype_, {Tk, G, E}, "v");
  draw_numbers();
  inputs_.cu_seqlens_q = make_list(counts, Dims(B + 1)).fill(cu_q).view();
  inputs_.cu_seqlens_k = make_list(counts, Dims(B + 1)).fill(cu_k).view();
}

// Draws the numbers of q, k and v, the first arrays that are made.
void RandomCall::draw_numbers() {
  const Numbers& kind = numbers_;
  const double deviations[] = {kind.q, kind.k, kind.v};
  for (std::size_t n = 0; n < arrays_.size(); ++n) {
    if (kind.q == 0 && n < 2) {
      arrays_[n].fill_whole(random_, -1, 1);
    } else {
      arrays_[n].fill_normal(random_, deviations[n]);
    }
  }
  if (has("numbers one key") && Tk > 0 && writable_[1].element_count() > 0) {
    const View k = writable_[1];
    const int rows = packed_ ? 0 : k.rank() - 2;
    const Index j = whole(0, k.size(rows) - 1);
    const View row = slice(k, rows, j, j + 1);
    for (Index n = 0; n < row.element_count(); ++n) store_at(row, n, whole(0, 1) * 16.0 - 8);
  }
  if (has("numbers cancelling")) draw_near_rows();
  if (!chance(0.25)) return;
  const char* kNames[] = {"q", "k", "v"};
  for (std::size_t n = 0; n < writable_.size(); ++n) {
    if (chance(0.5)) plant(writable_[n], kNames[n], n == 0 ? 0 : whole(0, 1) * Tk / 2);
  }
}

// Writes NaN or an infinity to one or two elements, in rows from `first_row` on.
void RandomCall::plant(const View& x, const std::string& name, Index first_row) {
  const int axis = packed_ || x.rank() < 2 ? 0 : x.rank() - 2;
  if (x.element_count() == 0 || first_row >= x.size(axis)) return;
  const View rows = slice(x, axis, first_row, x.size(axis));
  const double kOdd[] = {std::nan(""), kInf, -kInf};
  const double value = one_of(kOdd);
  for (Index n = whole(1, 2); n > 0; --n) {
    store_at(rows, whole(0, rows.element_count() - 1), value);
  }
  note((std::isnan(value) ? "NaN in " : "infinity in ") + name);
}

Dims RandomCall::results(Index last, Index width) const {
  Dims shape;
  if (packed_) {
    shape = Dims(H);
  } else {
    shape = batch_;
    if (heads_) shape.push_back(H);
  }
  shape.push_back(last);
  if (width >= 0) shape.push_back(width);
  return shape;
}

void RandomCall::draw_outputs() {
  const DType wide = sums();
  const auto want = [&](const char* name, DType dtype, const Dims& shape) {
    wanted_[name] = {dtype, shape, layout(element_count(shape), false), ""};
    note(std::string("-> ") + name);
  };
  if (inputs_.v.given() && chance(0.85)) {
    want("out", dtype_, packed_ ? Dims(Tq, H, E) : results(Tq, E));
  }
  if (wanted_.empty() || chance(0.5)) want("lse", wide, results(Tq, -1));
  if (decodes()) return;
  if (chance(0.4)) want("row_max", wide, results(Tq, -1));
  if (chance(0.3)) want("column_sums", wide, results(Tk, -1));
  if (chance(0.3)) {
    const Index kCounts[] = {1, 2, 5, 8, 16, 17, Tk, Tk + 3};
    top_ = std::max<Index>(1, one_of(kCounts));
    if (B * H * Tq * top_ > kMostElements) top_ = 3;
    want("top_weights", wide, results(Tq, top_));
    want("top_keys", chance(0.5) ? DType::kInt32 : DType::kInt64, results(Tq, top_));
    note(top_ > Tk ? "top more than keys" : "top");
  }
  for (const char* name :
       {"weights", "dropped_weights", "raw_scores", "capped_scores", "masked_scores"}) {
    if (!packed_ && chance(0.2)) want_matrix(name);
  }
  if (chance(0.3)) want("entropy", wide, results(Tq, -1));
  if (inputs_.v.given() && chance(0.2)) want("value_sums", wide, results(Tk, -1));
  if (chance(0.25)) {
    const Index kCells[] = {1, 2, 3, 7, 16, 40, Tq + 3, Tk + 3};
    Index m = one_of(kCells);
    const Index n = one_of(kCells);
    if (B * H * m * n > kMostElements) m = 2;
    note(m > Tq ? "cells without queries" : "cells");
    want("pooled", wide, packed_ ? Dims{B, H, m, n} : results(m, n));
  }
  const bool sums = wanted_.count("column_sums") + wanted_.count("value_sums") > 0;
  if (!sums || packed_ || Tq == 0 || !chance(0.4)) return;
  const Index kCounts[] = {0, 1, 6, 127, 128, 200};
  Guarded& rows = make(DType::kInt32, Dims(one_of(kCounts))).fill_whole(random_, 0, Tq - 1);
  row_lists_["column_sums.rows"] = rows.view();
  note("sums of named rows");
}

// Requests all rows of a matrix, or some of them in any order, some twice.
void RandomCall::want_matrix(const std::string& name) {
  Wanted wanted{sums(), weights_shape, Layout::kContiguous, ""};
  const bool named = Tq > 0 && chance(0.5);
  if (!named && element_count(weights_shape) > kMostElements) return;
  if (named) {
    constexpr DType kTypes[] = {DType::kInt64, DType::kInt32, DType::kInt16};
    const Index count = whole(0, 6);
    wanted.shape[wanted.shape.rank() - 2] = count;
    wanted.rows = name + ".rows";
    Guarded& rows = make(one_of(kTypes), Dims(count)).fill_whole(random_, 0, Tq - 1);
    row_lists_[wanted.rows] = rows.view();
    note("named rows");
  } else {
    note("all rows");
  }
  wanted.layout = layout(element_count(wanted.shape), false);
  wanted_[name] = wanted;
  note("-> " + name);
}

Results::Results(const RandomCall& call, double sentinel) {
  for (const auto& [name, wanted] : call.wanted()) {
    Guarded array(wanted.dtype, wanted.shape, wanted.layout);
    array.fill(
        std::vector<double>(static_cast<std::size_t>(element_count(wanted.shape)), sentinel));
    arrays_.emplace(name, std::move(array));
  }
  const auto buffer = [&](const std::string& name) {
    const auto at = arrays_.find(name);
    return at == arrays_.end() ? View() : at->second.view();
  };
  const auto rows = [&](const std::string& name) -> Rows {
    const auto at = call.wanted().find(name);
    if (at == call.wanted().end()) return {};
    if (at->second.rows.empty()) return buffer(name);
    return {call.row_list(at->second.rows), buffer(name)};
  };
  outputs_ = {.out = buffer("out"),
              .lse = buffer("lse"),
              .row_max = buffer("row_max"),
              .entropy = buffer("entropy"),
              .column_sums = {call.column_rows(), buffer("column_sums")},
              .value_sums = buffer("value_sums"),
              .pooled = buffer("pooled"),
              .top = {call.top(), buffer("top_weights"), buffer("top_keys")},
              .weights = rows("weights"),
              .dropped_weights = rows("dropped_weights"),
              .raw_scores = rows("raw_scores"),
              .capped_scores = rows("capped_scores"),
              .masked_scores = rows("masked_scores")};
}

}  // namespace qkv::test
