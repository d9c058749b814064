// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include <qkv/attention.h>

#include "core/storage.h"
#include "tests/attention/frozen/arrays.h"
#include "tests/attention/frozen/cases.h"
#include "tests/attention/frozen/draw.h"

// Frozen steps of decoding: few query rows for each key head, several chunks of keys.
namespace qkv::test::frozen {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

constexpr double kUntouched = -777;

// Query rows of a key head.
constexpr Index kRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1, 1, 4, 8};
constexpr Index kWidths[] = {40, 64, 80, 128, 200};
// Chunks have 256 or 512 keys, panels 64, partial sums 64.
constexpr Index kEdges[] = {511, 512, 513, 575, 768, 769, 1024, 1025, 1536};
constexpr Index kMostNumbers = 800'000;  // of k and v

struct Types {
  DType q, k;
};
constexpr Types kTypes[] = {
    {DType::kFloat32, DType::kFloat32},   {DType::kFloat64, DType::kFloat64},
    {DType::kBFloat16, DType::kBFloat16}, {DType::kFloat16, DType::kFloat16},
    {DType::kFloat32, DType::kFloat32},   {DType::kFloat32, DType::kBFloat16},
    {DType::kBFloat16, DType::kBFloat16}, {DType::kFloat32, DType::kFloat16}};
constexpr Order kOrders[] = {Order::kC, Order::kSwapped, Order::kEverySecond, Order::kBackwards};
constexpr const char* kOrderNames[] = {"C", "[B,T,H,D]", "2nd channels", "backwards"};

// One call of attention() for out and lse, drawn from its index alone.
class Decode {
 public:
  Decode(int index, bool only_named);
  Decode(const Decode&) = delete;
  Decode& operator=(const Decode&) = delete;

  std::string name() const { return "decode " + described(inputs_) + words_; }
  const std::set<std::string>& features() const { return features_; }
  DType sums() const { return accumulator_of(inputs_.q.dtype()); }
  void run(Context& context, Hash& hash);

 private:
  void note(const std::string& feature) {
    words_ += " " + feature;
    features_.insert("decode " + feature);
  }
  View lay_out(Tensor values, Order order) {
    return frozen::lay_out(std::move(values), order, tensors_, features_);
  }
  View make(DType dtype, const Dims& shape, Order order, double size = 1) {
    Draw of_array(draw_.bits());
    return lay_out(only_named_ ? Tensor(dtype, shape) : numbers(of_array, dtype, shape, size),
                   order);
  }
  View small(const Dims& shape, double size) {
    const DType dtype = draw_.chance(25) ? sums() : inputs_.q.dtype();
    return make(dtype, shape, Order::kC, size);
  }
  void draw_sizes();
  void draw_inputs();
  void draw_packed_inputs();
  void draw_options();
  void draw_masks();
  void draw_lengths();
  void draw_keep();
  void draw_outputs();

  int index_;
  bool only_named_;
  Draw draw_;
  Index B = 1, H = 1, G = 1, Tq = 1, Tk = 1, D = 1, E = 1;
  bool packed_ = false;
  bool one_head_ = false;  // no head axis
  std::deque<Tensor> tensors_;
  View k_, v_;
  Inputs inputs_;
  Options options_;
  Outputs outputs_;
  std::string words_;
  std::set<std::string> features_;
};

Decode::Decode(int index, bool only_named)
    : index_(index),
      only_named_(only_named),
      draw_(0x5EED6000 + static_cast<std::uint64_t>(index)) {
  draw_sizes();
  packed_ = index % 9 == 8;
  packed_ ? draw_packed_inputs() : draw_inputs();
  draw_options();
  draw_outputs();
}

void Decode::draw_sizes() {
  constexpr Index kHeads[] = {1, 1, 2, 3};
  D = kWidths[index_ % 5];
  E = draw_.chance(70) ? D : draw_.one_of(kWidths);
  const Index rows = kRows[(index_ * 7 + index_ / 20) % 20];
  Index group = draw_.chance(50) ? rows : draw_.whole(1, rows);
  while (rows % group != 0) --group;
  Tq = rows / group;
  Tk = draw_.chance(35) ? draw_.one_of(kEdges) : draw_.whole(300, draw_.chance(40) ? 3000 : 1400);
  B = draw_.whole(1, 3);
  G = draw_.one_of(kHeads);
  while (B * G * Tk * (D + E) > kMostNumbers && (B > 1 || G > 1)) {
    --(B > 1 ? B : G);
  }
  H = G * group;
  one_head_ = H == 1 && draw_.chance(50);
  if (group > 1) features_.insert("decode grouped");
  features_.insert("decode rows " + std::to_string(rows));
}

// k and v are mostly in the same layout, which changes with each width and type.
void Decode::draw_inputs() {
  const Types types = kTypes[index_ / 5 % 8];
  const int layout = (index_ % 5 + index_ / 5 + index_ / 20) % 4;
  const Order order = kOrders[layout];
  const auto shape = [&](Index heads, Index rows, Index width) {
    return one_head_ ? Dims(B, rows, width) : Dims(B, heads, rows, width);
  };
  const Order of_q = draw_order(draw_);
  inputs_.q = make(types.q, shape(H, Tq, D), of_q);
  inputs_.k = k_ = make(types.k, shape(G, Tk, D), order);
  const Order of_v = draw_.chance(80) ? order : draw_order(draw_);
  inputs_.v = v_ = make(types.k, shape(G, Tk, E), of_v);
  note(kOrderNames[layout]);
}

// A long sequence, one without keys and a short one.
void Decode::draw_packed_inputs() {
  const Types types = kTypes[index_ / 5 % 8];
  const Index short_k = draw_.whole(1, 300);
  const auto list = [&](Index a, Index b, Index c) {
    Tensor cu(DType::kInt64, Dims(4));
    const std::span<std::int64_t> n = cu.values<std::int64_t>();
    n[1] = a;
    n[2] = a + b;
    n[3] = a + b + c;
    return lay_out(std::move(cu), Order::kC);
  };
  B = 3;
  note("packed");
  inputs_.q = make(types.q, {2 * Tq + 1, H, D}, Order::kC);
  const Order of_k = draw_order(draw_);
  inputs_.k = k_ = make(types.k, {Tk + short_k, G, D}, of_k);
  const Order of_v = draw_order(draw_);
  inputs_.v = v_ = make(types.k, {Tk + short_k, G, E}, of_v);
  inputs_.cu_seqlens_q = list(Tq, 1, Tq);
  inputs_.cu_seqlens_k = list(Tk, 0, short_k);
}

// Some have none.
void Decode::draw_options() {
  if (index_ % 8 == 3) {
    features_.insert("decode without options");
    return;
  }
  if (draw_.chance(25)) {
    constexpr double kScales[] = {0.25, -0.5, 0.0625, 1};
    options_.scale = draw_.one_of(kScales);
    note("scale");
  }
  if (draw_.chance(35)) {
    constexpr double kCaps[] = {2, 8, 30};
    options_.softcap = draw_.one_of(kCaps);
    note("softcap");
  }
  if (!packed_ && draw_.chance(15)) {
    options_.bias = small(draw_.chance(50) ? Dims(Tk) : Dims(Tq, Tk), 1);
    note("bias");
  }
  draw_masks();
  if (draw_.chance(35)) {
    const bool of_entries = draw_.chance(50);
    options_.alibi = small(of_entries ? Dims(B, H) : Dims(H), 0x1p-6);
    note(of_entries ? "alibi [B,H]" : "alibi [H]");
    features_.insert("decode alibi");
  }
  if (draw_.chance(40)) {
    options_.sinks = small(Dims(H), 2);
    note("sinks");
  }
  if (B * G == 1 || !draw_.chance(15)) return;  // a NaN for all would hide the rest
  const bool in_k = draw_.chance(50);
  core::store((in_k ? k_ : v_).dtype(), (in_k ? k_ : v_).data(), 0, draw_.chance(50) ? kNaN : kInf);
  note("odd");
}

void Decode::draw_masks() {
  if (draw_.chance(40)) {
    options_.masks.emplace_back(Causal{});
    note("causal");
  }
  if (draw_.chance(40)) {
    constexpr Index kLeft[] = {5, 63, 200, 511, 600, 1000, 1500};
    constexpr Index kRight[] = {-1, 0, 3};
    const Index left = draw_.one_of(kLeft);
    const Index right = draw_.one_of(kRight);
    options_.masks.emplace_back(Window{left, right});
    note("window");
  }
  if (draw_.chance(50)) draw_lengths();
  if (!packed_ && draw_.chance(40)) draw_keep();
}

// A cache that is not full: for causal masks and windows the last query is at the last key of its
// batch entry. Anything may lie behind the longest.
void Decode::draw_lengths() {
  if (packed_) {
    Tensor lengths(DType::kInt32, Dims(B));
    const std::span<std::int32_t> n = lengths.values<std::int32_t>();
    n[0] = static_cast<std::int32_t>(draw_.whole(Tk / 2, Tk));
    n[2] = 1;
    options_.masks.emplace_back(KeyLengths{lay_out(std::move(lengths), Order::kC)});
    note("lengths");
    return;
  }
  const bool behind = draw_.chance(60);
  const Index most = behind ? Tk - Tk / 8 - 1 : Tk;
  Tensor lengths = whole_numbers(draw_, DType::kInt64, Dims(B), Tk / 4, most);
  if (!options_.masks.empty() || draw_.chance(50)) {
    Tensor offsets(DType::kInt64, Dims(B));
    for (std::size_t b = 0; b < static_cast<std::size_t>(B); ++b) {
      offsets.values<std::int64_t>()[b] = lengths.values<std::int64_t>()[b] - Tq;
    }
    options_.diagonal = Offsets{lay_out(std::move(offsets), Order::kC)};
    features_.insert("decode offsets");
  }
  options_.masks.emplace_back(KeyLengths{lay_out(std::move(lengths), Order::kC)});
  note("lengths");
  if (!behind) return;
  fill(slice(k_, -2, most, Tk), kNaN);
  fill(slice(v_, -2, most, Tk), draw_.chance(50) ? kNaN : kInf);
  note("NaN behind");
}

// Keeps three out of four; of a full cache sometimes none of the keys in the middle.
void Decode::draw_keep() {
  const DType dtype = draw_.chance(50) ? DType::kBool : DType::kInt32;
  Dims shape{Tk};
  const Index form = draw_.whole(0, 3);
  if (form == 1) shape = {Tq, Tk};
  if (form == 2) shape = one_head_ ? Dims(B, 1, Tk) : Dims(B, 1, 1, Tk);
  if (form == 3) shape = one_head_ ? Dims(B, Tq, Tk) : Dims(B, H, Tq, Tk);
  const Tensor drawn = whole_numbers(draw_, DType::kInt32, shape, 0, 3);
  Tensor keep(dtype, shape);
  copy(drawn, keep);
  const bool full = std::holds_alternative<BottomRight>(options_.diagonal);
  if (full && draw_.chance(40)) {
    copy(Tensor(dtype, Dims(1)), slice(keep, -1, Tk / 4, Tk - Tk / 4));
    note("keep ends" + to_string(shape));
  } else {
    note("keep" + to_string(shape));
  }
  features_.insert("decode keep");
  const Order order = draw_order(draw_);
  options_.masks.emplace_back(Keep{lay_out(std::move(keep), order)});
}

// Some without an lse, and so without libm; not where out has few digits.
void Decode::draw_outputs() {
  const ResultShapes shapes = result_shapes(inputs_);
  const Order of_out = draw_order(draw_);
  outputs_.out = lay_out(Tensor(inputs_.q.dtype(), shapes.out), of_out);
  fill(outputs_.out, kUntouched);
  words_ += " -> out";
  if (size_of(inputs_.q.dtype()) >= 4 && draw_.chance(30)) return;
  outputs_.lse = lay_out(Tensor(sums(), shapes.rows), Order::kC);
  fill(outputs_.lse, kUntouched);
  words_ += " lse";
}

void Decode::run(Context& context, Hash& hash) {
  attention(inputs_, options_, outputs_, context);
  hash.add(outputs_.out);
  if (outputs_.lse.given()) hash.add(outputs_.lse);
}

}  // namespace

Outcome run_decode(int index, const std::string& target, int threads) {
  Decode call(index, target.empty());
  Outcome outcome{.name = call.name(), .features = call.features()};
  if (target.empty()) return outcome;
  Context context = context_of("dot/" + target, threads);
  call.run(context, outcome.hash);
  return outcome;
}

}  // namespace qkv::test::frozen
