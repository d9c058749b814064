// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <zlib.h>

#include <qkv/app/page.h>
#include <qkv/error.h>
#include <qkv/tensor.h>

#include "page/json_text.h"
#include "page/map_code.h"
#include "page/map_facts.h"
#include "page/packed.h"
#include "page/page_code.h"
#include "tests/app/files/files.h"
#include "tests/app/picture/pictures.h"

namespace qkv::app {
namespace {

using page::MapCode;
using page::NumberForm;
using test::complaint;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// ---- a reader of the formats, written from their description in app/page ------------------------

std::string from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0;
  int count = 0;
  for (const char digit : text) {
    if (digit == '=') break;
    bits = bits << 6U | static_cast<unsigned>(digits.find(digit));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> static_cast<unsigned>(count) & 255U);
  }
  return bytes;
}

std::string inflated(const std::string& text) {
  std::string packed = from_base64(text);
  std::string bytes(1 << 20, '\0');
  z_stream stream{};
  inflateInit2(&stream, -15);
  stream.next_in = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  bytes.resize(stream.total_out);
  inflateEnd(&stream);
  return bytes;
}

// Decodes exact numbers: the lowest byte of every number, then the next byte of every number, ...
template <class Number>
std::vector<double> from_planes(const std::string& bytes) {
  const std::size_t count = bytes.size() / sizeof(Number);
  std::vector<double> numbers;
  for (std::size_t n = 0; n < count; ++n) {
    std::array<char, sizeof(Number)> one{};
    for (std::size_t byte = 0; byte < sizeof(Number); ++byte) one[byte] = bytes[byte * count + n];
    numbers.push_back(static_cast<double>(std::bit_cast<Number>(one)));
  }
  return numbers;
}

// Decodes the form kSteps. The code kCodeSmall, of a number near 0 but not 0, is read as `small`.
std::vector<double> from_steps(const std::string& bytes, const MapCode& code, double small) {
  std::vector<double> numbers;
  std::size_t at = 0;
  const auto next = [&] { return static_cast<unsigned>(static_cast<unsigned char>(bytes[at++])); };
  while (at < bytes.size()) {
    unsigned value = next();
    if (value == 255) {
      value = page::kTwoBytes;
      for (const unsigned shift : {16U, 8U, 0U}) value += next() << shift;
    } else if (value >= page::kOneByte) {
      value = page::kOneByte + (value - page::kOneByte) * 256 + next();
    }
    const double kinds[] = {0, small, kNan, kInfinity, -kInfinity};
    if (value < page::kCodeFirst) {
      numbers.push_back(kinds[value]);
      continue;
    }
    const unsigned n = value - page::kCodeFirst;
    const bool negative = code.signs && n % 2 == 1;
    const double steps = code.signs ? n / 2 + 1 : n + 1;
    numbers.push_back((negative ? -steps : steps) * code.step);
  }
  return numbers;
}

// The text of the <script> element with an id.
std::string element(const std::string& document, const std::string& id) {
  const std::size_t begin = document.find("id=\"" + id + "\">");
  if (begin == std::string::npos) return "there is no " + id;
  const std::size_t from = document.find('>', begin) + 1;
  return document.substr(from, document.find("</script>", from) - from);
}

// A page that shows one map, [Tq,Tk].
Page page_of(const ConstView& map) {
  Page page;
  page.layers = {""};
  page.heads = {""};
  page.examples.push_back({.weights = reshape(map, {1, 1, map.size(0), map.size(1)})});
  return page;
}

void expect_same(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t n = 0; n < want.size(); ++n) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>(got[n]), std::bit_cast<std::uint64_t>(want[n]))
        << n << ": " << got[n];
  }
}

// ---- the formats ----------------------------------------------------------------------------

TEST(PageFormats, Base64) {  // the examples of RFC 4648, section 10
  const char* const texts[] = {"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
  for (std::size_t size = 0; size <= 6; ++size) {
    EXPECT_EQ(page::base64(std::string_view("foobar").substr(0, size)), texts[size]);
  }
  EXPECT_EQ(page::base64(std::string_view("\xff\xfe\x00", 3)), "//4A");
  EXPECT_EQ(page::from_hex("00ff7a"), std::string("\0\xff\x7a", 3));
}

TEST(PageFormats, DeflatedTextIsInflated) {
  std::string bytes;
  for (Index n = 0; n < 100000; ++n) bytes += static_cast<char>(n * n % 251);
  EXPECT_EQ(inflated(page::deflated(bytes)), bytes);
  EXPECT_EQ(inflated(page::deflated("")), "");
}

TEST(PageFormats, ExactNumbers) {
  const std::vector<double> numbers{0, -0.0, 1, 0.1F, -1e-45F, kInfinity, -kInfinity, 3.4e38F};
  expect_same(from_planes<float>(page::coded(numbers, {NumberForm::kFloat32})), numbers);
  const std::vector<double> wide{0.1, 5e-324, -1e308, kNan};
  expect_same(from_planes<double>(page::coded(wide, {NumberForm::kFloat64})), wide);
}

TEST(PageFormats, StepsOfEverySize) {
  for (const bool signs : {false, true}) {
    const MapCode code{NumberForm::kSteps, 0.5, kInfinity, signs};
    std::vector<double> numbers{0, kInfinity, -kInfinity};
    for (int steps = 1; steps < 65535; steps += steps < 20000 ? 1 : 97) {
      numbers.push_back(steps * 0.5);
      if (signs) numbers.push_back(-steps * 0.5);
    }
    expect_same(from_steps(page::coded(numbers, code), code, 7), numbers);
  }
}

// A masked number beyond `most` has the code of infinity, so that the step need not grow.
TEST(PageFormats, MaskedNumbersBeyondTheOthers) {
  const MapCode code{NumberForm::kSteps, 0.5, 10, false};
  const std::vector<double> numbers{1e30, 10, -3, 0.5};
  expect_same(from_steps(page::coded(numbers, code), code, 7), {kInfinity, 10, -kInfinity, 0.5});
}

TEST(PageFormats, RoundedNumbers) {
  const MapCode code{NumberForm::kSteps, 0.01, kInfinity, false};
  const std::vector<double> got =
      from_steps(page::coded(std::vector{0.004, 0.0051, 0.0149, 0.9949, 1e-300}, code), code, 7);
  const std::vector<double> want{7, 0.01, 0.01, 0.99, 7};
  expect_same(got, want);
  EXPECT_EQ(code.error(), 0.005);
  EXPECT_TRUE(std::isnan(from_steps(page::coded(std::vector{kNan}, code), code, 7)[0]));
}

TEST(PageFormats, Bits) {
  const bool bits[] = {true, false, false, true, false, false, false, true, false, true};
  EXPECT_EQ(page::coded_bits(bits), "\x89\x02");
}

TEST(PageFormats, JsonEndsNoElement) {
  EXPECT_EQ(page::json_of("</script><!-- \"\\&\xff\n"),
            "\"\\u003c/script\\u003e\\u003c!-- \\\"\\\\\\u0026\uFFFD↵\"");
  EXPECT_EQ(page::json_of(kNan), "null");
  EXPECT_EQ(page::json_of(0.1), "0.1");
  EXPECT_EQ(page::html_of("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
}

// ---- facts and thumbnails -------------------------------------------------------------------

TEST(PageFacts, OfOneMap) {
  Tensor map(DType::kFloat32, {3, 2});
  const float numbers[] = {0.5F, 0.5F, 1, 0, -2, NAN};
  std::copy(std::begin(numbers), std::end(numbers), map.values<float>().begin());
  Tensor allowed(DType::kBool, {3, 2});
  for (bool& open : allowed.values<bool>()) open = true;
  allowed.values<bool>()[2] = false;  // the 1 is masked
  const page::MapFacts facts = page::facts_of(page::Map(map.view(), allowed.view()));
  EXPECT_EQ(facts.lowest, -2);
  EXPECT_EQ(facts.highest, 0.5);
  EXPECT_EQ(facts.magnitude, 2);
  EXPECT_TRUE(facts.has_negative);
  EXPECT_EQ(facts.rows, 2);  // the row with NaN has no sum
  EXPECT_NEAR(facts.entropy, std::log(2.0) / 2, 1e-15);
  EXPECT_EQ(facts.first, 0.75);
}

TEST(PageFacts, ThumbnailOfLargestNumbers) {
  Tensor map(DType::kFloat64, {64, 33});
  Tensor allowed(DType::kBool, {64, 33});
  for (bool& open : allowed.values<bool>()) open = true;
  const auto number = [&](std::size_t i, std::size_t j) -> double& {
    return map.values<double>()[i * 33 + j];
  };
  number(1, 0) = 0.25;  // the thumbnail's row 0 covers rows 0 and 1
  number(3, 0) = kNan;
  number(4, 32) = 1;  // the last column has two keys, 31 and 32
  for (const std::size_t i : {6, 7}) allowed.values<bool>()[i * 33] = false;
  const std::string bytes = page::thumbnail(page::Map(map.view(), allowed.view()), 1, false);
  ASSERT_EQ(bytes.size(), 32U * 32U);
  const auto byte = [&](std::size_t i, std::size_t j) {
    return static_cast<unsigned>(static_cast<unsigned char>(bytes[i * 32 + j]));
  };
  EXPECT_EQ(byte(0, 0), 3U + 126U);  // the root of 0.25 is the middle
  EXPECT_EQ(byte(1, 0), 2U);
  EXPECT_EQ(byte(2, 31), 255U);
  EXPECT_EQ(byte(3, 0), 0U);
  EXPECT_EQ(byte(3, 1), 1U);
}

// ---- the document ---------------------------------------------------------------------------

TEST(Page, HoldsTheNumbers) {
  const Tensor map = test::likely_weights(3, 4, 1);
  const std::string document = draw_page(page_of(map));
  const std::vector<double> got = from_planes<float>(inflated(element(document, "map-0-0-0")));
  const Tensor exact = convert(map.view(), DType::kFloat64);
  const auto want = exact.values<double>();
  expect_same(got, {want.begin(), want.end()});
}

TEST(Page, EqualPagesAreEqualBytes) {
  const Tensor map = test::likely_weights(5, 4, 1);
  const Tensor turned = contiguous(permute(map.view(), {1, 0}));
  const std::string document = draw_page(page_of(map));
  EXPECT_EQ(draw_page(page_of(map)), document);
  Page strided = page_of(map);
  strided.examples[0].weights =
      ConstView(turned.view().data(), turned.dtype(), {1, 1, 5, 4}, {1, 1, 1, 5});
  EXPECT_EQ(draw_page(strided), document);
}

TEST(Page, CodeIsSmallAndSelfContained) {
  const std::size_t code = page::kTemplate.size() + page::kStyle.size() + page::kScript.size();
  EXPECT_LE(code, 61000U);  // bytes, which every page holds
  EXPECT_EQ(page::kScript.find("</script"), std::string_view::npos);
  EXPECT_EQ(page::kScript.find("<!--"), std::string_view::npos);
  EXPECT_EQ(page::kStyle.find("</style"), std::string_view::npos);
  for (const std::string_view word : {"innerHTML", "eval(", "new Function", "http:", "https:"}) {
    const std::size_t at = page::kScript.find(word);
    // The only address is the namespace of SVG.
    const bool is_name =
        word == "http:" && page::kScript.substr(at).starts_with("http://www.w3.org/2000/svg");
    EXPECT_TRUE(at == std::string_view::npos || is_name) << word;
    EXPECT_EQ(page::kTemplate.find(word), std::string_view::npos) << word;
  }
}

TEST(Page, TokensEndNoElement) {
  const Tensor map = test::likely_weights(2, 2, 1);
  Page plain = page_of(map);
  Page hostile = plain;
  plain.examples[0].keys = {"a", "b"};
  hostile.examples[0].keys = {"</script><script>alert(1)</script>", "<!--"};
  hostile.examples[0].notes = {"</style>"};
  hostile.title = "</title><script>";
  hostile.name = "{{data}}";
  const auto count = [](const std::string& document, const std::string& part) {
    int times = 0;
    for (std::size_t at = 0; (at = document.find(part, at)) != std::string::npos; ++at) ++times;
    return times;
  };
  const std::string document = draw_page(hostile);
  for (const char* part : {"<script", "</script", "<!--", "</style", "</title"}) {
    EXPECT_EQ(count(document, part), count(draw_page(plain), part)) << part;
  }
}

TEST(Page, MasksAreStoredOnce) {
  const Tensor maps = test::likely_weights(6, 4, 1);  // two layers, three heads of 1 x 4
  Tensor allowed(DType::kBool, {2, 3, 1, 4});
  for (std::size_t n = 0; n < 24; ++n) allowed.values<bool>()[n] = n < 12 || n % 4 > 0;
  Page page = page_of(maps);
  page.layers = {"layer 0", "layer 1"};
  page.heads = {"head 0", "head 1", "head 2"};
  page.examples[0].weights = reshape(maps.view(), {2, 3, 1, 4});
  page.examples[0].allowed = allowed.view();
  const std::string masks = element(draw_page(page), "mask-0");
  EXPECT_EQ(inflated(masks.substr(0, masks.find('\n'))), "\x0f");
  EXPECT_EQ(inflated(masks.substr(masks.find('\n') + 1)), "\x0e");
}

TEST(Page, LargePagesAreRounded) {
  Tensor maps(DType::kFloat32, {1, 5, 512, 512});
  for (float& number : maps.values<float>()) number = 0.25F;
  maps.values<float>()[0] = 0.5F;
  Page page;
  page.layers = {""};
  page.heads = {"0", "1", "2", "3", "4"};
  page.examples.push_back({.weights = maps.view()});
  const std::string document = draw_page(page);
  EXPECT_NE(document.find("\"form\":\"steps\""), std::string::npos);
  const MapCode code{NumberForm::kSteps, 0.5 / 65534, kInfinity, false};
  const std::string lines = element(document, "map-0-0-0");
  const std::vector<double> got = from_steps(inflated(lines.substr(0, lines.find('\n'))), code, 7);
  ASSERT_EQ(got.size(), 512U * 512U);
  EXPECT_NEAR(got[0], 0.5, code.error());
  EXPECT_NEAR(got[1], 0.25, code.error());
}

TEST(Page, RefusesInvalidPages) {
  const Tensor maps = test::likely_weights(4, 4, 1);
  const auto said = [](const Page& page) { return complaint<Error>([&] { draw_page(page); }); };
  const Page good = page_of(maps);
  EXPECT_EQ(said({}), "draw_page: examples must be at least one");
  Page page = good;
  page.examples[0].weights = {};
  EXPECT_EQ(said(page), "draw_page: examples[0].weights is absent");
  page.examples[0].weights = maps.view();
  EXPECT_EQ(
      said(page),
      "draw_page: examples[0].weights must be maps [L,H,Tq,Tk] with a cell, got float32 [4,4]");
  page = good;
  page.heads = {"a", "b"};
  EXPECT_EQ(said(page), "draw_page: examples[0].weights must be [1,2,4,4], got [1,1,4,4]");
  page = good;
  page.examples[0].allowed = page.examples[0].weights;
  EXPECT_EQ(said(page), "draw_page: examples[0].allowed must hold bool, got float32 [1,1,4,4]");
  page = good;
  page.examples[0].keys = {"a"};
  EXPECT_EQ(said(page), "draw_page: examples[0].keys must be 4 tokens or none, got 1");
  page.examples[0].keys = {};
  page.examples[0].query_indices = {1, 2};
  EXPECT_EQ(said(page), "draw_page: examples[0].query_indices must be 4 indices or none, got 2");
  page = good;
  page.examples.push_back(page.examples[0]);
  page.examples[1].other = page.examples[0].weights;
  EXPECT_EQ(said(page), "draw_page: examples[1].other must be given for all examples or for none");
}

TEST(Page, RefusesTooManyCells) {
  const float weight = 0;
  const auto said = [&](Index queries, Index keys) {
    Page page;
    page.layers = {""};
    page.heads = {""};
    page.examples.push_back({.weights = ConstView(&weight, {1, 1, queries, keys}, {0, 0, 0, 0})});
    return complaint<Error>([&] { draw_page(page); });
  };
  EXPECT_EQ(
      said(2, 10001),
      "draw_page: examples[0].weights must have at most 10000 queries or keys; got 2 x 10001");
  EXPECT_EQ(said(9600, 5001),
            "draw_page: examples must have at most 48000000 cells, got 48009600: select or reduce");
}

TEST(Page, CanBeStopped) {
  const Tensor map = test::likely_weights(2, 2, 1);
  const std::atomic<bool> stop{true};
  EXPECT_THROW(draw_page(page_of(map), &stop), Cancelled);
}

}  // namespace
}  // namespace qkv::app
