// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"

// Every array of a call is tested in every layout, inside guard bands: results are bit-identical
// with those of contiguous arrays, and no byte that does not belong to a result is written.
namespace qkv::test {
namespace {

// The arrays of one call with every option that holds an array: inputs and options in one layout,
// results in another.
class Arrays {
 public:
  Arrays(DType real, Layout inputs, Layout results) : real_(real), in_(inputs), out_(results) {}

  // Makes an input whose numbers depend on its name and shape, not on its layout. With
  // `repeat_first` all entries of the first axis are equal: copies of one entry if the layout is
  // kContiguous, else one entry with stride 0.
  ConstView input(const std::string& name, const Dims& shape, DType dtype, bool repeat_first) {
    Random random(std::hash<std::string>{}(name));
    Guarded plain(dtype, shape, repeat_first ? Layout::kBroadcast : Layout::kContiguous);
    if (is_integer(dtype)) {
      plain.fill_whole(random, 1, 2);  // row indices and lengths, all below Tq = 3
    } else if (dtype == DType::kBool) {
      plain.fill_whole(random, 0, 1);
    } else {
      plain.fill_normal(random);
    }
    const Layout layout = repeat_first && in_ != Layout::kContiguous ? Layout::kBroadcast : in_;
    arrays_.emplace_back(Guarded(dtype, shape, layout));
    arrays_.back().fill(values_of(plain.view()));
    return arrays_.back().view();
  }
  View result(const Dims& shape, DType dtype) {
    arrays_.emplace_back(Guarded(dtype, shape, out_));
    results_.push_back(arrays_.size() - 1);
    return arrays_.back().view();
  }

  void expect_intact() const {
    for (const Guarded& array : arrays_) EXPECT_TRUE(array.intact());
  }
  std::vector<View> results() const {
    std::vector<View> views;
    for (std::size_t n : results_) views.push_back(arrays_[n].view());
    return views;
  }
  DType real() const { return real_; }

 private:
  DType real_;
  Layout in_, out_;
  std::vector<Guarded> arrays_;
  std::vector<std::size_t> results_;
};

void call(Arrays& a, bool repeat) {
  const DType real = a.real();
  const DType sums = accumulator_of(real);
  const auto in = [&](const char* name, const Dims& shape) {
    return a.input(name, shape, real, repeat);
  };
  const Inputs inputs{in("q", {2, 4, 3, 5}), in("k", {2, 2, 4, 6}), in("v", {2, 2, 4, 3})};
  const Options options{
      .score = Additive{in("wq", {4, 7, 5}), in("wk", {4, 7, 6}), in("u", {4, 7}), in("b", {4, 7})},
      .bias = in("bias", {2, 1, 3, 4}),
      .diagonal = Offsets{a.input("offsets", Dims(2), DType::kInt32, repeat)},
      .alibi = in("alibi", Dims(4)),
      .masks = {Window{3, 2}, Keep{a.input("keep", {4, 3, 4}, DType::kBool, repeat)},
                Padding{a.input("padding", {2, 4}, DType::kBool, repeat)},
                KeyLengths{a.input("lengths", {2, 3}, DType::kInt16, repeat)}},
      .sinks = in("sinks", Dims(4)),
      .dropout = {0.25, 5}};
  const View out = a.result({2, 4, 3, 3}, real);
  const View lse = a.result({2, 4, 3}, sums);
  attention(
      inputs, options,
      {.out = out,
       .lse = lse,
       .row_max = a.result({2, 4, 3}, sums),
       .entropy = a.result({2, 4, 3}, sums),
       .column_sums = {a.input("rows", Dims(2), DType::kUInt8, true), a.result({2, 4, 4}, sums)},
       .value_sums = a.result({2, 4, 4}, sums),
       .pooled = a.result({2, 4, 2, 3}, sums),
       .top = {2, a.result({2, 4, 3, 2}, sums), a.result({2, 4, 3, 2}, DType::kInt64)},
       .weights = {a.input("rows", Dims(2), DType::kUInt8, true), a.result({2, 4, 2, 4}, sums)},
       .dropped_weights = a.result({2, 4, 3, 4}, sums),
       .raw_scores = a.result({2, 4, 3, 4}, sums),
       .capped_scores = a.result({2, 4, 3, 4}, sums),
       .masked_scores = a.result({2, 4, 3, 4}, sums)});
  const auto like = [&](const ConstView& x) { return a.result(x.shape(), x.dtype()); };
  const auto& score = std::get<Additive>(options.score);
  attention_backward(
      inputs, options, {out, lse},
      {.out = in("dout", {2, 4, 3, 3}),
       .lse = a.input("dlse", {2, 4, 3}, sums, repeat),
       .weights = ConstView(a.input("dweights", {2, 4, 3, 4}, sums, repeat))},
      {.q = like(inputs.q),
       .k = like(inputs.k),
       .v = like(inputs.v),
       .score = AdditiveGradient{like(score.wq), like(score.wk), like(score.v), like(score.b)},
       .bias = like(options.bias),
       .alibi = like(options.alibi),
       .sinks = like(options.sinks)});
}

class Layouts : public testing::TestWithParam<DType> {};

TEST_P(Layouts, GiveTheSameBitsAndTouchNothingElse) {
  Arrays plain(GetParam(), Layout::kContiguous, Layout::kContiguous);
  call(plain, false);
  for (Layout in : kOwnLayouts) {
    for (Layout out : kOwnLayouts) {
      SCOPED_TRACE(std::string(name_of(in)) + " -> " + std::string(name_of(out)));
      Arrays strange(GetParam(), in, out);
      call(strange, false);
      strange.expect_intact();
      for (std::size_t n = 0; n < plain.results().size(); ++n) {
        EXPECT_TRUE(same_bits(plain.results()[n], strange.results()[n])) << "result " << n;
      }
    }
  }
}

TEST_P(Layouts, ABroadcastInputHasTheBitsOfItsCopy) {
  Arrays copied(GetParam(), Layout::kContiguous, Layout::kContiguous);
  call(copied, true);
  Arrays repeated(GetParam(), Layout::kSliced, Layout::kContiguous);
  call(repeated, true);
  repeated.expect_intact();
  for (std::size_t n = 0; n < copied.results().size(); ++n) {
    EXPECT_TRUE(same_bits(copied.results()[n], repeated.results()[n])) << "result " << n;
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Layouts,
                         testing::Values(DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                                         DType::kFloat16),
                         [](const auto& p) { return std::string(name_of(p.param)); });

// q, k, v and out may be interleaved slices of one buffer [B,T,4,H,D].
TEST(Interleaved, SlicesOfOneBufferAreLegal) {
  Tensor buffer = normal({2, 5, 4, 3, 6}, 9);
  const Tensor before = contiguous(buffer.view());
  const auto part = [&](Index n) {
    const View cut = slice(buffer.view(), 2, n, n + 1);
    return permute(reshape(cut, {2, 5, 3, 6}), {0, 2, 1, 3});
  };
  attention({part(0), part(1), part(2)}, {.masks = {Causal{}}}, {.out = part(3)});
  Tensor out(DType::kFloat32, {2, 3, 5, 6});
  attention({contiguous(part(0)), contiguous(part(1)), contiguous(part(2))}, {.masks = {Causal{}}},
            {.out = out});
  EXPECT_TRUE(same_bits(out, part(3)));
  EXPECT_TRUE(same_bits(slice(before.view(), 2, 0, 3), slice(buffer.view(), 2, 0, 3)));
}

// The stride of an axis of size 1 is never used, so it may be any number: no sum or product of it
// may overflow, which the sanitizer of undefined behaviour would report.
TEST(SingleRow, MayHaveAnyStride) {
  const Tensor x = normal({1, 2, 1, 64}, 10);
  Tensor want(DType::kFloat32, {1, 2, 1, 64});
  attention({x, x, x}, {}, {.out = want});
  for (const Index stride : {std::numeric_limits<Index>::max(), std::numeric_limits<Index>::min(),
                             Index{1} << 61, Index{-1} << 61}) {
    const ConstView row(x.values<float>().data(), x.shape(), {stride, 64, stride, 1});
    Tensor got(DType::kFloat32, want.shape());
    attention({row, row, row}, {}, {.out = got});
    EXPECT_TRUE(same_bits(want, got)) << stride;
  }
}

}  // namespace
}  // namespace qkv::test
