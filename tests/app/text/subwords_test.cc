// SPDX-License-Identifier: Apache-2.0
// Tests of subword pieces, learned from real sentences and read from untrusted bytes.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/array_file.h>
#include <qkv/app/subwords.h>
#include <qkv/app/tokenizer.h>
#include <qkv/app/translation_model.h>
#include <qkv/app/utf8.h>
#include <qkv/error.h>
#include <qkv/layers/parameters.h>

#include "tests/app/files/arrays.h"
#include "tests/app/files/data_file.h"
#include "tests/app/files/files.h"
#include "text/subword_model.h"
#include "text/subword_text.h"
#include "text/text.h"
#include "translator/model/model_names.h"

namespace qkv::app {
namespace {

using test::complaint;
using Texts = std::vector<std::string>;

Subwords learned(const Texts& texts, const SubwordOptions& options) {
  std::size_t n = 0;
  const auto next = [&]() -> std::optional<std::string> {
    return n < texts.size() ? std::optional(texts[n++]) : std::nullopt;
  };
  return train_subwords(next, options);
}

// A few sentences, repeated, since rare characters are not learned but left to the byte pieces.
Texts sentences() {
  Texts texts;
  for (int n = 0; n < 20; ++n) {
    for (const char* text : {"Hello, Tom!", "How are you?", "Hello again, and again.", "Ça va ?",
                             "Tom walks and talks; we walked and talked."}) {
      texts.emplace_back(text);
    }
  }
  return texts;
}

Subwords small(SubwordAlgorithm algorithm = SubwordAlgorithm::kUnigram) {
  return learned(sentences(), {.vocabulary = 290, .algorithm = algorithm});
}

SubwordModel model_of(const Subwords& subwords) { return parse_subword_model(subwords.bytes()); }

TEST(Subwords, TextComesBack) {
  for (const auto& [name, algorithm] : kSubwordAlgorithms) {
    SCOPED_TRACE(name);
    const Subwords subwords = small(algorithm);
    for (const char* text :
         {"Hello, Tom!", "Ça va ?", "“quoted”", "  ", "a", ".", "<s> </s> <unk> <pad> <0xC3>",
          "👩‍👩‍👧 中文", "cafe\u0301", "ﬁ ½ Å"}) {
      EXPECT_EQ(subwords.join(subwords.split(text)), with_single_blanks(text));
    }
    EXPECT_EQ(subwords.join(subwords.split("\ta \u202F\u00A0b\n\x1B")), "a b");
    EXPECT_EQ(subwords.join(subwords.split("a\u2581b")), "a b") << "SentencePiece's blank";
    for (const char* text : {"\u2581a \u2581b\u2581", "a\uFEFFb", "\uFEFF a\uFEFF b \uFEFF"}) {
      EXPECT_EQ(subwords.join(subwords.split(text)), "a b") << quoted(text);
      EXPECT_EQ(subwords.split(text), subwords.split("a b")) << quoted(text);
    }
    EXPECT_EQ(subwords.join(subwords.split("a\u200Bb \u200D")), "a\u200Bb \u200D");
    EXPECT_TRUE(subwords.split("").empty());
    for (const char* text : {" \t\u3000", "\u200B", "\uFEFF", "\u200D \u200C", "\u2581"}) {
      EXPECT_TRUE(subwords.split(text).empty()) << quoted(text);
    }
    EXPECT_THROW(static_cast<void>(subwords.split("\xFF")), Error);
  }
}

TEST(Subwords, WhatWasNotLearnedIsBytes) {
  const Subwords subwords = small();
  EXPECT_EQ(subwords.split("中"), (Texts{"▁", "<0xE4>", "<0xB8>", "<0xAD>"}));
  EXPECT_EQ(subwords.join(Texts{"▁", "<0xE4>", "<0xB8>", "a"}), "\uFFFD\uFFFDa");
  const Vocabulary vocabulary = subwords.vocabulary();
  for (const char* text : {"中😀", "<unk>", "Hello"}) {
    for (const std::int32_t id : vocabulary.encode(subwords.split(text))) {
      EXPECT_NE(id, Vocabulary::kUnknown) << text;
    }
  }
  EXPECT_EQ(subwords.join(Texts{"▁a", "<unk>"}), "a<unk>");
}

// A lower-case model reads pieces of the lowered text, which may be cut elsewhere than the typed
// text, so split_as_typed() returns the pieces that the model reads.
TEST(Subwords, TypedTextIsSplitAsItIsRead) {
  const Tokenizer tokenizer(small(), LetterCase::kLower);
  EXPECT_EQ(tokenizer.join(tokenizer.split("“HELLO, Tom")), "\"hello, tom");
  EXPECT_EQ(tokenizer.split_as_typed("中 A"), tokenizer.split("中 a"));
}

TEST(Subwords, AreNumberedAsSentencePieceDoes) {
  const Subwords subwords = small();
  const Vocabulary vocabulary = subwords.vocabulary();
  ASSERT_EQ(vocabulary.size(), 290);
  EXPECT_EQ(vocabulary.token(4), "<0x00>");
  EXPECT_EQ(vocabulary.token(259), "<0xFF>");
  const SubwordModel model = model_of(subwords);
  ASSERT_EQ(model.pieces.size(), 30U);
  for (std::size_t n = 0; n < model.pieces.size(); ++n) {
    EXPECT_EQ(vocabulary.token(260 + static_cast<std::int32_t>(n)), model.pieces[n].text);
    EXPECT_TRUE(n == 0 || model.pieces[n - 1].score >= model.pieces[n].score);
  }
}

// Training is repeatable, and the two algorithms learn different pieces.
TEST(Subwords, AreLearnedTheSameEachTime) {
  for (const auto& [name, algorithm] : kSubwordAlgorithms) {
    EXPECT_EQ(small(algorithm).bytes(), small(algorithm).bytes()) << name;
    EXPECT_EQ(model_of(small(algorithm)).algorithm, algorithm);
  }
  EXPECT_NE(model_of(small(SubwordAlgorithm::kBpe)).pieces[3].text,
            model_of(small()).pieces[3].text);
}

TEST(Subwords, SaysHowManyThereMayBe) {
  for (const auto& [name, algorithm] : kSubwordAlgorithms) {
    SCOPED_TRACE(name);
    const auto refusal = [&, kind = algorithm](Index vocabulary) {
      return complaint<Error>(
          [&] { learned(sentences(), {.vocabulary = vocabulary, .algorithm = kind}); });
    };
    // The limits in the messages are exact.
    const auto limit = [](const std::string& text, std::string_view before) {
      const std::size_t at = text.find(before);
      EXPECT_NE(at, text.npos) << text;
      return at == text.npos ? 0 : std::stol(text.substr(at + before.size()));
    };
    const Index most = limit(refusal(100000), "vocab must be at most ");
    EXPECT_EQ(refusal(100000), "train_subwords: vocab must be at most " + std::to_string(most) +
                                   " for this text, got 100000");
    EXPECT_EQ(refusal(most), "no exception");
    EXPECT_NE(refusal(most + 1), "no exception");
    const Index least = limit(refusal(270), "vocab must be at least ");
    EXPECT_EQ(refusal(270), "train_subwords: vocab must be at least " + std::to_string(least) +
                                " for the characters of this text, got 270");
    EXPECT_EQ(refusal(least), "no exception");
    EXPECT_NE(refusal(least - 1), "no exception");
    for (const Index wrong : {Index{-1}, Index{0}, Index{260}, Index{1} << 40}) {
      EXPECT_EQ(refusal(wrong), "train_subwords: vocab must be from 261 to 1000000000, got " +
                                    std::to_string(wrong));
    }
  }
}

TEST(Subwords, AreNotLearnedFromNothing) {
  EXPECT_THROW(learned({}, {}), Error);
  EXPECT_THROW(learned({"", " \t"}, {}), Error);
  EXPECT_THROW(learned({"a", "\xFF"}, {}), Error);
  std::atomic<bool> stop = true;
  EXPECT_THROW(train_subwords([] { return std::optional<std::string>("a"); }, {}, &stop),
               Cancelled);
}

// SentencePiece gives special meaning to some of these texts.
TEST(Subwords, AreLearnedFromAnyText) {
  const Texts unusual{"<s> </s> <unk>", "<0x41><0x41> <0x41>",  "▁ ▁▁",      "⁇ ▅ \uFFFD",
                      "\u2047\u2585",   std::string(3000, 'a'), "a\tb\x01 c"};
  Texts texts;
  for (int n = 0; n < 20; ++n) texts.insert(texts.end(), unusual.begin(), unusual.end());
  for (const auto& [name, algorithm] : kSubwordAlgorithms) {
    SCOPED_TRACE(name);
    int successes = 0;
    for (const Index vocabulary : {262, 265, 270, 280}) {
      try {
        const Subwords subwords = learned(texts, {vocabulary, algorithm});
        EXPECT_EQ(subwords.join(subwords.split("<s>a ⁇")), "<s>a ⁇");
        ++successes;
      } catch (const Error& error) {
        EXPECT_EQ(error.argument(), "vocab") << error.what();
      }
    }
    EXPECT_GT(successes, 0);
  }
}

// SentencePiece ends the process when it learns BPE from a word of more than 2^15 characters, so
// train_subwords() cuts long words.
TEST(Subwords, WordsMayBeLong) {
  std::string word;
  for (std::uint32_t n = 1; word.size() < 40000; n = n * 69069 + 1) {
    word +=
        n % 97 == 0 ? std::string("é") : std::string(1, static_cast<char>('a' + (n >> 24) % 10));
  }
  for (const auto& [name, algorithm] : kSubwordAlgorithms) {
    const Subwords subwords = learned({"a " + word}, {290, algorithm});
    EXPECT_EQ(subwords.join(subwords.split(word + " " + word)), word + " " + word) << name;
  }
}

TEST(Subwords, MayBeUsedByThreadsTogether) {
  const Subwords subwords = small();
  const Texts want = subwords.split("Tom walks and talks");
  int same[2] = {0, 0};
  const auto work = [&, copy = subwords](int which) {
    for (int n = 0; n < 200; ++n) {
      const Texts got = copy.split("Tom walks and talks");
      if (got == want && copy.join(got) == "Tom walks and talks") ++same[which];
    }
  };
  std::thread other(work, 0);
  work(1);
  other.join();
  EXPECT_EQ(same[0] + same[1], 400);
}

// ---- bytes of a file ----------------------------------------------------------------------------

std::string refusal_of(std::string_view bytes) {
  return complaint<Error>([&] { Subwords{bytes}; });
}

TEST(SubwordModel, OnlyWhatIsTrainedHereIsRead) {
  const std::string good = small().bytes();
  EXPECT_EQ(refusal_of(good), "no exception");
  const std::string other =
      "Subwords: bytes must be a SentencePiece model as qkv trains it, got something else";
  EXPECT_EQ(refusal_of(""), other);
  EXPECT_EQ(refusal_of(std::string(1000, '\xFF')), other);
  // Further fields that SentencePiece would read: a text that it encodes on loading
  // (self_test_data), a table that it follows without a check (precompiled_charsmap, in a second
  // normalizer_spec and in a denormalizer_spec), another piece, and another algorithm (model_type,
  // in a second trainer_spec).
  const std::string spec("\x1A\x06\x12\x04\xFF\xFF\xFF\x7F", 8);
  for (const std::string& more :
       {std::string("\x22\x02\x0A\x00", 4), spec, std::string("\x2A") + spec.substr(1),
        std::string("\x0A\x03\x0A\x01z", 5), std::string("\x12\x02\x18\x02", 4)}) {
    EXPECT_EQ(refusal_of(good + more), other);
  }
}

TEST(SubwordModel, TruncationIsRecognised) {
  for (const auto& [name, algorithm] : kSubwordAlgorithms) {
    SCOPED_TRACE(name);
    const std::string good = small(algorithm).bytes();
    for (std::size_t length = 1; length < good.size(); ++length) {
      const std::string text = refusal_of(good.substr(0, length));
      if (text == "Subwords: bytes must have learned pieces, got none") continue;
      const std::string begin =
          "Subwords: bytes must be a whole model, but are truncated: expected at least ";
      ASSERT_TRUE(text.starts_with(begin)) << length << ' ' << text;
      EXPECT_TRUE(text.ends_with(", got " + std::to_string(length))) << text;
      const std::size_t expected = std::stoul(text.substr(begin.size()));
      EXPECT_GT(expected, length);
      EXPECT_LE(expected, good.size());
    }
  }
}

TEST(SubwordModel, PiecesAreChecked) {
  const auto refusal = [](const std::function<void(std::vector<LearnedPiece>&)>& change) {
    SubwordModel model = model_of(small());
    change(model.pieces);
    return refusal_of(bytes_of(model));
  };
  EXPECT_EQ(refusal([](auto& pieces) { pieces[1].text = ""; }),
            "Subwords: bytes must have pieces of UTF-8 text, got \"\"");
  EXPECT_EQ(refusal([](auto& pieces) { pieces[1].text = "a\xC3"; }),
            "Subwords: bytes must have pieces of UTF-8 text, got \"a\\xc3\"");
  for (const std::string& text : {std::string("a b"), std::string("a\0b", 3)}) {
    EXPECT_EQ(refusal([&](auto& pieces) { pieces[1].text = text; }),
              "Subwords: bytes must have pieces without white space, got " + app::quoted(text));
  }
  for (const std::string& text : {std::string("<s>"), std::string("<0x41>")}) {
    EXPECT_EQ(refusal([&](auto& pieces) { pieces[1].text = text; }),
              "Subwords: bytes must have pieces that differ, got " + app::quoted(text) + " twice");
  }
  EXPECT_EQ(refusal([](auto& pieces) {
              pieces[2] = {"zz", std::numeric_limits<float>::quiet_NaN()};
            }),
            "Subwords: bytes must have scores from -1000000000 to 1000000000, got nan of \"zz\"");
  EXPECT_EQ(refusal([](auto& pieces) {
              pieces[2] = {"zz", 1e38F};
            }),
            "Subwords: bytes must have scores from -1000000000 to 1000000000, got 1e+38 of \"zz\"");
  EXPECT_EQ(refusal([](auto& pieces) { pieces.clear(); }),
            "Subwords: bytes must have learned pieces, got none");
  // Pieces that were not learned here but are valid are accepted.
  EXPECT_EQ(refusal([](auto& pieces) {
              pieces = {{std::string(16, 'a'), 1e9F}, {"aa", -1e9F}, {"▁▁", 0}};
            }),
            "no exception");
  for (const std::size_t length : {17U, 1000000U}) {
    EXPECT_EQ(refusal([&](auto& pieces) { pieces[2].text = std::string(length, 'a'); }),
              "Subwords: bytes must have pieces of at most 16 characters, got one of " +
                  std::to_string(length));
  }
}

// Damaged bytes are rejected, or are a model that splits any text.
TEST(SubwordModel, DamagedBytesAreReadOrRefused) {
  for (const auto& [name, algorithm] : kSubwordAlgorithms) {
    const std::string whole = small(algorithm).bytes();
    int refused = 0;
    int read = 0;
    for (std::size_t at = 0; at < whole.size(); ++at) {
      if (at > 200 && at + 1500 < whole.size() && at % 16 != 0) continue;  // byte pieces are alike
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
      try {
        const Subwords subwords{bytes};
        EXPECT_TRUE(from_utf8(subwords.join(subwords.split("Hello, Tom! 中"))).has_value());
        ++read;
      } catch (const Error&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, read) << name;
    EXPECT_GT(read, 20) << name;
  }
}

// ---- the model file -----------------------------------------------------------------------------

TranslationModel model_with(const Subwords& subwords, LetterCase letters) {
  const Vocabulary pieces = subwords.vocabulary();
  TranslationModel model{Translator({.source_tokens = pieces.size(),
                                     .target_tokens = pieces.size(),
                                     .embedding = 4,
                                     .hidden = 6,
                                     .units = 5}),
                         pieces, pieces, Tokenizer(subwords, letters)};
  initialise(model.translator, 1);
  return model;
}

TEST(SubwordModel, IsPartOfTheModelFile) {
  const test::Directory directory;
  for (const auto& [name, algorithm] : kSubwordAlgorithms) {
    const TranslationModel model = model_with(small(algorithm), LetterCase::kLower);
    write_model_file(directory / "m", model);
    const TranslationModel read = read_model_file(directory / "m");
    EXPECT_EQ(read.tokenizer.tokenization(), Tokenization::kSubword);
    EXPECT_EQ(read.tokenizer.letters(), LetterCase::kLower);
    EXPECT_EQ(std::get<Subwords>(read.tokenizer.units()).bytes(), small(algorithm).bytes());
    for (const Vocabulary* side : {&read.source, &read.target}) {
      EXPECT_TRUE(std::ranges::equal(side->tokens(), model.source.tokens()));
    }
    Context context;
    const Texts texts{"Hello, Tom! 中", " "};
    const auto a = translate(model, texts, {}, context);
    const auto b = translate(read, texts, {}, context);
    EXPECT_EQ(a[0].text, b[0].text);
    Texts pieces = std::get<Subwords>(read.tokenizer.units()).split("hello, tom! 中");
    pieces.emplace_back("</s>");
    EXPECT_EQ(b[0].source, pieces);
    EXPECT_TRUE(b[1].target.empty());
  }
}

TEST(SubwordModel, MustFitItsFile) {
  const test::Directory directory;
  const TranslationModel model = model_with(small(), LetterCase::kKept);
  write_model_file(directory / "m", model);
  const auto refusal = [&](const std::function<void(std::vector<NamedArray>&)>& change) {
    std::vector<NamedArray> arrays = read_safetensors(directory / "m");
    change(arrays);
    write_safetensors(directory / "changed", test::views(arrays));
    const std::string text = complaint<InputError>([&] { read_model_file(directory / "changed"); });
    const std::string name = (directory / "changed") + ": ";
    return text.starts_with(name) ? text.substr(name.size()) : text;
  };
  const auto with_bytes = [&](const std::string& bytes) {
    return refusal([&](std::vector<NamedArray>& arrays) {
      Tensor tensor(DType::kUInt8, {std::ssize(bytes)});
      std::copy(bytes.begin(), bytes.end(), tensor.values<std::uint8_t>().begin());
      std::ranges::find(arrays, "subwords", &NamedArray::name)->array = std::move(tensor);
    });
  };
  EXPECT_EQ(refusal([](auto&) {}), "no exception");
  EXPECT_EQ(refusal([](auto& arrays) {
              std::erase_if(arrays, [](const auto& array) { return array.name == "subwords"; });
            }),
            "expected a translator, got no subwords");
  EXPECT_EQ(refusal([](auto& arrays) {
              std::ranges::find(arrays, "subwords", &NamedArray::name)->array =
                  Tensor(DType::kFloat32, {3});
            }),
            "subwords: expected uint8 of shape [n], got float32 [3]");
  EXPECT_EQ(with_bytes(small().bytes() + "x"),
            "Subwords: bytes must be a SentencePiece model as qkv trains it, got something "
            "else");
  SubwordModel fewer = model_of(small());
  fewer.pieces.pop_back();
  EXPECT_EQ(with_bytes(bytes_of(fewer)),
            "source_embedding.weight: expected float32 [289,4], got float32 [290,4]");
  EXPECT_EQ(refusal([](auto& arrays) {
              arrays.push_back({"source_tokens", Strings{{1}, {"a"}}});
            }),
            "expected a translator's arrays, got \"source_tokens\" too");
}

// ---- real text ----------------------------------------------------------------------------------

// The pieces are learned from every 20th line of the corpus that `shared/data/SOURCES.md`
// describes. Another fifth of the lines must come back, except for one in a thousand.
TEST(Subwords, RealSentencesComeBack) {
  const std::string path = test::data_file("tatoeba-eng-fra.tsv");
  std::ifstream file(path);
  if (!file) GTEST_SKIP() << "no " << path << " (set QKV_DATA_DIR)";
  Texts texts;
  Texts sides[2];
  std::string line;
  for (int n = 0; std::getline(file, line); ++n) {
    const std::size_t tab = line.find('\t');
    if (tab == line.npos) continue;
    for (const int side : {0, 1}) {
      std::string text = side == 0 ? line.substr(0, tab) : line.substr(tab + 1);
      if (n % 20 == 0) texts.push_back(as_read(text, LetterCase::kKept));
      if (n % 5 == 1) sides[side].push_back(std::move(text));
    }
  }
  for (const auto& [name, algorithm] : kSubwordAlgorithms) {
    const Tokenizer tokenizer(learned(texts, {2000, algorithm}));
    for (const Texts& side : sides) {
      std::size_t same = 0;
      std::size_t pieces = 0;
      for (const std::string& text : side) {
        const Texts tokens = tokenizer.split(text);
        pieces += tokens.size();
        if (tokenizer.join(tokens) == with_single_blanks(straight_quotes(text))) ++same;
      }
      const double share = static_cast<double>(same) / static_cast<double>(side.size());
      EXPECT_GE(share, 0.999) << name << ", " << side[0];
      std::printf("%s: %.3f %% of %zu lines, %.2f pieces each\n", std::string(name).c_str(),
                  100 * share, side.size(),
                  static_cast<double>(pieces) / static_cast<double>(side.size()));
    }
  }
}

}  // namespace
}  // namespace qkv::app
