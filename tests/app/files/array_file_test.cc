// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/array_file.h>
#include <qkv/error.h>

#include "tests/app/files/arrays.h"
#include "tests/app/files/files.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::counted;
using test::Directory;
using test::expect_same;
using test::some_arrays;
using test::views;
using Texts = std::vector<std::string>;

// The bytes of a .npy file of version 1 with a given dictionary in its header.
std::string npy(std::string dictionary, std::string_view data = "") {
  std::string bytes = "\x93NUMPY";
  bytes +=
      {'\1', '\0', static_cast<char>(dictionary.size()), static_cast<char>(dictionary.size() >> 8)};
  return bytes + dictionary + std::string(data);
}

constexpr DType kKinds[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBool,
                            DType::kInt8,    DType::kInt16,   DType::kInt32,   DType::kInt64,
                            DType::kUInt8,   DType::kUInt16,  DType::kUInt32,  DType::kUInt64};

TEST(Npy, EveryTypeAndRankRoundTrips) {
  const Directory directory;
  for (const DType dtype : kKinds) {
    for (const Dims& shape :
         {Dims(), Dims(5), Dims(2, 3), Dims(0), Dims(3, 0, 2), Dims(1, 2, 1, 2, 1, 2, 1, 2)}) {
      const Tensor want = counted(dtype, shape);
      write_npy(directory / "a.npy", want.view());
      SCOPED_TRACE(describe(want));
      expect_same(read_npy(directory / "a.npy"), want);
    }
  }
}

TEST(Npy, BytesAreThoseOfNumPy) {
  const Directory directory;
  const float values[] = {1, 2, 3};
  write_npy(directory / "a.npy", ConstView(values, {3}));
  std::string want =
      npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }" + std::string(60, ' ') + "\n",
          std::string_view("\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40", 12));
  EXPECT_EQ(test::read(directory / "a.npy"), want);
  EXPECT_EQ((want.size() - 12) % 64, 0U);
}

TEST(Npy, AnyStridesAreWrittenInCOrder) {
  const Directory directory;
  const Tensor x = counted(DType::kFloat32, {3, 4});
  for (const ConstView& view : {transpose(x.view(), 0, 1), slice(x.view(), 1, 3, 0, -1),
                                broadcast_to(slice(x.view(), 0, 0, 1), {5, 4})}) {
    write_npy(directory / "a.npy", view);
    expect_same(read_npy(directory / "a.npy"), contiguous(view));
  }
}

TEST(Npy, BFloat16BecomesFloat32) {
  const Directory directory;
  const Tensor x = counted(DType::kBFloat16, {4});
  write_npy(directory / "a.npy", x.view());
  expect_same(read_npy(directory / "a.npy"), convert(x, DType::kFloat32));
}

TEST(Npy, TextRoundTrips) {
  const Directory directory;
  for (const Strings& want : {Strings{{2, 2}, {"a", "héé", "", "中文 \U0001F600"}},
                              Strings{{}, {"alone"}}, Strings{{0}, {}}, Strings{{2}, {"", ""}}}) {
    write_npy(directory / "a.npy", &want);
    const auto got = std::get<Strings>(read_npy(directory / "a.npy"));
    EXPECT_EQ(got.shape, want.shape);
    EXPECT_EQ(got.values, want.values);
  }
}

// Texts may be longer than one read and have zeros that are not padding. Files of both byte orders
// are read.
TEST(Npy, LongTextRoundTrips) {
  const Directory directory;
  for (const std::size_t letters : {4095, 4096, 4097, 20000}) {
    const std::string zeros(letters, '\0');
    const Strings want{{3},
                       {zeros + "a", "b" + zeros + "c" + zeros + "d", std::string(letters, 'e')}};
    write_npy(directory / "a.npy", &want);
    std::string bytes = test::read(directory / "a.npy");
    EXPECT_EQ(std::get<Strings>(read_npy(directory / "a.npy")).values, want.values);
    const std::size_t data = bytes.find('\n') + 1;
    bytes[bytes.find("'<U") + 1] = '>';
    for (std::size_t at = data; at < bytes.size(); at += 4) {
      std::reverse(&bytes[at], &bytes[at] + 4);
    }
    const std::string other = directory.write("b.npy", bytes);
    EXPECT_EQ(std::get<Strings>(read_npy(other)).values, want.values);
  }
}

TEST(Npy, WhatNoFileCanHoldIsRefused) {
  const Directory directory;
  for (const Strings& strings :
       {Strings{{1}, {"\xFF"}}, Strings{{1}, {std::string("a\0", 2)}}, Strings{{2}, {"a"}}}) {
    EXPECT_THROW(write_npy(directory / "a.npy", &strings), Error);
  }
  EXPECT_THROW(write_npy(directory / "a.npy", Tensor(DType::kComplex128, {1}).view()), Error);
  EXPECT_EQ(directory.names(), Texts{});
}

// Headers with keys in another order, with long integers of Python 2, and of versions 2 and 3, in
// which the header's length takes four bytes.
TEST(Npy, OtherHeadersOfTheFormatAreRead) {
  const Directory directory;
  const std::string_view bytes("\1\2\3\4\5\6", 6);
  const std::string keys = "{'shape':(2,3),\"fortran_order\":False,'descr':'|i1'}";
  for (const std::string& file :
       {npy(keys, bytes),
        npy("{'descr': '|i1', 'fortran_order': False, 'shape': (2L, 3L), }\n", bytes),
        "\x93NUMPY\2" + std::string("\0", 1) + static_cast<char>(keys.size()) +
            std::string(3, '\0') + keys + std::string(bytes),
        "\x93NUMPY\3" + std::string("\0", 1) + static_cast<char>(keys.size()) +
            std::string(3, '\0') + keys + std::string(bytes)}) {
    const Array array = read_npy(directory.write("a.npy", file));
    EXPECT_EQ(std::get<Tensor>(array).view().at<std::int8_t>({1, 0}), 4);
  }
}

TEST(Npy, FortranOrderAndTheOtherByteOrderAreRead) {
  const Directory directory;
  const std::string_view bytes("\0\1\0\2\0\3\0\4\0\5\0\6", 12);
  const Array array = read_npy(directory.write(
      "a.npy", npy("{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }\n", bytes)));
  const Tensor& x = std::get<Tensor>(array);
  EXPECT_TRUE(x.view().is_contiguous());
  EXPECT_EQ(x.view().at<std::int16_t>({0, 1}), 3);
  EXPECT_EQ(x.view().at<std::int16_t>({1, 2}), 6);
}

TEST(Npy, BoolsAreZeroOrOne) {
  const Directory directory;
  const Array array = read_npy(
      directory.write("a.npy", npy("{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }\n",
                                   std::string_view("\0\1\xFF", 3))));
  Tensor want(DType::kBool, {3});
  want.values<bool>()[1] = want.values<bool>()[2] = true;
  expect_same(array, want);
}

TEST(Npy, RefusalsNameTheByte) {
  const Directory directory;
  const auto refusal = [&](const std::string& bytes) {
    const std::string path = directory.write("a.npy", bytes);
    const std::string text = complaint<InputError>([&] { read_npy(path); });
    return text.substr(std::min(text.size(), path.size()));
  };
  const auto with = [](const std::string& descr, const std::string& shape) {
    return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  };
  EXPECT_EQ(refusal(""), ": byte 0: expected a .npy file, got \"\"");
  EXPECT_EQ(refusal("PK\3\4 no array"), ": byte 0: expected a .npy file, got \"PK\\x03\\x04 no \"");
  EXPECT_EQ(refusal(std::string("\x93NUMPY\7\0..", 10)),
            ": byte 8: expected version 1, 2 or 3 of the .npy format, got 7");
  EXPECT_EQ(refusal(std::string("\x93NUMPY\2\0\xFF\xFF\xFF\x7F", 12)),
            ": byte 12: expected a header of at most 1048576 bytes, got 2147483647");
  EXPECT_EQ(refusal(npy(with("<f4", "(3,)"), "12345678")),
            ": byte 68: the file is truncated: expected 12 bytes of data for shape [3], got 8");
  EXPECT_EQ(refusal(std::string("\x93NUMPY\1", 7)),
            ": byte 0: the file is truncated: expected at least 8 bytes, got 7");
  EXPECT_EQ(refusal(npy(with("<f4", "(3,)"), "").substr(0, 40)),
            ": byte 40: the file is truncated: expected at least 68 bytes, got 40");
  EXPECT_EQ(refusal(npy(with("<f4", "(1,)"), "12345678")),
            ": byte 68: expected 4 bytes of data for shape [1], got 8");
  EXPECT_EQ(refusal(npy(with("<f4", "(4611686018427387904, 4)"))),
            ": byte 88: expected 2^63 or more bytes of data for shape [4611686018427387904,4], "
            "got 0");
  EXPECT_NE(refusal(npy(with("<f4", "(0, 4611686018427387904, 4)"))).find("2^63 or more"),
            std::string::npos);
  for (const char* descr : {"|O", "<c16", "<f16", "<M8[s]", "|V2", "", "f4", "<U-1", "<Ux"}) {
    EXPECT_NE(refusal(npy(with(descr, "(0,)"))).find("expected"), std::string::npos) << descr;
  }
  EXPECT_NE(refusal(npy(with("|O", "(1,)"), "\x80\4]")).find("np.array(texts, dtype=str)"),
            std::string::npos);
  EXPECT_NE(refusal(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (0,)}"))
                .find("expected one type for all elements, got a structured one"),
            std::string::npos);
  EXPECT_NE(refusal(npy(with("<U0", "(65537,)"))).find("at most 65536 empty texts"),
            std::string::npos);
  for (const char* shape : {"(1", "(-1,)", "1", "(1.5,)", "(1,,)", "()x", "(1,1,1,1,1,1,1,1,1)",
                            "(99999999999999999999,)", "None"}) {
    EXPECT_NE(refusal(npy(with("|i1", shape), "1")).find("expected"), std::string::npos) << shape;
  }
  EXPECT_NE(refusal(npy("{'descr': '|i1', 'shape': (1,), }", "1")).find("got fewer"),
            std::string::npos);
  EXPECT_NE(refusal(npy("{'descr': '|i1', 'descr': '|i1'}", "1")).find("each once"),
            std::string::npos);
  // A surrogate is not a character.
  EXPECT_NE(refusal(npy(with("<U1", "(1,)"), std::string_view("\0\xD8\0\0", 4))).find("Unicode"),
            std::string::npos);
}

// Every truncated file must be rejected. A file with one byte changed may be read or rejected.
TEST(Npy, DamagedFilesAreReadOrRefused) {
  const Directory directory;
  const Strings text{{2}, {"ab", "c"}};
  write_npy(directory / "a.npy", &text);
  const std::string whole = test::read(directory / "a.npy");
  const auto reader = [](const std::string& path) { read_npy(path); };
  EXPECT_EQ(test::read_though_cut<InputError>(directory, whole, reader), 0U);
}

TEST(Npz, StoredAndDeflatedRoundTrip) {
  const Directory directory;
  const auto want = some_arrays();
  for (const Compression compression : {Compression::kStored, Compression::kDeflated}) {
    write_npz(directory / "a.npz", views(want), compression);
    const auto got = read_npz(directory / "a.npz");
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].name, want[i].name);
      expect_same(got[i].array, want[i].array);
    }
  }
}

TEST(Npz, SameArraysSameBytes) {
  const Directory directory;
  const auto arrays = some_arrays();
  write_npz(directory / "a.npz", views(arrays));
  write_npz(directory / "b.npz", views(arrays));
  EXPECT_EQ(test::read(directory / "a.npz"), test::read(directory / "b.npz"));
  EXPECT_EQ(directory.names(), (Texts{"a.npz", "b.npz"}));
}

TEST(Npz, NoArraysAndEmptyOrEqualNamesAreRefused) {
  const Directory directory;
  const Tensor x = counted(DType::kFloat32, {1});
  for (const std::vector<NamedView>& arrays :
       {std::vector<NamedView>{}, std::vector<NamedView>{{"", x.view()}},
        std::vector<NamedView>{{"x", x.view()}, {"x", x.view()}}}) {
    EXPECT_THROW(write_npz(directory / "a.npz", arrays), Error);
  }
  EXPECT_EQ(directory.names(), Texts{});
}

TEST(Npz, DamagedArchivesAreReadOrRefused) {
  const Directory directory;
  std::vector<NamedArray> arrays;
  arrays.push_back({"x", counted(DType::kFloat32, {4})});
  for (const Compression compression : {Compression::kStored, Compression::kDeflated}) {
    write_npz(directory / "a.npz", views(arrays), compression);
    const std::string whole = test::read(directory / "a.npz");
    for (std::size_t length = 0; length < whole.size(); ++length) {
      const std::string path = directory.write("b.npz", whole.substr(0, length));
      const std::string text = complaint<InputError>([&] { read_npz(path); });
      if (length < 4) continue;  // the first bytes do not say that it is an archive
      EXPECT_TRUE(
          text.starts_with(path + ": the file is truncated: expected an .npz archive of at least "))
          << text;
      EXPECT_TRUE(text.ends_with(" bytes, got " + std::to_string(length))) << text;
      const std::size_t expected = std::stoul(text.substr(text.find("least ") + 6));
      EXPECT_GT(expected, length);
      EXPECT_LE(expected, whole.size());
    }
    int refused = 0;
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (const int change : {1, 0x80, 0xFF}) {
        std::string bytes = whole;
        bytes[at] = static_cast<char>(bytes[at] ^ change);
        try {
          read_npz(directory.write("b.npz", bytes));
        } catch (const InputError&) {
          ++refused;
        }
      }
    }
    // Archives with changed times, attributes and the like may be read. The checksum detects every
    // change of the data.
    EXPECT_GT(refused, static_cast<int>(whole.size()));
  }
}

TEST(Npz, AChangedNumberIsFound) {
  const Directory directory;
  const double values[] = {1234.5};
  write_npz(directory / "a.npz", std::vector<NamedView>{{"x", ConstView(values, {1})}});
  std::string bytes = test::read(directory / "a.npz");
  const std::string_view number(reinterpret_cast<const char*>(values), sizeof values);
  bytes[bytes.find(number) + 3] ^= 1;
  EXPECT_THROW(read_npz(directory.write("b.npz", bytes)), InputError);
}

// A member that claims to inflate to more than deflate can give is rejected before memory is
// allocated: here both of its headers say nearly 2^32 bytes.
TEST(Npz, InflationIsBounded) {
  const Directory directory;
  const Tensor x = counted(DType::kFloat64, {2});
  write_npz(directory / "a.npz", std::vector<NamedView>{{"x", x.view()}}, Compression::kDeflated);
  std::string bytes = test::read(directory / "a.npz");
  const std::size_t central = bytes.find("PK\1\2");
  for (const std::size_t size_field : {std::size_t{22}, central + 24}) {
    bytes.replace(size_field, 4, "\xF0\xFF\xFF\xFF");
  }
  EXPECT_NE(
      complaint<InputError>([&] { read_npz(directory.write("b.npz", bytes)); }).find("4294967280"),
      std::string::npos);
}

TEST(Npz, MissingFilesAreNamed) {
  const Directory directory;
  EXPECT_EQ(complaint<InputError>([&] { read_npz(directory / "none.npz"); }),
            directory / "none.npz" + ": No such file or directory");
  EXPECT_EQ(complaint<InputError>([&] { read_npz(directory / "."); }),
            directory / "." + ": expected a file, got a directory");
}

// With two names for the same bytes, an archive could claim many times its own size.
TEST(Npz, MembersMayNotShareTheirBytes) {
  const Directory directory;
  const Tensor x = counted(DType::kFloat32, {1000});
  write_npz(directory / "a.npz", std::vector<NamedView>{{"x", x.view()}, {"y", x.view()}});
  std::string bytes = test::read(directory / "a.npz");
  const std::size_t second = bytes.find("PK\3\4", 4);
  const std::size_t central = bytes.find("PK\1\2");
  const std::size_t central_of_y = bytes.find("PK\1\2", central + 4);
  ASSERT_NE(central_of_y, bytes.npos);
  bytes.replace(central_of_y + 42, 4, std::string(4, '\0'));  // y starts where x does
  bytes.replace(central_of_y + 46, 1, "x");                   // y has the name in x's header
  bytes.erase(second, central - second);                      // y's own bytes
  const std::size_t end = bytes.find("PK\5\6");
  const auto start = static_cast<std::uint32_t>(second);
  bytes.replace(end + 16, 4, std::string(reinterpret_cast<const char*>(&start), 4));
  EXPECT_THROW(read_npz(directory.write("b.npz", bytes)), InputError);
}

}  // namespace
}  // namespace qkv::app
