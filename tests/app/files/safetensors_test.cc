// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/array_file.h>
#include <qkv/error.h>

#include "files/text_json.h"
#include "tests/app/files/arrays.h"
#include "tests/app/files/files.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::counted;
using test::Directory;
using test::expect_same;
using test::views;
using Texts = std::vector<std::string>;

constexpr DType kKinds[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                            DType::kBool,    DType::kInt8,    DType::kInt16,   DType::kInt32,
                            DType::kInt64,   DType::kUInt8,   DType::kUInt16,  DType::kUInt32,
                            DType::kUInt64};

// The bytes of a file with a given header and data.
std::string safetensors(const std::string& header, const std::string& data = "") {
  const std::uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + data;
}

// One tensor's description in the header.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST(Safetensors, EveryTypeAndRankRoundTrips) {
  const Directory directory;
  for (const DType dtype : kKinds) {
    for (const Dims& shape :
         {Dims(), Dims(5), Dims(2, 3), Dims(0), Dims(3, 0, 2), Dims(1, 2, 1, 2, 1, 2, 1, 2)}) {
      const Tensor want = counted(dtype, shape);
      SCOPED_TRACE(describe(want));
      write_safetensors(directory / "a", std::vector<NamedView>{{"x", want.view()}});
      const auto got = read_safetensors(directory / "a");
      ASSERT_EQ(got.size(), 1U);
      EXPECT_EQ(got[0].name, "x");
      expect_same(got[0].array, want);
    }
  }
}

TEST(Safetensors, BytesAreThoseOfTheFormat) {
  const Directory directory;
  const float values[] = {1, 2};
  const Strings text{{2}, {"a", "\""}};
  write_safetensors(directory / "a",
                    std::vector<NamedView>{{"x", ConstView(values, {2})}, {"t", &text}});
  std::string header = R"({"__metadata__":{"t":"[\"a\",\"\\\"\"]"},"x":{"dtype":"F32","shape":[2],)"
                       R"("data_offsets":[0,8]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(test::read(directory / "a"),
            safetensors(header, std::string("\0\0\x80\x3f\0\0\0\x40", 8)));
}

// Names keep their order. The data is ordered by the width of elements, which aligns all elements
// without gaps.
TEST(Safetensors, WiderElementsStandFirst) {
  const Directory directory;
  std::vector<NamedArray> arrays;
  arrays.push_back({"b", counted(DType::kBool, {3})});
  arrays.push_back({"h", counted(DType::kBFloat16, {5})});
  arrays.push_back({"d", counted(DType::kFloat64, {2})});
  arrays.push_back({"f", counted(DType::kFloat32, {1})});
  write_safetensors(directory / "a", views(arrays));
  const std::string bytes = test::read(directory / "a");
  for (const char* offsets : {"[0,16]", "[16,20]", "[20,30]", "[30,33]"}) {
    EXPECT_NE(bytes.find(offsets), bytes.npos) << offsets;
  }
  EXPECT_EQ((bytes.size() - 33) % 8, 0U);
  const auto got = read_safetensors(directory / "a");
  test::expect_all(got, arrays);
}

TEST(Safetensors, AnyStridesAreWrittenInCOrder) {
  const Directory directory;
  const Tensor x = counted(DType::kFloat32, {3, 4});
  for (const ConstView& view : {transpose(x.view(), 0, 1), slice(x.view(), 1, 3, 0, -1),
                                broadcast_to(slice(x.view(), 0, 0, 1), {5, 4})}) {
    write_safetensors(directory / "a", std::vector<NamedView>{{"x", view}});
    expect_same(read_safetensors(directory / "a")[0].array, contiguous(view));
  }
}

TEST(Safetensors, TextRoundTrips) {
  const Directory directory;
  for (const Strings& want :
       {Strings{{2, 2}, {"a", "h\u00E9\"\\", "", "\u4E2D \U0001F600"}}, Strings{{}, {"alone"}},
        Strings{{0}, {}}, Strings{{2, 0}, {}}, Strings{{2}, {std::string("a\0b\n\0", 5), ""}},
        Strings{{1, 1, 1, 1, 1, 1, 1, 1}, {"deep"}}}) {
    write_safetensors(directory / "a", std::vector<NamedView>{{"t", &want}});
    const auto got = read_safetensors(directory / "a");
    ASSERT_EQ(got.size(), 1U);
    expect_same(got[0].array, want);
  }
}

TEST(Safetensors, WhatNoFileCanHoldIsRefused) {
  const Directory directory;
  const Tensor x = counted(DType::kFloat32, {1});
  const Tensor complex(DType::kComplex128, {1});
  const Strings bad{{1}, {"\xFF"}};
  const Strings few{{2}, {"a"}};
  const Strings hollow{{0, 3}, {}};
  const Strings endless{{Index{1} << 40, 0}, {}};  // 2^40 empty lists
  for (const std::vector<NamedView>& arrays :
       {std::vector<NamedView>{}, std::vector<NamedView>{{"", x.view()}},
        std::vector<NamedView>{{"x", x.view()}, {"x", x.view()}},
        std::vector<NamedView>{{"__metadata__", x.view()}},
        std::vector<NamedView>{{"x", complex.view()}}, std::vector<NamedView>{{"t", &bad}},
        std::vector<NamedView>{{"t", &few}}, std::vector<NamedView>{{"t", &hollow}},
        std::vector<NamedView>{{"t", &endless}}}) {
    EXPECT_THROW(write_safetensors(directory / "a", arrays), Error);
  }
  EXPECT_EQ(directory.names(), Texts{});
}

TEST(Safetensors, OtherMetadataIsPassedOver) {
  const Directory directory;
  const auto got = read_safetensors(directory.write(
      "a", safetensors(R"({"__metadata__":{"format":"pt","n":"[1]","u":"[[\"a\"],\"b\"]",)"
                       R"("x":"[\"hidden by the tensor\"]","t":"[\"a\"]"},)" +
                           entry("x", "U8", "[1]", "[0,1]") + "} \n ",
                       "\7")));
  ASSERT_EQ(got.size(), 2U);
  EXPECT_EQ(got[0].name, "x");
  EXPECT_EQ(got[1].name, "t");
  EXPECT_EQ(std::get<Strings>(got[1].array).values, Texts{"a"});
}

TEST(Safetensors, OnlyEvenlyNestedStringsAreText) {
  for (const char* json :
       {"", "a", "1", "null", "{}", "[1]", "[\"a\",1]", "[\"a\",[\"b\"]]", "[[\"a\"],\"b\"]",
        "[[\"a\"],[]]", "[[],[\"a\"]]", "[[],\"a\"]", "[[\"a\"],[\"b\",\"c\"]]", "[\"a\"",
        "[\"a\"]]", "[{\"a\":\"b\"}]", "[[[[[[[[[\"nine\"]]]]]]]]]", "[true]", "\"\xFF\""}) {
    EXPECT_FALSE(files::text_from_json(json)) << json;
  }
  EXPECT_EQ(files::text_from_json("[[\"a\"],[\"b\"],[\"c\"]]")->shape, Dims(3, 1));
  EXPECT_EQ(files::text_from_json(std::string(100000, '[')), std::nullopt);
}

// A tensor whose type is known, but not read, such as C64, must have the size that the format gives
// it. A tensor of an unknown type, such as I128, may have any size.
TEST(Safetensors, OtherTypesAreNamedAndPassedOver) {
  const Directory directory;
  const float values[] = {1, 2};
  const std::string data(reinterpret_cast<const char*>(values), sizeof values);
  const std::string header =
      entry("f8", "F8_E4M3", "[2,3]", "[8,14]") + "," + entry("x", "F32", "[2]", "[26,34]") + "," +
      entry("c", "C64", "[]", "[0,8]") + "," + entry("f4", "F4", "[3,2]", "[14,17]") + "," +
      entry("f6", "F6_E3M2", "[4]", "[17,20]") + "," + entry("u", "I128", "[5]", "[20,26]") + "," +
      entry("e", "F8_E8M0", "[0,7]", "[34,34]") + "," + entry("last", "U8", "[1]", "[34,35]");
  const std::string bytes =
      safetensors("{" + header + "}", std::string(26, '\1') + data + std::string(1, '\7'));
  const auto got = read_safetensors(directory.write("a", bytes));
  ASSERT_EQ(got.size(), 8U);
  Texts described;
  for (const NamedArray& array : got) described.push_back(array.name + " " + describe(array.array));
  EXPECT_EQ(described, (Texts{"f8 F8_E4M3 [2,3] (unsupported type)", "x float32 [2]",
                              "c C64 [] (unsupported type)", "f4 F4 [3,2] (unsupported type)",
                              "f6 F6_E3M2 [4] (unsupported type)", "u I128 [5] (unsupported type)",
                              "e F8_E8M0 [0,7] (unsupported type)", "last uint8 [1]"}));
  expect_same(got[1].array, contiguous(ConstView(values, {2})));
  EXPECT_EQ(std::get<Tensor>(got[7].array).values<std::uint8_t>()[0], 7);
}

// The tensor "a", which is passed over, is larger than the 64 KiB that skip() reads at a time.
TEST(Safetensors, LongTensorsOfOtherTypesArePassedOver) {
  const Directory directory;
  const std::string header = "{" + entry("a", "F8_E5M2", "[200000]", "[0,200000]") + "," +
                             entry("x", "U8", "[1]", "[200000,200001]") + "}";
  const std::string bytes = safetensors(header, std::string(200'000, '\1') + '\7');
  const auto got = read_safetensors(directory.write("a", bytes));
  EXPECT_EQ(std::get<Tensor>(got.at(1).array).values<std::uint8_t>()[0], 7);
}

std::string refusal(const std::string& bytes) {
  const Directory directory;
  const std::string path = directory.write("a", bytes);
  const std::string text = complaint<InputError>([&] { read_safetensors(path); });
  return text.substr(std::min(text.size(), path.size()));
}

TEST(Safetensors, RefusalsNameTheByte) {
  const std::string good = entry("x", "U8", "[2]", "[0,2]");
  EXPECT_EQ(refusal(""), ": byte 0: the file is truncated: expected at least 8 bytes, got 0");
  EXPECT_EQ(
      refusal(safetensors("{" + good + "}", "1")),
      ": byte 12: the file is truncated: expected at least 63 bytes, the end of \"x\", got 62");
  EXPECT_EQ(refusal(safetensors("{" + good + "}", "123")),
            ": byte 61: expected 2 bytes of data, got 3");
  EXPECT_EQ(refusal(safetensors("{}", "1")), ": byte 10: expected 0 bytes of data, got 1");
  EXPECT_EQ(refusal(std::string("\x10\0\0\0\0\0\0\0{}", 10)),
            ": byte 8: the file is truncated: expected at least 24 bytes, got 10");
  EXPECT_EQ(refusal(std::string(8, '\xFF') + "{}"),
            ": byte 8: expected a header of at most 100000000 bytes, got 9223372036854775807");
  EXPECT_EQ(refusal(safetensors("[]")),
            ": byte 8: expected a header that is a JSON object, got \"[]\"");
  EXPECT_EQ(refusal(safetensors(" {}")),
            ": byte 8: expected a header that is a JSON object, got \" {}\"");
}

TEST(Safetensors, LayoutsWithHolesOrOverlapAreRefused) {
  const auto two = [](const std::string& a, const std::string& b) {
    return refusal(safetensors(
        "{" + entry("a", "U8", "[2]", a) + "," + entry("b", "U8", "[2]", b) + "}", "1234"));
  };
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), text.npos) << text;
  };
  EXPECT_EQ(two("[2,4]", "[0,2]").find("expected"), std::string::npos);
  has(two("[0,2]", "[1,3]"), "expected data from offset 2 for \"b\", got 1");
  has(two("[0,2]", "[0,2]"), "expected data from offset 2 for \"b\", got 0");
  has(two("[1,3]", "[3,5]"), "expected data from offset 0 for \"a\", got 1");
  has(two("[0,2]", "[4,2]"), "expected data from offset 2 for \"b\", got 4");
  has(two("[0,2]", "[2,0]"), "expected 2 bytes of data for shape [2] for \"b\", got -2");
  has(two("[0,3]", "[3,4]"), "expected 2 bytes of data for shape [2] for \"a\", got 3");
  has(two("[0,2]", "[2,9223372036854775807]"), "expected 2 bytes of data for shape [2]");
  has(refusal(safetensors("{" + entry("a", "F64", "[0,4611686018427387904,4]", "[0,0]") + "}")),
      "2^63 or more");
  const auto one = [](const char* type, const char* shape, const char* offsets) {
    return refusal(safetensors("{" + entry("a", type, shape, offsets) + "}", "1234"));
  };
  has(one("F8_E4M3", "[3]", "[0,4]"), "expected 3 bytes of data for shape [3] for \"a\", got 4");
  has(one("C64", "[1]", "[0,4]"), "expected 8 bytes of data for shape [1] for \"a\", got 4");
  has(one("F6_E2M3", "[5]", "[0,4]"),
      "expected whole bytes of data for shape [5] for \"a\", got 4");
  has(one("F4", "[9223372036854775807]", "[0,4]"), "expected 2^63 or more bytes of data");
  has(one("I128", "[1]", "[0,5]"), "the file is truncated: expected at least ");
  has(one("I128", "[1]", "[0,3]"), "expected 3 bytes of data, got 4");
  has(refusal(safetensors(
          "{" + entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "I128", "[1]", "[2,1]") + "}",
          "12")),
      "expected data that ends at 2 or later for \"b\", got 1");
}

TEST(Safetensors, MalformedHeadersAreRefused) {
  const std::string good = entry("x", "U8", "[1]", "[0,1]");
  const auto refused = [](const std::string& header, const std::string& part) {
    const std::string text = refusal(safetensors(header, "1"));
    EXPECT_NE(text.find(": byte "), text.npos) << text;
    EXPECT_NE(text.find(part), text.npos) << header << "\n" << text;
  };
  refused("{" + good + "," + good + "}", "expected distinct names, got \"x\" twice");
  refused("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}," + good + "}", "\"a\" twice");
  refused("{\"__metadata__\":{},\"__metadata__\":{}," + good + "}", "twice");
  refused("{\"__metadata__\":{\"a\":1}," + good + "}",
          "expected text in the metadata \"a\", got 1");
  refused("{\"__metadata__\":{\"a\":{}}," + good + "}", "got deeper JSON");
  refused("{\"__metadata__\":{\"a\":[]}," + good + "}", "expected text in the metadata \"a\"");
  refused("{\"x\":1}", "expected an object that describes \"x\", got 1");
  refused(R"({"x":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})",
          "expected the name of a dtype for \"x\", got 8");
  refused("{" + entry("x", "U8", "[-1]", "[0,1]") + "}", "got -1");
  refused("{" + entry("x", "U8", "[1.0]", "[0,1]") + "}", "got 1.0");
  refused("{" + entry("x", "U8", "[18446744073709551615]", "[0,1]") + "}", "got 18446744073709551");
  refused("{" + entry("x", "U8", "[1e999]", "[0,1]") + "}", "expected JSON");
  refused("{" + entry("x", "U8", "[[1]]", "[0,1]") + "}", "expected a shape of sizes");
  refused("{" + entry("x", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", "at most 8 axes");
  refused("{" + entry("x", "U8", "1", "[0,1]") + "}", "got 1");
  refused("{" + entry("x", "U8", "null", "[0,1]") + "}", "got null");
  refused("{" + entry("x", "U8", "[1]", "[0]") + "}", "expected two data_offsets");
  refused("{" + entry("x", "U8", "[1]", "[0,1,2]") + "}", "expected two data_offsets");
  refused("{\"x\":{\"dtype\":\"U8\",\"shape\":[1]}}", "expected dtype, shape and data_offsets");
  refused("{\"x\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", "got \"dtype\"");
  refused("{\"x\":{\"strides\":[1]}}", "got \"strides\"");
  refused("{" + good + "} x", "expected JSON");
  refused("{" + good + ",}", "expected JSON");
  refused("{" + good + std::string("}\0x", 3), "expected JSON, got \"\\x00x\"");
  refused("{" + good, "expected JSON, got the end");
  refused("{\"\xFF\":1}", "expected JSON");
  refused("{" + std::string(100000, '['), "expected JSON");
  refused("{\"x\":" + std::string(100000, '['), "expected an object");
}

// Tensors are returned in the order of the file. The test would take minutes if the parser looked
// at all tensors again after each one.
TEST(Safetensors, ManyTensorsAreRead) {
  std::string header = "{\"__metadata__\":{}";
  for (int n = 0; n < 20000; ++n) {
    header += "," + entry("x" + std::to_string(n), "U8", "[0]", "[0,0]");
  }
  const Directory directory;
  const auto got = read_safetensors(directory.write("a", safetensors(header + "}")));
  ASSERT_EQ(got.size(), 20000U);
  EXPECT_EQ(got[2].name, "x2");  // "x10" precedes it in byte order
}

TEST(Safetensors, BoolsAreZeroOrOne) {
  const Directory directory;
  const auto got = read_safetensors(directory.write(
      "a",
      safetensors("{" + entry("x", "BOOL", "[3]", "[0,3]") + "}", std::string("\0\1\xFF", 3))));
  Tensor want(DType::kBool, {3});
  want.values<bool>()[1] = want.values<bool>()[2] = true;
  expect_same(got[0].array, want);
}

// Every truncated file must be rejected. A file with one byte changed may be read or rejected.
TEST(Safetensors, DamagedFilesAreReadOrRefused) {
  const Directory directory;
  const Strings text{{2}, {"ab", "c"}};
  const Tensor x = counted(DType::kFloat32, {3});
  const Tensor y = counted(DType::kFloat32, {2});
  write_safetensors(directory / "a",
                    std::vector<NamedView>{{"x", x.view()}, {"t", &text}, {"y", y.view()}});
  const std::string whole = test::with_unread(test::read(directory / "a"), "x");
  const auto reader = [](const std::string& path) { read_safetensors(path); };
  EXPECT_EQ(test::read_though_cut<InputError>(directory, whole, reader), 0U);
}

}  // namespace
}  // namespace qkv::app
