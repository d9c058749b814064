// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/backward_call.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "tests/support/compare.h"

namespace qkv::test {

bool takes_backward(std::string_view path, const Inputs& inputs, const Options& options) {
  Context context = context_on(path);
  try {
    return Plan(inputs, options, context).backward_path() == path;
  } catch (const Error&) {
    return false;
  }
}

std::vector<std::string> fast_backward_paths(ScoreKind kind) {
  const Tensor x = normal({4, 8}, 1);
  const SeededScore score(kind, {.H = 1, .Dq = 8, .Dk = 8, .U = 4}, x.dtype());
  std::vector<std::string> names;
  for (const std::string& path : fast_paths(kind)) {
    if (takes_backward(path, {x, x, x}, {.score = score.score()})) names.push_back(path);
  }
  return names;
}

std::vector<std::string> all_backward_paths(ScoreKind kind) {
  std::vector<std::string> names = fast_backward_paths(kind);
  names.emplace_back(kReferencePath);
  return names;
}

// ---- BackwardCall ---------------------------------------------------------------------------

ConstView BackwardCall::source_of(const std::string& name, const Inputs& inputs,
                                  const Options& options) {
  if (name == "q") return inputs.q;
  if (name == "k") return inputs.k;
  if (name == "v") return inputs.v;
  if (name == "bias") return options.bias;
  if (name == "alibi") return options.alibi;
  if (name == "sinks") return options.sinks;
  const QkNorm norm = options.qk_norm.value_or(QkNorm{});
  if (name == "norm_q") return norm.q;
  if (name == "norm_k") return norm.k;
  if (const auto* bilinear = std::get_if<Bilinear>(&options.score)) {
    return name == "w" ? bilinear->w : ConstView();
  }
  if (const auto* additive = std::get_if<Additive>(&options.score)) {
    if (name == "wq") return additive->wq;
    if (name == "wk") return additive->wk;
    if (name == "score_v") return additive->v;
    if (name == "score_b") return additive->b;
  }
  return {};
}

std::vector<std::string> BackwardCall::askable(const Inputs& inputs, const Options& options) {
  std::vector<std::string> names;
  for (const char* name : kNames) {
    if (source_of(name, inputs, options).given()) names.emplace_back(name);
  }
  return names;
}

void BackwardCall::ask(const std::string& name, Layout layout) {
  const ConstView source = source_of(name, inputs, options);
  asked[name] = {source.dtype(), source.shape(), layout};
}

// ---- SavedTensors, Gradients ----------------------------------------------------------------

SavedTensors::SavedTensors(const BackwardCall& call, std::string_view path) {
  const ResultShapes shapes = result_shapes(call.inputs);
  lse = Tensor(accumulator_of(call.inputs.q.dtype()), shapes.rows);
  Outputs outputs{.lse = lse};
  if (call.inputs.v.given()) {
    out = Tensor(call.inputs.q.dtype(), shapes.out);
    outputs.out = out;
  }
  Context context = context_on(path);
  attention(call.inputs, call.options, outputs, context);
}

Saved SavedTensors::views() const {
  return {out.dtype() == DType::kNone ? ConstView() : ConstView(out), lse};
}

bool SavedTensors::same_bits_as(const SavedTensors& other) const {
  const auto same = [](const Tensor& a, const Tensor& b) {
    return a.dtype() == DType::kNone || a.element_count() == 0 || same_bits(a, b);
  };
  return same(out, other.out) && same(lse, other.lse);
}

Gradients::Gradients(const BackwardCall& call) {
  Random random(7);
  for (const auto& [name, asked] : call.asked) {
    Guarded array(asked.dtype, asked.shape, asked.layout);
    std::vector<double> numbers(static_cast<std::size_t>(element_count(asked.shape)), -777);
    if (call.write == Write::kAccumulate) {
      for (double& x : numbers) x = random.normal();
    }
    array.fill(numbers);
    before_[name] = values_of(array.view());
    arrays_.emplace(name, std::move(array));
  }
  const auto buffer = [&](const char* name) {
    const auto at = arrays_.find(name);
    return at == arrays_.end() ? View() : at->second.view();
  };
  const auto score_gradient = [&]() -> ScoreGradient {
    if (std::holds_alternative<Bilinear>(call.options.score)) return BilinearGradient{buffer("w")};
    if (std::holds_alternative<Additive>(call.options.score)) {
      return AdditiveGradient{
          .wq = buffer("wq"), .wk = buffer("wk"), .v = buffer("score_v"), .b = buffer("score_b")};
    }
    return {};
  };
  views_ = {.q = buffer("q"),
            .k = buffer("k"),
            .v = buffer("v"),
            .qk_norm = {buffer("norm_q"), buffer("norm_k")},
            .score = score_gradient(),
            .bias = buffer("bias"),
            .alibi = buffer("alibi"),
            .sinks = buffer("sinks"),
            .write = call.write};
}

void Gradients::fill(double value) {
  for (auto& [name, array] : arrays_) {
    std::vector<double>& numbers = before_.at(name);
    std::fill(numbers.begin(), numbers.end(), value);
    array.fill(numbers);
  }
}

void run_backward(const BackwardCall& call, std::string_view path, const Saved& saved,
                  const Gradients& gradients) {
  Context context = context_on(path, call.threads);
  attention_backward(call.inputs, call.options, saved, call.sources, gradients.views(), context);
}

// ---- RandomBackward -------------------------------------------------------------------------

namespace {

constexpr Index kMostMatrix = 200'000;  // the most elements of dweights of all rows
constexpr Index kMostSliced = 20'000;   // the most elements of a sliced array, as in random_call.cc

}  // namespace

RandomBackward::RandomBackward(std::uint64_t seed, std::uint64_t index, RandomCall::Draw draw)
    : forward_(seed, index, draw), random_(~(seed * 0x9E3779B97F4A7C15 + index)) {
  call_.inputs = forward_.inputs();
  call_.options = forward_.options();
  features_ = forward_.features();
  if (draw == RandomCall::Draw::kMaps) draw_maps();
  draw_bias();
  draw_sources();
  draw_asked();
  call_.write = chance(0.3) ? Write::kAccumulate : Write::kOverwrite;
  if (call_.write == Write::kAccumulate) features_.insert("added");
  call_.threads = static_cast<int>(whole(1, 3));
  features_.insert("threads " + std::to_string(call_.threads));
}

bool RandomBackward::overflows() const {
  for (const char* name : {"infinity in v", "infinity in dout", "infinity in dlse",
                           "infinity in dweights", "numbers v 1e30"}) {
    if (features_.count(name) != 0) return true;
  }
  if (forward_.score() != ScoreKind::kAdditive) return false;
  // At an infinity, the derivative of tanh is 0 on one path and tiny on another; times an infinity,
  // these derivatives give NaN and infinity.
  for (const char* name : {"infinity in q", "infinity in k", "infinity in wq", "infinity in wk",
                           "infinity in score_v", "infinity in score_b"}) {
    if (features_.count(name) != 0) return true;
  }
  return false;
}

std::string RandomBackward::describe() const {
  std::ostringstream text;
  text << qkv::describe(call_.inputs.q) << " " << qkv::describe(call_.inputs.k) << " "
       << qkv::describe(call_.inputs.v) << ":";
  for (const std::string& feature : features_) {
    if (!feature.starts_with("-> ")) text << " " << feature << ",";
  }
  return text.str();
}

testing::AssertionResult RandomBackward::intact() const {
  for (const auto* arrays : {&forward_.arrays(), &arrays_}) {
    for (const Guarded& array : *arrays) {
      const testing::AssertionResult intact = array.intact();
      if (!intact) return intact;
    }
  }
  return testing::AssertionSuccess();
}

Layout RandomBackward::layout(Index elements) {
  const Layout drawn =
      kOwnLayouts[static_cast<std::size_t>(whole(0, static_cast<Index>(kOwnLayouts.size()) - 1))];
  return drawn == Layout::kSliced && elements > kMostSliced ? Layout::kOffset : drawn;
}

// Draws normally distributed numbers, with an occasional special value.
View RandomBackward::draw(const char* name, DType dtype, const Dims& shape) {
  Guarded& array = arrays_.emplace_back(dtype, shape, layout(element_count(shape)));
  array.fill_normal(random_);
  features_.insert(name);
  const View view = array.view();
  if (view.element_count() > 0 && chance(0.12)) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    const double kSpecial[] = {std::nan(""), std::nan(""), kInf, -kInf};
    const double value = kSpecial[whole(0, 3)];
    const Dims at = detail::index_of(shape, whole(0, view.element_count() - 1));
    Index offset = 0;
    for (int axis = 0; axis < view.rank(); ++axis) offset += at[axis] * view.stride(axis);
    core::store(dtype, view.data(), offset, value);
    features_.insert((std::isnan(value) ? "NaN in " : "infinity in ") + std::string(name));
  }
  return view;
}

ConstView RandomBackward::draw_gain(const char* name, Index heads, Index width) {
  if (chance(0.2)) return {};
  const bool per_head = chance(0.5);
  features_.insert(std::string(name) + (per_head ? " per head" : ""));
  const Dims shape = per_head ? Dims(heads, width) : Dims(width);
  const Layout drawn = layout(element_count(shape));
  return arrays_.emplace_back(forward_.dtype(), shape, drawn).fill_normal(random_).view();
}

// Draws positions [rows] or [B,rows], or none.
ConstView RandomBackward::draw_positions(Index rows) {
  if (chance(0.6)) return {};
  const bool by_entry = !call_.inputs.cu_seqlens_q.given() && chance(0.5);
  features_.insert(by_entry ? "positions by entry" : "positions");
  const Dims shape = by_entry ? Dims(forward_.B, rows) : Dims(rows);
  const Layout drawn = layout(element_count(shape));
  return arrays_.emplace_back(DType::kInt64, shape, drawn).fill_whole(random_, -5, 5000).view();
}

void RandomBackward::draw_maps() {
  const Index which = whole(0, 2);
  if (which != 1) {
    features_.insert("norm");
    QkNorm norm;
    norm.q = draw_gain("norm_q", forward_.H, forward_.Dq);
    norm.k = draw_gain("norm_k", forward_.G, forward_.Dk);
    if (chance(0.3)) norm.eps = 0;
    call_.options.qk_norm = norm;
  }
  const Index most = std::min(forward_.Dq, forward_.Dk) / 2;
  if (which == 0 || most < 1) return;
  Rotary rotary;
  rotary.pairs = chance(0.5) ? RotaryPairing::kHalves : RotaryPairing::kNeighbours;
  features_.insert(rotary.pairs == RotaryPairing::kHalves ? "halves" : "neighbours");
  rotary.width = 2 * (chance(0.5) ? most : whole(1, most));
  if (chance(0.3)) rotary.base = 500;
  if (chance(0.2)) {
    features_.insert("frequencies");
    Guarded& array = arrays_.emplace_back(DType::kFloat64, Dims(rotary.width / 2), Layout::kSliced);
    rotary.frequencies = array.fill_normal(random_, 0.125).view();
  }
  rotary.q_positions = draw_positions(forward_.Tq);
  rotary.k_positions = draw_positions(forward_.Tk);
  call_.options.rotary = rotary;
}

// May draw a bias, if the forward call has none: [Tq,Tk], or of size 1 along one or both axes, for
// all heads or for each.
void RandomBackward::draw_bias() {
  const Dims matrix = result_shapes(call_.inputs).matrix;
  if (matrix.rank() == 0 || call_.options.bias.given() || !chance(0.2)) return;
  Dims shape;
  if (matrix.rank() > 2 && chance(0.5)) shape.push_back(matrix[matrix.rank() - 3]);
  shape.push_back(chance(0.5) ? matrix[matrix.rank() - 2] : 1);
  shape.push_back(chance(0.5) ? matrix[matrix.rank() - 1] : 1);
  call_.options.bias = draw("bias", forward_.dtype(), shape);
}

void RandomBackward::draw_sources() {
  const ResultShapes shapes = result_shapes(call_.inputs);
  const DType sums = forward_.sums();
  const bool packed = shapes.matrix.rank() == 0;
  if (call_.inputs.v.given() && chance(0.85)) {
    call_.sources.out = draw("dout", forward_.dtype(), shapes.out);
  }
  if (!packed && chance(0.35)) draw_weights(shapes.matrix);
  const bool any = call_.sources.out.given() || call_.sources.weights.matrix.given();
  if (!any || chance(0.35)) call_.sources.lse = draw("dlse", sums, shapes.rows);
}

// Draws dweights of all rows, or of listed rows in any order, which may repeat.
void RandomBackward::draw_weights(const Dims& matrix) {
  const Index Tq = matrix[matrix.rank() - 2];
  if (element_count(matrix) <= kMostMatrix && chance(0.5)) {
    features_.insert("dweights of all rows");
    call_.sources.weights = ConstView(draw("dweights", forward_.sums(), matrix));
    return;
  }
  if (Tq == 0) return;
  Dims shape = matrix;
  const Index count = whole(0, 6);
  shape[matrix.rank() - 2] = count;
  std::vector<double> listed;
  for (Index n = 0; n < count; ++n) {
    const bool repeat = n > 0 && chance(0.3);
    listed.push_back(repeat ? listed.front() : static_cast<double>(whole(0, Tq - 1)));
    if (repeat) features_.insert("repeated names");
  }
  const DType kTypes[] = {DType::kInt64, DType::kInt32, DType::kInt16};
  Guarded& rows =
      arrays_.emplace_back(kTypes[whole(0, 2)], Dims(count), layout(count)).fill(listed);
  features_.insert("dweights of named rows");
  const ConstView named = rows.view();
  call_.sources.weights = {named, ConstView(draw("dweights", forward_.sums(), shape))};
}

void RandomBackward::draw_asked() {
  const std::vector<std::string> askable = BackwardCall::askable(call_.inputs, call_.options);
  const auto ask = [&](const std::string& name) {
    const Index elements =
        BackwardCall::source_of(name, call_.inputs, call_.options).element_count();
    call_.ask(name, layout(elements));
    features_.insert("asks " + name);
  };
  const bool only_one = chance(0.08);
  for (const std::string& name : askable) {
    if (!only_one && chance(name == "bias" ? 0.9 : 0.65)) ask(name);
  }
  if (call_.asked.empty()) {
    ask(askable[static_cast<std::size_t>(whole(0, static_cast<Index>(askable.size()) - 1))]);
  }
  if (call_.asked.size() == 1) features_.insert("asks one");
  if (call_.asked.count("bias") == 0) return;
  const Dims& bias = call_.asked.at("bias").shape;
  const ResultShapes shapes = result_shapes(call_.inputs);
  const auto axis = [](const Dims& x, int from_end) {
    return x.rank() < from_end ? 1 : x[x.rank() - from_end];
  };
  const bool rows = axis(bias, 2) == axis(shapes.matrix, 2);
  const bool columns = axis(bias, 1) == axis(shapes.matrix, 1);
  features_.insert(std::string("dbias ") + (rows ? "[Tq," : "[1,") + (columns ? "Tk]" : "1]"));
  if (axis(bias, 3) > 1) features_.insert("dbias per head");
}

}  // namespace qkv::test
