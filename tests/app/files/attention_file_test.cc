// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include <qkv/app/attention_file.h>
#include <qkv/error.h>

#include "tests/app/files/arrays.h"
#include "tests/app/files/files.h"

namespace qkv::app {
namespace {

using test::complaint;

Tensor counting(const Dims& shape) {
  Tensor tensor(DType::kFloat32, shape);
  std::iota(tensor.values<float>().begin(), tensor.values<float>().end(), 0.0F);
  return tensor;
}

Strings text(const Dims& shape, std::vector<std::string> values) {
  return {shape, std::move(values)};
}

class AttentionFiles : public ::testing::Test {
 protected:
  std::string save(std::vector<NamedView> arrays) {
    write_npz(path_, arrays);
    return path_;
  }
  // The error message, without the folder's name.
  std::string refused(std::vector<NamedView> arrays, const AttentionFileOptions& options = {}) {
    save(std::move(arrays));
    std::string text = complaint<InputError>([&] { read_attention_file(path_, options); });
    return text.starts_with(path_) ? "a.npz" + text.substr(path_.size()) : text;
  }

  test::Directory directory_;
  std::string path_ = directory_ / "a.npz";
};

TEST_F(AttentionFiles, MissingAxesHaveSizeOne) {
  for (const Dims& shape : {Dims{2, 3}, Dims{4, 2, 3}, Dims{5, 4, 2, 3}, Dims{6, 5, 4, 2, 3}}) {
    const Tensor attn = counting(shape);
    const AttentionFile file = read_attention_file(save({{"attn", attn.view()}}));
    Dims want{1, 1, 1, 2, 3};
    for (int axis = 0; axis < shape.rank(); ++axis) want[5 - shape.rank() + axis] = shape[axis];
    EXPECT_EQ(file.attn.shape(), want);
    EXPECT_EQ(static_cast<int>(file.order.size()), shape.rank() - 2);
    const Dims last{want[0] - 1, want[1] - 1, want[2] - 1, 1, 2};
    EXPECT_EQ(file.attn.at<float>(last), static_cast<float>(attn.element_count() - 1));
    EXPECT_FALSE(file.mask.given());
    EXPECT_TRUE(file.src.empty() && file.tgt.empty());
  }
}

TEST_F(AttentionFiles, EntropiesAreThoseOfPooledRows) {
  const Tensor attn = counting({2, 3, 4, 4});
  const auto read = [&](const Dims& shape) {
    const Tensor entropy = counting(shape);
    return read_attention_file(save({{"attn", attn.view()}, {"entropy", entropy.view()}}));
  };
  const AttentionFile file = read({2, 3, 9});
  ASSERT_EQ(file.row_entropy.shape(), Dims(1, 2, 3, 1, 9));
  EXPECT_EQ(file.row_entropy.at<double>({0, 1, 2, 0, 8}), 53);
  EXPECT_EQ(read({2, 1, 3, 9}).row_entropy.shape(), Dims(1, 2, 3, 1, 9));
  EXPECT_FALSE(read({2, 3, 4}).row_entropy.given());  // no more rows than attn: not pooled
  EXPECT_FALSE(read({3, 2, 9}).row_entropy.given());
  EXPECT_FALSE(read({9}).row_entropy.given());
}

TEST_F(AttentionFiles, ATypeThatIsNotReadIsNamed) {
  const Tensor x = counting({2, 3});
  const auto refused = [&](const std::string& name) {
    write_safetensors(path_, std::vector<NamedView>{{"attn", x.view()}, {"mask", x.view()}});
    const std::string file = test::with_unread(test::read(path_), name);
    return complaint<InputError>([&] { attention_from("a", parse_safetensors("a", file)); });
  };
  EXPECT_EQ(refused("attn"),
            "a: attn must be float64, float32, bfloat16 or float16, got X32 [2,3] "
            "(unsupported type)");
  EXPECT_EQ(refused("mask"),
            "a: mask must be bool or integers (0 = masked), got X32 [2,3] (unsupported type)");
}

TEST_F(AttentionFiles, NamesOfAxesAndSentences) {
  const Tensor attn = counting({2, 3, 3});
  const AttentionFileOptions examples{{LeadingAxis::kExamples}};
  const Strings axes = text({2}, {"target", "source"});
  const Strings line = text({2}, {"a b", "c"});
  const AttentionFile file = read_attention_file(
      save({{"attn", attn.view()}, {"axes", &axes}, {"line", &line}}), examples);
  EXPECT_EQ(file.axes, (std::vector<std::string>{"target", "source"}));
  EXPECT_EQ(file.line.values, (std::vector<std::string>{"a b", "c"}));
  EXPECT_TRUE(file.translation.values.empty());
  const Strings three = text({3}, {"a", "b", "c"});
  EXPECT_EQ(refused({{"attn", attn.view()}, {"axes", &three}}),
            "a.npz: axes must be text [2], the names of rows and columns, got text [3]");
  EXPECT_EQ(refused({{"attn", attn.view()}, {"axes", attn.view()}}),
            "a.npz: axes must be text [2], the names of rows and columns, got float32 [2,3,3]");
  EXPECT_EQ(refused({{"attn", attn.view()}, {"translation", &three}}, examples),
            "a.npz: translation must be text [2], one for each example, got text [3]");
  // An array of numbers called `line` is ignored.
  EXPECT_TRUE(read_attention_file(save({{"attn", attn.view()}, {"line", attn.view()}}))
                  .line.values.empty());
}

TEST_F(AttentionFiles, NameOfTheNumbers) {
  const Tensor attn = counting({3, 3});
  const Strings energy = text({1}, {"energy"});
  const std::string path =
      save({{"attn", attn.view()}, {"other", attn.view()}, {"quantity", &energy}});
  EXPECT_EQ(read_attention_file(path).quantity, "energy");
  AttentionFileOptions other;
  other.name = "other";
  EXPECT_EQ(read_attention_file(path, other).quantity, "");
  EXPECT_EQ(read_attention_file(save({{"attn", attn.view()}, {"quantity", attn.view()}})).quantity,
            "");
  const Strings two = text({2}, {"a", "b"});
  EXPECT_EQ(refused({{"attn", attn.view()}, {"quantity", &two}}),
            "a.npz: quantity must be text [1], the name of the numbers in attn, got text [2]");
}

TEST_F(AttentionFiles, LeadingAxesComeInAnyOrder) {
  const Tensor attn = counting({2, 3, 4, 5, 6});  // layers, examples, heads
  Tensor keep(DType::kBool, {1, 3, 1, 1, 6});
  for (Index n = 0; n < 18; ++n) keep.values<bool>()[static_cast<std::size_t>(n)] = n % 5 != 0;
  save({{"attn", attn.view()}, {"mask", keep.view()}});
  const AttentionFile file = read_attention_file(
      path_, {{LeadingAxis::kLayers, LeadingAxis::kExamples, LeadingAxis::kHeads}});
  EXPECT_EQ(file.attn.shape(), (Dims{3, 2, 4, 5, 6}));
  EXPECT_EQ(file.mask.shape(), file.attn.shape());
  for (Index n = 0; n < 3; ++n) {
    for (Index l = 0; l < 2; ++l) {
      EXPECT_EQ(file.attn.at<float>({n, l, 1, 2, 3}), attn.view().at<float>({l, n, 1, 2, 3}));
      EXPECT_EQ(file.mask.at<bool>({n, l, 3, 4, 5}), (6 * n + 5) % 5 != 0);
    }
  }
  const Tensor three = counting({3, 2, 2});
  save({{"attn", three.view()}});
  const AttentionFile examples = read_attention_file(path_, {{LeadingAxis::kExamples}});
  EXPECT_EQ(examples.attn.shape(), (Dims{3, 1, 1, 2, 2}));
  EXPECT_EQ(refused({{"attn", three.view()}}, {{LeadingAxis::kLayers, LeadingAxis::kHeads}}),
            "a.npz: attn has 1 axes before queries and keys (attn [3,2,2]), but their order names "
            "2: layers, heads, queries, keys");
  EXPECT_NE(complaint<Error>([&] {
              read_attention_file(path_, {{LeadingAxis::kHeads, LeadingAxis::kHeads}});
            }).find("must name each axis once"),
            std::string::npos);
}

TEST_F(AttentionFiles, TokensLabelTheirAxes) {
  const Tensor attn = counting({2, 1, 1, 2, 3});
  const Strings src = text({3}, {"a", "b", "c"});
  const Strings tgt = text({2, 2}, {"x", "y", "z", ""});
  const AttentionFile file =
      read_attention_file(save({{"attn", attn.view()}, {"src", &src}, {"tgt", &tgt}}));
  EXPECT_EQ(file.src, (std::vector<Tokens>{{"a", "b", "c"}, {"a", "b", "c"}}));
  EXPECT_EQ(file.tgt, (std::vector<Tokens>{{"x", "y"}, {"z", ""}}));
}

TEST_F(AttentionFiles, KeysLabelQueriesOfSelfAttention) {
  const Tensor square = counting({3, 3});
  const Tensor oblong = counting({2, 3});
  const Strings src = text({3}, {"a", "b", "c"});
  const auto read = [&](const Tensor& attn) {
    return read_attention_file(save({{"attn", attn.view()}, {"src", &src}}));
  };
  EXPECT_EQ(read(square).tgt, (std::vector<Tokens>{{"a", "b", "c"}}));
  EXPECT_TRUE(read(oblong).tgt.empty());
}

TEST_F(AttentionFiles, RowsMayBeSomeOfTheQueries) {
  const Tensor attn = counting({3, 3});
  const Strings src = text({3}, {"a", "b", "c"});
  const auto read = [&](std::vector<std::int32_t> rows) {
    Tensor named(DType::kInt32, {std::ssize(rows)});
    std::copy(rows.begin(), rows.end(), named.values<std::int32_t>().begin());
    return read_attention_file(
        save({{"attn", attn.view()}, {"src", &src}, {"rows", named.view()}}));
  };
  const AttentionFile some = read({2, 5, 900});
  EXPECT_EQ(some.rows, (std::vector<Index>{2, 5, 900}));
  EXPECT_EQ(some.query_of(1), 5);
  EXPECT_TRUE(some.tgt.empty());  // the keys' tokens are not those of these queries
  const AttentionFile all = read({0, 1, 2});
  EXPECT_TRUE(all.rows.empty() && all.same_tokens);
  EXPECT_EQ(all.query_of(1), 1);
}

TEST_F(AttentionFiles, WrongRowsAreRefused) {
  const Tensor attn = counting({3, 4});
  const auto wrong = [&](std::vector<std::int64_t> rows) {
    Tensor named(DType::kInt64, {std::ssize(rows)});
    std::copy(rows.begin(), rows.end(), named.values<std::int64_t>().begin());
    return refused({{"attn", attn.view()}, {"rows", named.view()}});
  };
  EXPECT_EQ(wrong({0, 1}),
            "a.npz: rows must be integers [3], the query of each row of attn [3,4], got int64 [2]");
  EXPECT_EQ(wrong({0, -3, 5}), "a.npz: rows must be queries from 0, got -3 at 1");
  EXPECT_EQ(wrong({0, 5, 5}), "a.npz: rows must ascend, got 5 after 5 at 2");
  EXPECT_EQ(wrong({7, 5, 6}), "a.npz: rows must ascend, got 5 after 7 at 1");
  const Strings words = text({3}, {"0", "1", "2"});
  EXPECT_EQ(refused({{"attn", attn.view()}, {"rows", &words}}),
            "a.npz: rows must be integers [3], the query of each row of attn [3,4], got text [3]");
  EXPECT_EQ(refused({{"attn", attn.view()}, {"rows", attn.view()}}),
            "a.npz: rows must be integers [3], the query of each row of attn [3,4], got float32 "
            "[3,4]");
}

TEST_F(AttentionFiles, MasksOfIntegersBroadcast) {
  const Tensor attn = counting({4, 2, 3});
  Tensor mask(DType::kInt64, {3});
  mask.values<std::int64_t>()[1] = 7;
  const AttentionFile file =
      read_attention_file(save({{"attn", attn.view()}, {"mask", mask.view()}}));
  EXPECT_EQ(file.mask.shape(), (Dims{1, 1, 4, 2, 3}));
  EXPECT_TRUE(file.mask.at<bool>({0, 0, 3, 1, 1}));
  EXPECT_FALSE(file.mask.at<bool>({0, 0, 3, 1, 2}));
}

TEST_F(AttentionFiles, HalfPrecisionStaysAsStored) {
  const Tensor attn = convert(counting({2, 2}).view(), DType::kFloat16);
  const AttentionFile file = read_attention_file(save({{"attn", attn.view()}}));
  EXPECT_EQ(file.attn.dtype(), DType::kFloat16);
}

TEST_F(AttentionFiles, AnNpyFileIsAttnAlone) {
  const Tensor attn = counting({2, 3});
  write_npy(directory_ / "w.npy", attn.view());
  EXPECT_EQ(read_attention_file(directory_ / "w.npy").attn.shape(), (Dims{1, 1, 1, 2, 3}));
}

TEST_F(AttentionFiles, MalformedFilesAreRefused) {
  const Tensor attn = counting({2, 6, 6});
  const Tensor cube = counting({1, 1, 1, 1, 6, 6});
  const Tensor empty = counting({0, 6});
  const Tensor line = counting({6});
  const Tensor whole(DType::kInt64, {6, 6});
  const Tensor mask(DType::kBool, {5, 6});
  const Strings five = text({5}, {"a", "b", "c", "d", "e"});
  const Strings scalar = text({}, {"a b c d e f"});
  const Strings three = text({3, 6}, std::vector<std::string>(18, "t"));
  const Strings two = text({2, 6}, std::vector<std::string>(12, "t"));
  EXPECT_EQ(refused({{"weights", attn.view()}, {"src", &five}}),
            "a.npz: expected an array called attn (the weights, rows are queries; FILE:NAME "
            "names another), got weights float32 [2,6,6], src text [5]");
  EXPECT_EQ(refused({{"attn", attn.view()}}, {.name = "lost"}),
            "a.npz: expected an array called lost (the weights, rows are queries), got attn "
            "float32 [2,6,6]");
  EXPECT_EQ(refused({{"attn", attn.view()}, {"whole", whole.view()}}, {.name = "whole"}),
            "a.npz: whole must be float64, float32, bfloat16 or float16, got int64 [6,6]");
  EXPECT_EQ(refused({{"attn", &five}}),
            "a.npz: attn must be float64, float32, bfloat16 or float16, got text [5]");
  EXPECT_EQ(refused({{"attn", whole.view()}}),
            "a.npz: attn must be float64, float32, bfloat16 or float16, got int64 [6,6]");
  EXPECT_EQ(refused({{"attn", cube.view()}}),
            "a.npz: attn must have 2 to 5 axes (examples, layers, heads, queries, keys), got "
            "float32 [1,1,1,1,6,6]");
  EXPECT_NE(refused({{"attn", line.view()}}).find("must have 2 to 5 axes"), std::string::npos);
  EXPECT_EQ(refused({{"attn", empty.view()}}), "a.npz: attn must not be empty, got float32 [0,6]");
  EXPECT_EQ(refused({{"attn", attn.view()}, {"src", &five}}),
            "a.npz: src has 5 tokens but attn has 6 keys (attn [2,6,6])");
  EXPECT_EQ(refused({{"attn", attn.view()}, {"tgt", &five}}),
            "a.npz: tgt has 5 tokens but attn has 6 queries (attn [2,6,6])");
  EXPECT_EQ(refused({{"attn", attn.view()}, {"src", &scalar}}),
            "a.npz: src must be a list of 6 tokens, or one such list for each example, got text "
            "[]");
  EXPECT_EQ(refused({{"attn", attn.view()}, {"src", whole.view()}}),
            "a.npz: src must be text, one token for each of the 6 keys, got int64 [6,6]");
  EXPECT_EQ(refused({{"attn", attn.view()}, {"src", &three}}),
            "a.npz: src must have one list of tokens for each example, got 3 where attn has N = 1 "
            "(attn [2,6,6] read as heads, queries, keys)");
  EXPECT_EQ(refused({{"attn", attn.view()}, {"src", &two}}),
            "a.npz: src must have one list of tokens for each example, got 2 where attn has N = 1 "
            "(attn [2,6,6] read as heads, queries, keys); if the axes have another order, name it "
            "(--order)");
  EXPECT_EQ(refused({{"attn", attn.view()}, {"mask", attn.view()}}),
            "a.npz: mask must be bool or integers (0 = masked), got float32 [2,6,6]");
  EXPECT_NE(refused({{"attn", attn.view()}, {"mask", mask.view()}})
                .find("mask [5,6] does not broadcast to attn [2,6,6]"),
            std::string::npos);
}

}  // namespace
}  // namespace qkv::app
