// SPDX-License-Identifier: Apache-2.0
// Document 001's wide form on a sentence with a word that comes twice.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/qkv.h>

#include "tests/seeds/listings.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

// Rows 0 and 4 of x [1,6,50] are "the".
void expect_equal_words_equal_rows(const Tensor& x) {
  MultiHeadAttention layer(
      {.width = 50, .heads = 8, .form = HeadForm::kWide, .dtype = DType::kFloat64});
  initialise(layer, 21);
  RunState run;
  MultiHeadAttention::Saved saved;
  Tensor out = zeros({1, 6, 50});
  layer.forward({x, x, x}, run, saved, {.out = out});
  const WideForm form = literal_wide_form(x, layer.parameters());

  const auto row = [](const Tensor& y, Index i) { return slice(ConstView(y), 1, i, i + 1); };
  // The library gives equal words equal rows, and another word another row.
  EXPECT_TRUE(compare("row 4", row(out, 4), values_of(row(out, 0)), {}, "the and the"));
  EXPECT_FALSE(compare("row 1", row(out, 1), values_of(row(out, 0)), {1e-3, 1e-3}, "cat and the"));
  // The listing agrees if it merges heads as the document means it.
  EXPECT_TRUE(compare("out", out, values_of(form.meant), {1e-12, 1e-13}, "meant"));
  // The listing as typed mixes positions with heads.
  EXPECT_FALSE(compare("row 4", row(form.literal, 4), values_of(row(form.literal, 0)), {1e-3, 1e-3},
                       "the and the, as typed"));
  EXPECT_FALSE(compare("out", out, values_of(form.literal), {1e-3, 1e-3}, "as typed"));
}

TEST(WideForm, GivesEqualWordsEqualRows) {
  Tensor x = any({1, 6, 50}, 20);
  copy(slice(ConstView(x), 1, 0, 1), slice(x.view(), 1, 4, 5));
  expect_equal_words_equal_rows(x);
}

// ---- with the vectors that the document uses ----------------------------------------------------

std::filesystem::path vectors_file() {
  const char* const directory = std::getenv("QKV_DATA_DIR");
  const std::filesystem::path data =
      directory != nullptr ? std::filesystem::path(directory)
                           : std::filesystem::path(QKV_SOURCE_DIR) / ".." / "shared" / "data";
  return data / "glove.6B.50d.top5050.txt";
}

// The vectors of the words, [1,words,50]; nothing if a word has none.
std::optional<Tensor> vectors_of(const std::vector<std::string>& words, std::ifstream& file) {
  std::map<std::string, std::vector<double>> found;
  for (const std::string& word : words) found[word];
  for (std::string line; std::getline(file, line);) {
    const auto entry = found.find(line.substr(0, line.find(' ')));
    if (entry == found.end()) continue;
    std::istringstream numbers(line.substr(entry->first.size()));
    for (double number = 0; numbers >> number;) entry->second.push_back(number);
  }
  Tensor x = zeros({1, static_cast<Index>(words.size()), 50});
  Index i = 0;
  for (const std::string& word : words) {
    const std::vector<double>& vector = found[word];
    if (vector.size() != 50) return std::nullopt;
    copy(ConstView(vector), slice(x.view(), 1, i, i + 1));
    ++i;
  }
  return x;
}

TEST(WideForm, GivesEqualWordsEqualRowsWithGloVe) {
  std::ifstream file(vectors_file());
  if (!file) {
    GTEST_SKIP() << "no real word vectors: " << vectors_file().filename()
                 << " is neither in QKV_DATA_DIR nor in ../shared/data beside the checkout";
  }
  // The document has "walks", which is not among these vectors.
  const auto x = vectors_of({"the", "cat", "walked", "on", "the", "street"}, file);
  ASSERT_TRUE(x.has_value());
  EXPECT_EQ(x->view().at<double>({0, 0, 0}), 0.418);    // the
  EXPECT_EQ(x->view().at<double>({0, 5, 0}), 0.10499);  // street
  expect_equal_words_equal_rows(*x);
}

}  // namespace
}  // namespace qkv::test
