// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/array_file.h>
#include <qkv/app/translation_model.h>
#include <qkv/error.h>
#include <qkv/layers/parameters.h>

#include "tests/app/files/arrays.h"
#include "tests/app/files/files.h"
#include "tests/app/translator/small_model.h"
#include "translator/model/model_names.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Directory;
using test::small_model;
using test::Texts;

std::vector<TranslatedText> translated(const TranslationModel& model, const Texts& texts,
                                       const SearchOptions& options = {}) {
  Context context;
  return translate(model, texts, options, context);
}

TranslatedText translate_one(const TranslationModel& model, const std::string& text,
                             const SearchOptions& options = {}) {
  return std::move(translated(model, {text}, options)[0]);
}

void expect_same_parameters(const TranslationModel& a, const TranslationModel& b) {
  std::vector<const Tensor*> wanted;
  for_each_parameter(a.translator, [&](const auto& p) { wanted.push_back(&p.value); });
  std::size_t n = 0;
  for_each_parameter(b.translator, [&](const auto& p) {
    ASSERT_LT(n, wanted.size());
    const Tensor& want = *wanted[n++];
    ASSERT_EQ(p.value.shape(), want.shape()) << p.name;
    ASSERT_EQ(p.value.dtype(), want.dtype()) << p.name;
    const std::size_t bytes =
        static_cast<std::size_t>(want.element_count()) * size_of(want.dtype());
    EXPECT_EQ(std::string_view(static_cast<const char*>(p.value.view().data()), bytes),
              std::string_view(static_cast<const char*>(want.view().data()), bytes))
        << p.name;
  });
  EXPECT_EQ(n, wanted.size());
}

TEST(TranslationModel, EachTextIsTranslatedByItself) {
  const TranslationModel model = small_model();
  const Texts texts{"abcd", "a", "", "dcba abc", "a"};
  const auto together = translated(model, texts);
  ASSERT_EQ(together.size(), texts.size());
  for (std::size_t n = 0; n < texts.size(); ++n) {
    const TranslatedText alone = translate_one(model, texts[n]);
    EXPECT_EQ(together[n].text, alone.text) << n;
    EXPECT_EQ(together[n].log_probability, alone.log_probability) << n;
    EXPECT_EQ(together[n].source, alone.source) << n;
    EXPECT_EQ(together[n].target, alone.target) << n;
  }
}

TEST(TranslationModel, SaysWhatWasReadAndWritten) {
  const TranslationModel model = small_model();
  const TranslatedText text = translate_one(model, "a?d", {.most_tokens = 3});
  EXPECT_EQ(text.source, (Texts{"a", "?", "d", "</s>"}));  // an unknown token appears as typed
  ASSERT_TRUE(text.attention.given());
  EXPECT_EQ(text.attention.shape(), Dims(std::ssize(text.target), 4));
  EXPECT_LE(text.target.size(), 3U);
  EXPECT_EQ(text.is_whole, text.target.back() == "</s>");
  std::string joined;
  for (const std::string& token : text.target) joined += token == "</s>" ? "" : token;
  EXPECT_EQ(text.text, joined);
  EXPECT_LT(text.log_probability, 0);
}

TEST(TranslationModel, AnEmptyTextStaysEmpty) {
  TranslationModel model = small_model();
  const TranslatedText text = translate_one(model, "");
  EXPECT_EQ(text.text, "");
  EXPECT_EQ(text.log_probability, 0);
  EXPECT_TRUE(text.is_whole && text.source.empty() && text.target.empty());
  EXPECT_FALSE(text.attention.given());
  model.tokenizer = Tokenizer(Words{});
  EXPECT_TRUE(translate_one(model, " \t").target.empty());
}

TEST(TranslationModel, ReadsAsItsSettingsSay) {
  TranslationModel model = small_model();
  model.tokenizer = Tokenizer(Characters{}, LetterCase::kLower);
  EXPECT_EQ(translate_one(model, "AB").source, (Texts{"a", "b", "</s>"}));
  model.tokenizer = Tokenizer(Words{}, LetterCase::kLower);
  const TranslatedText text = translate_one(model, "A  b!", {.most_tokens = 2});
  EXPECT_EQ(text.source, (Texts{"a", "b", "!", "</s>"}));
  EXPECT_THROW(translated(model, {"\xFF"}), Error);
}

// A model that writes only unknown tokens.
TranslationModel unknowing_model(TranslatorAttention attention) {
  TranslationModel model = small_model({.attention = attention});
  for_each_parameter(model.translator, [](const BasicParameter<Tensor>& parameter) {
    if (parameter.name == "output.bias") {
      parameter.value.values<float>()[Vocabulary::kUnknown] += 100;
    }
  });
  return model;
}

TEST(TranslationModel, CopiesWhatItLookedAt) {
  TranslationModel model = unknowing_model(TranslatorAttention::kAdditive);
  model.tokenizer = Tokenizer(Words{}, LetterCase::kLower);
  model.style.words = {{"qed", "wrong"}};
  Context context;
  const Texts texts{"Qed XY b?"};
  const Texts typed{"Qed", "XY", "b", "?"};
  const auto run = [&](bool attention, UnknownTokens unknown) {
    const SearchOptions options{.most_tokens = 4, .attention = attention};
    return std::move(translate(model, texts, options, context, unknown)[0]);
  };
  const TranslatedText text = run(true, UnknownTokens::kCopied);
  ASSERT_EQ(text.target, Texts(4, "<unk>"));
  Texts looked;
  for (Index i = 0; i < 4; ++i) {
    const auto row = text.attention.values<float>().subspan(static_cast<std::size_t>(5 * i), 4);
    looked.push_back(typed[static_cast<std::size_t>(std::ranges::max_element(row) - row.begin())]);
  }
  EXPECT_EQ(text.text, model.tokenizer.join(looked));
  const TranslatedText again = run(false, UnknownTokens::kCopiedIfLooked);
  EXPECT_EQ(again.text, text.text);
  EXPECT_FALSE(again.attention.given());
  EXPECT_EQ(run(true, UnknownTokens::kKept).text, "<unk> <unk> <unk> <unk>");
}

TEST(TranslationModel, CopiesNothingWithoutAttention) {
  const TranslationModel model = unknowing_model(TranslatorAttention::kNone);
  EXPECT_EQ(translate_one(model, "ab", {.most_tokens = 2}).text, "<unk><unk>");
  Context context;
  const Texts texts{"ab"};
  EXPECT_THROW(translate(model, texts, {}, context, UnknownTokens::kCopied), Error);
}

TEST(TranslationModel, CharactersGetCapitalsToo) {
  int written = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    TranslationModel model = small_model({}, seed);
    model.style.sentences = SentenceStart::kCapital;
    const TranslatedText plain = translate_one(model, "abcd", {.most_tokens = 5});
    model.tokenizer = Tokenizer(Characters{}, LetterCase::kLower);
    const std::string lower = translate_one(model, "abcd", {.most_tokens = 5}).text;
    if (plain.target[0] == "</s>" || plain.target[0] == "<unk>") continue;
    ++written;
    EXPECT_EQ(plain.text[0] - 'a' + 'A', lower[0]);
    EXPECT_EQ(plain.text.substr(1), lower.substr(1));
  }
  EXPECT_GT(written, 0);
}

// The search's log-probability of its translation agrees with the loss.
TEST(TranslationModel, LossIsOfTheWholeTarget) {
  int whole = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const TranslationModel model = small_model({}, seed);
    const TranslatedText text = translate_one(model, "abc");
    if (!text.is_whole) continue;
    ++whole;
    Context context;
    const std::vector<TextPair> pairs{{"abc", text.text}, {"d", "vw"}};
    const TranslationLoss alone = loss(model, std::span(pairs).first(1), context);
    EXPECT_NEAR(alone.log_probability, text.log_probability, 1e-4);
    EXPECT_EQ(alone.tokens, std::ssize(text.target));
    EXPECT_EQ(loss(model, pairs, context).tokens, alone.tokens + 3);
  }
  EXPECT_GT(whole, 0);
}

TEST(ModelFile, ComesBack) {
  const Directory directory;
  for (const auto& attention : kTranslatorAttentions) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      SCOPED_TRACE(attention.name);
      const bool wide = dtype == DType::kFloat64;
      TranslationModel model =
          small_model({.attention = attention.value,
                       .encoder_layers = wide ? 3 : 1,
                       .tied_embeddings = wide ? TiedEmbeddings::kOutput : TiedEmbeddings::kNone,
                       .dropout = 0.3,
                       .label_smoothing = 0.05,
                       .dtype = dtype});
      model.tokenizer = Tokenizer(Words{}, LetterCase::kLower);
      model.style = {.spaces = {{"?", Spaces::kBoth},
                                {"(", Spaces::kBefore},
                                {"%", Spaces::kAfter},
                                {"+", Spaces::kNone}},
                     .words = {{"tom", "Tom"}, {"tv", "TV"}},
                     .sentences = SentenceStart::kCapital};
      model.longest_source = wide ? 70 : 0;
      write_model_file(directory / "m", model);
      const TranslationModel read = read_model_file(directory / "m");
      expect_same_parameters(read, model);
      EXPECT_EQ(read.translator.config().attention, attention.value);
      EXPECT_EQ(read.translator.config().heads, 2);
      EXPECT_EQ(read.translator.config().encoder_layers, model.translator.config().encoder_layers);
      EXPECT_EQ(read.translator.config().tied_embeddings,
                model.translator.config().tied_embeddings);
      EXPECT_EQ(read.translator.config().dropout, 0.3);
      EXPECT_EQ(read.translator.config().label_smoothing, 0.05);
      EXPECT_EQ(read.tokenizer.tokenization(), Tokenization::kWord);
      EXPECT_EQ(read.tokenizer.letters(), LetterCase::kLower);
      EXPECT_EQ(read.style, model.style);
      EXPECT_EQ(read.longest_source, model.longest_source);
      EXPECT_TRUE(std::ranges::equal(read.source.tokens(), model.source.tokens()));
      EXPECT_TRUE(std::ranges::equal(read.target.tokens(), model.target.tokens()));
    }
  }
}

TEST(ModelFile, MayBeInMemory) {
  const Directory directory;
  const TranslationModel model = small_model();
  write_model_file(directory / "m", model);
  const std::string bytes = test::read(directory / "m");
  expect_same_parameters(parse_model("memory", bytes), model);
  const auto refusal =
      complaint<InputError>([&] { parse_model("memory", bytes.substr(0, bytes.size() - 1)); });
  EXPECT_TRUE(refusal.starts_with("memory: byte ")) << refusal;
}

// One bit of the header is changed at a time, in every fifth byte: the file is either rejected or
// read.
TEST(ModelFile, DamagedHeadersAreReadOrRefused) {
  const Directory directory;
  write_model_file(directory / "m", small_model());
  const std::string whole = test::read(directory / "m");
  const std::size_t header = whole.find('}', whole.rfind("data_offsets"));
  int refused = 0;
  int tried = 0;
  for (std::size_t at = 0; at < header; at += 5, ++tried) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    try {
      parse_model("m", bytes);
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(tried, 200);
  EXPECT_GT(refused, tried / 2);
}

// A model file whose arrays and settings a test changes.
class Changed {
 public:
  Changed() {
    write_model_file(directory_ / "m", small_model());
    arrays_ = read_safetensors(directory_ / "m");
  }
  Array& operator[](std::string_view name) {
    return std::ranges::find(arrays_, name, &NamedArray::name)->array;
  }
  void remove(std::string_view name) {
    std::erase_if(arrays_, [&](const NamedArray& array) { return array.name == name; });
  }
  void add(const std::string& name, Array array) { arrays_.push_back({name, std::move(array)}); }
  void set(std::string_view setting, const std::string& value) {
    auto& texts = std::get<Strings>((*this)["settings"]).values;
    *(std::ranges::find(texts, setting) + 1) = value;
  }
  void add_setting(const std::string& setting, const std::string& value) {
    auto& texts = std::get<Strings>((*this)["settings"]);
    texts.shape = Dims(texts.shape[0] + 1, 2);
    texts.values.insert(texts.values.end(), {setting, value});
  }
  std::string refusal() {
    write_safetensors(directory_ / "m", test::views(arrays_));
    const std::string text = complaint<InputError>([&] { read_model_file(directory_ / "m"); });
    const std::string name = (directory_ / "m") + ": ";
    return text.starts_with(name) ? text.substr(name.size()) : text;
  }

 private:
  Directory directory_{};
  std::vector<NamedArray> arrays_{};
};

std::string refusal_after(const std::function<void(Changed&)>& change) {
  Changed changed;
  change(changed);
  return changed.refusal();
}

TEST(ModelFile, RefusalsSayWhatIsWrong) {
  EXPECT_EQ(refusal_after([](Changed&) {}), "no exception");
  EXPECT_EQ(refusal_after([](Changed& f) { f.remove("settings"); }),
            "expected a translator, got no settings");
  EXPECT_EQ(refusal_after([](Changed& f) { f.remove("output.bias"); }),
            "expected a translator, got no output.bias");
  EXPECT_EQ(refusal_after([](Changed& f) { f.add("more", Tensor(DType::kFloat32, {1})); }),
            "expected a translator's arrays, got \"more\" too");
  EXPECT_EQ(refusal_after([](Changed& f) { f["output.bias"] = Tensor(DType::kFloat32, {3}); }),
            "output.bias: expected float32 [9], got float32 [3]");
  EXPECT_EQ(refusal_after([](Changed& f) { f["output.bias"] = Tensor(DType::kFloat64, {9}); }),
            "output.bias: expected float32 [9], got float64 [9]");
  EXPECT_EQ(refusal_after([](Changed& f) { f["settings"] = Tensor(DType::kFloat64, {9}); }),
            "settings: expected text, got numbers");
  EXPECT_EQ(refusal_after([](Changed& f) { f["source_counts"] = Tensor(DType::kInt64, {3}); }),
            "source_counts: expected int64 of shape [n] like source_tokens, got int64 [3]");
  EXPECT_EQ(
      refusal_after([](Changed& f) { std::get<Strings>(f["source_tokens"]).values[1] = "a"; }),
      "Vocabulary: tokens must differ, got \"a\" twice");
}

TEST(ModelFile, NamesATypeThatIsNotRead) {
  const Directory directory;
  write_model_file(directory / "m", small_model());
  const std::string bytes = test::with_unread(test::read(directory / "m"), "output.bias");
  EXPECT_EQ(complaint<InputError>([&] { parse_model("m", bytes); }),
            "m: output.bias: expected numbers, got X32 [9] (unsupported type)");
}

// The file of a model without a style has no style array.
TEST(ModelFile, AnEmptyStyleIsNotWritten) {
  const Directory directory;
  write_model_file(directory / "m", small_model());
  EXPECT_EQ(test::read(directory / "m").find("style"), std::string::npos);
  EXPECT_EQ(read_model_file(directory / "m").style, TextStyle());
}

// Settings that models of earlier versions lack are not written if they have the implied value.
TEST(ModelFile, SettingsThatAreImpliedAreNotWritten) {
  const Directory directory;
  const auto writes = [&](const TranslatorConfig& config, const char* setting,
                          Index longest_source = 0) {
    TranslationModel model = small_model(config);
    model.longest_source = longest_source;
    write_model_file(directory / "m", model);
    const TranslationModel read = read_model_file(directory / "m");
    EXPECT_EQ(read.translator.config().encoder_layers, config.encoder_layers);
    EXPECT_EQ(read.translator.config().tied_embeddings, config.tied_embeddings);
    EXPECT_EQ(read.longest_source, longest_source);
    return test::read(directory / "m").find(setting) != std::string::npos;
  };
  EXPECT_FALSE(writes({}, "encoder_layers"));
  EXPECT_FALSE(writes({}, "tied_embeddings"));
  EXPECT_FALSE(writes({}, "longest_source"));
  EXPECT_TRUE(writes({.encoder_layers = 2}, "encoder_layers"));
  EXPECT_TRUE(writes({.tied_embeddings = TiedEmbeddings::kOutput}, "tied_embeddings"));
  EXPECT_TRUE(writes({}, "longest_source", 7));
  // Settings with the implied values can be read if a file has them.
  EXPECT_EQ(refusal_after([](Changed& f) {
              f.add_setting("encoder_layers", "1");
              f.add_setting("tied_embeddings", "none");
              f.add_setting("longest_source", "0");
            }),
            "no exception");
  EXPECT_EQ(refusal_after([](Changed& f) { f.add_setting("tied_embeddings", "both"); }),
            "tied_embeddings: unknown name \"both\"");
  EXPECT_EQ(refusal_after([](Changed& f) { f.add_setting("tied_embeddings", "output"); }),
            "readout.weight: expected float32 [8,22], got float32 [12,22]");
  EXPECT_EQ(refusal_after([](Changed& f) { f.add_setting("encoder_layers", "2"); }),
            "expected a translator, got no encoder.weight_ih_l1");
}

TEST(ModelFile, StylesAreChecked) {
  const auto refusal = [](const Texts& rows) {
    return refusal_after([&](Changed& f) {
      f.add("target_style", Strings{.shape = Dims(std::ssize(rows) / 2, 2), .values = rows});
    });
  };
  EXPECT_EQ(refusal({"word", "Tom", "spaces", "?", "sentence", "capital"}), "no exception");
  EXPECT_EQ(refusal({"word", "tom"}),
            "target_style: \"word\" \"tom\": expected a word with a capital");
  EXPECT_EQ(refusal({"word", "Tom", "word", "TOM"}),
            "target_style: \"word\" \"TOM\": is given twice");
  EXPECT_EQ(refusal({"spaces", "?", "no space", "?"}),
            "target_style: \"no space\" \"?\": is given twice");
  EXPECT_EQ(refusal({"font", "Arial"}), "target_style: \"font\" \"Arial\": unknown rule");
  EXPECT_EQ(refusal({"spaces", ""}), "target_style: \"spaces\" \"\": expected UTF-8 text");
  EXPECT_EQ(refusal({"sentence", "small"}),
            "target_style: \"sentence\" \"small\": expected \"capital\"");
  EXPECT_EQ(refusal_after([](Changed& f) { f.add("target_style", Tensor(DType::kInt64, {2})); }),
            "target_style: expected text, got numbers");
}

TEST(ModelFile, SettingsMustBeKnown) {
  EXPECT_EQ(refusal_after([](Changed& f) { f.set("attention", "cosine"); }),
            "attention: unknown name \"cosine\"");
  EXPECT_EQ(refusal_after([](Changed& f) { f.set("hidden", "6x"); }),
            "hidden: expected a number, got \"6x\"");
  EXPECT_EQ(refusal_after([](Changed& f) { std::get<Strings>(f["settings"]).values[0] = "x"; }),
            "settings: expected attention, got none");
  EXPECT_EQ(refusal_after([](Changed& f) { f.add_setting("new", "1"); }),
            "settings: unknown name \"new\"");
  EXPECT_EQ(refusal_after([](Changed& f) {
              auto& texts = std::get<Strings>(f["settings"]);
              texts.shape = Dims(2 * texts.shape[0]);
            }),
            "settings: expected shape [n,2], got [20]");
}

// Sizes far beyond the file's are refused before memory is allocated.
TEST(ModelFile, SizesAreThoseOfTheFile) {
  for (const char* name : {"hidden", "embedding", "units"}) {
    for (const char* size : {"9223372036854775807", "100000", "0", "-1"}) {
      const std::string text = refusal_after([&](Changed& f) { f.set(name, size); });
      EXPECT_TRUE(text.starts_with(std::string(name) + ": expected parameters of that size"))
          << name << " " << size << ": " << text;
    }
  }
  for (const char* layers : {"9223372036854775807", "100000", "0", "-1"}) {
    const std::string text =
        refusal_after([&](Changed& f) { f.add_setting("encoder_layers", layers); });
    EXPECT_TRUE(text.starts_with("encoder_layers: expected parameters of that size")) << text;
  }
  // The file has too few numbers for the readout (embedding x embedding and more), but enough for
  // the embeddings of the tokens.
  const std::string tied = refusal_after([](Changed& f) {
    f.add_setting("tied_embeddings", "output");
    f.set("embedding", "60");
    f.set("hidden", "1");
    f.set("units", "1");
  });
  EXPECT_TRUE(tied.starts_with("embedding: expected parameters of that size")) << tied;
  EXPECT_NE(refusal_after([](Changed& f) { f.set("hidden", "7"); }).find("expected float32"),
            std::string::npos);
  EXPECT_NE(refusal_after([](Changed& f) { f.set("dropout", "2"); }).find("dropout"),
            std::string::npos);
}

}  // namespace
}  // namespace qkv::app
