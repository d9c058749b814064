// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/attention/random_call.h"
#include "tests/support/compare.h"

// Functions of RandomCall that draw the score, its parameters, and the magnitude of its numbers.
namespace qkv::test {

void RandomCall::draw_kind() {
  const double tiny = dtype_ == DType::kFloat64 ? 1e-160 : 1e-20;
  const Numbers kProducts[] = {{"plain", 1, 1, 1},
                               {"plain", 1, 1, 1},
                               {"plain", 1, 1, 1},
                               {"flat", 0.1, 0.1, 1},
                               {"steep", 5, 3, 1},
                               {"scores 1e4", 100, 100, 1},
                               {"scores 1e30", 1e15, 1e15, 1},
                               {"denormal", tiny, tiny, tiny * tiny * 10},
                               {"ties", 0, 0, 1},
                               {"one key", 1, 1, 1},
                               {"v 1e30", 1, 1, 1e30}};
  // exp(2a) leaves the range of float32 near |a| = 44; |tanh a| is 1 long before.
  const Numbers kSums[] = {{"plain", 1, 1, 1},
                           {"plain", 1, 1, 1, 1, 3},
                           {"flat", 1, 1, 1, 0.01},
                           {"steep", 1, 1, 1, 2, 20},
                           {"projected 20", 1, 1, 1, 20, 3},
                           {"projected 60", 1, 1, 1, 60, 3},
                           {"projected 300", 1, 1, 1, 300, 3},
                           {"projected 1e4", 1, 1, 1, 1e4, 3},
                           {"projected 1e6", 1, 1, 1, 1e6, 3},
                           {"cancelling", 1, 1, 1, 60, 3},
                           {"scores 1e4", 1, 1, 1, 1, 1e4},
                           {"scores 1e30", 1, 1, 1, 1, 1e30},
                           {"denormal", tiny, tiny, tiny * tiny * 10, 1, tiny},
                           {"ties", 0, 0, 1, 1, 3},
                           {"one key", 1, 1, 1, 1, 3},
                           {"v 1e30", 1, 1, 1e30}};
  numbers_ = score_ == ScoreKind::kAdditive ? one_of(kSums) : one_of(kProducts);
  const Numbers& x = numbers_;
  const bool large = x.q * x.k > 1e5 || x.v > 1 || x.projected > 1e4 || x.score_v > 1e4;
  if (size_of(dtype_) == 2 && large) numbers_ = kProducts[0];  // float16 ends at 65504
  note(std::string("numbers ") + numbers_.name);
}

// Draws all queries and keys close to a common row: their projections are large, and cancel if
// Wk = -Wq.
void RandomCall::draw_near_rows() {
  std::vector<double> one(static_cast<std::size_t>(Dq));
  for (double& x : one) x = random_.normal();
  for (const View& x : {writable_[0], writable_[1]}) {
    for (Index n = 0; n < x.element_count(); ++n) {
      store_at(x, n, one[static_cast<std::size_t>(n % Dq)] + random_.normal() / numbers_.projected);
    }
  }
}

void RandomCall::draw_score() {
  if (score_ == ScoreKind::kAdditive) {
    note("additive");
    options_.score = draw_additive();
    return;
  }
  if (score_ == ScoreKind::kBilinear) {
    note("bilinear");
    const double deviation = 1 / std::sqrt(static_cast<double>(Dq));
    options_.score = Bilinear{make_parameter("w", {Dq, Dk}, deviation).view()};
    return;
  }
  if (score_ == ScoreKind::kCosine) {
    note("cosine");
    options_.score = Cosine{};
    return;
  }
  if (chance(0.5)) {
    options_.score = Dot{};
    note("dot");
  } else {
    note("scaled_dot");
  }
}

// Draws a parameter: shared by all heads or per head, in the inputs' dtype or the accumulator's,
// with an occasional special value.
Guarded& RandomCall::make_parameter(const char* name, const Dims& shape, double deviation) {
  Dims full = shape;
  if (chance(0.4)) {
    full = Dims(H);
    for (int axis = 0; axis < shape.rank(); ++axis) full.push_back(shape[axis]);
    note(std::string(name) + " per head");
  }
  Guarded& x = make(chance(0.2) ? sums() : dtype_, full).fill_normal(random_, deviation);
  // tanh of a tiny number is 0 on some paths; times an infinite v that is NaN.
  const bool may_be_odd = name != std::string_view("score_v") || !has("numbers denormal");
  if (chance(0.06) && may_be_odd) {
    plant(x, name, 0);
    note("odd parameter");
  }
  return x;
}

Additive RandomCall::draw_additive() {
  const auto deviation = [&](Index width) {
    return numbers_.projected / std::sqrt(static_cast<double>(width));
  };
  Additive score;
  score.wq = make_parameter("wq", {U, Dq}, deviation(Dq)).view();
  if (has("numbers cancelling")) {
    std::vector<double> opposite = values_of(score.wq);
    for (double& x : opposite) x = -x;
    score.wk = make_list(score.wq.dtype(), score.wq.shape()).fill(opposite).view();
  } else {
    score.wk = make_parameter("wk", {U, Dk}, deviation(Dk)).view();
  }
  score.v = make_parameter("score_v", Dims(U), numbers_.score_v / std::sqrt(U)).view();
  if (chance(0.5)) {
    note("score_b");
    const double size = has("numbers cancelling") ? 1 : numbers_.projected;
    score.b = make_parameter("score_b", Dims(U), size).view();
  } else {
    note("no score_b");
  }
  return score;
}

}  // namespace qkv::test
