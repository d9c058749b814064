// SPDX-License-Identifier: Apache-2.0
// Tests the parts of training: micro-batches, validation, the differences of two configurations.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>

#include "ranks/collective.h"
#include "tests/app/files/files.h"
#include "tests/app/translator/translators.h"
#include "tests/layers/support.h"
#include "tests/ranks/thread_ranks.h"
#include "translator/model/model_names.h"
#include "translator/passes/parallel.h"
#include "translator/training/batch_gradients.h"
#include "translator/training/training_settings.h"
#include "translator/training/translation_run.h"
#include "translator/training/validation.h"

namespace qkv::app {
namespace {

using app::TokenPair;
using test::all_bytes;
using test::random_translator;
using test::small_config;
using test::Tokens;

// Sentence pairs of 1 to 6 tokens and an end token, in the vocabularies of small_config().
struct Pairs {
  explicit Pairs(int count) {
    std::mt19937 random(11);
    const auto draw = [&](std::uint32_t size) {
      Tokens tokens(1 + random() % 6);
      for (auto& token : tokens) token = 3 + static_cast<std::int32_t>(random() % (size - 3));
      tokens.push_back(2);
      return tokens;
    };
    for (int n = 0; n < count; ++n) {
      encoded.source.push_back(draw(7));
      encoded.target.push_back(draw(6));
      list.push_back(encoded.pair(n));
    }
  }
  EncodedPairs encoded{};
  std::vector<TokenPair> list{};
};

TEST(Shards, LeaveEnoughPairsInEach) {
  const std::pair<Index, Index> known[] = {{1, 1},   {63, 1},  {64, 2},  {127, 2}, {128, 4},
                                           {255, 4}, {256, 8}, {500, 8}, {2000, 8}};
  for (const auto& [pairs, shards] : known) EXPECT_EQ(shard_count(pairs), shards) << pairs;
}

// The test covers every network, so that tied parameters are included.
TEST(Shards, AddUpToTheBatch) {
  for (const test::Network& network : test::kEveryNetwork) {
    app::TranslatorConfig config =
        with(small_config(test::TranslatorAttention::kAdditive), network);
    config.dropout = 0;
    app::Translator translator = random_translator(config);
    const Pairs pairs(150);  // four micro-batches of unequal sizes
    ranks::OneRank alone;
    BatchGradients batch(translator, Executor(), nullptr, alone);
    batch.compute(Pairs(300).list, 5, 1);  // previous contents do not matter
    const app::TranslationLoss got = batch.compute(pairs.list, 5, 1);

    app::TranslatorGradients whole = translator.zero_gradients();
    RunState run{Mode::kTrain};
    Context context;
    const app::TranslationLoss want =
        translator.loss_and_gradients(pairs.list, run, whole, context);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss);
    EXPECT_NEAR(got.log_probability, want.log_probability, -1e-12 * want.log_probability);
    for (const app::TrainedParameter& p : app::trained_parameters(translator, whole)) {
      bool found = false;
      for (const app::TrainedParameter& q : batch.list(translator)) {
        if (q.name != p.name) continue;
        found = true;
        ASSERT_EQ(q.value.data(), p.value.data());
        for (Index n = 0; n < p.gradient.element_count(); ++n) {
          const double a = p.gradient.as<double>()[n];
          EXPECT_NEAR(q.gradient.as<double>()[n], a, 1e-11 * (1 + std::abs(a)))
              << p.name << ", " << test::replay_of(config);
        }
      }
      EXPECT_TRUE(found) << p.name;
    }
  }
}

// The bytes of all gradients, which are float32.
std::vector<std::uint8_t> gradients_of(const std::vector<app::TrainedParameter>& parameters) {
  std::vector<std::uint8_t> all;
  for (const app::TrainedParameter& p : parameters) {
    const auto* bytes = static_cast<const std::uint8_t*>(p.gradient.data());
    all.insert(all.end(), bytes, bytes + p.gradient.element_count() * 4);
  }
  return all;
}

// The bytes of the loss and gradients of a batch of `count` sentence pairs. 200 pairs are four
// micro-batches with more target tokens than the output layer computes at a time.
std::vector<std::uint8_t> gradient_bytes(const Executor& executor, std::uint64_t seed, Index update,
                                         const test::Network& network, Ranks& ranks,
                                         int count = 200) {
  app::Translator translator = random_translator(
      with(small_config(test::TranslatorAttention::kDot, DType::kFloat32), network));
  const Pairs pairs(count);
  BatchGradients batch(translator, executor, nullptr, ranks);
  batch.compute(Pairs(300).list, 1, 7);  // previous contents do not matter
  const app::TranslationLoss loss = batch.compute(pairs.list, seed, update);
  std::vector<std::uint8_t> all = gradients_of(batch.list(translator));
  const auto bytes = std::bit_cast<std::array<std::uint8_t, sizeof(loss.loss)>>(loss.loss);
  all.insert(all.end(), bytes.begin(), bytes.end());
  return all;
}
std::vector<std::uint8_t> gradient_bytes(const Executor& executor, std::uint64_t seed, Index update,
                                         const test::Network& network = {}) {
  ranks::OneRank alone;
  return gradient_bytes(executor, seed, update, network, alone);
}

TEST(Shards, HaveTheSameBitsOnAnyThreads) {
  for (const test::Network& network : test::kEveryNetwork) {
    const auto serial = gradient_bytes(Executor(), 5, 3, network);
    for (const int threads : {2, 3, 5}) {
      EXPECT_EQ(serial, gradient_bytes(Executor::threads(threads), 5, 3, network)) << threads;
    }
  }
}

// The batches have from one micro-batch, which one rank computes, to eight. Each message between
// ranks is delayed at random.
TEST(Shards, HaveTheSameBitsOnAnyRanks) {
  for (const test::Network& network : test::kEveryNetwork) {
    for (const int count : {20, 70, 200, 300}) {
      ranks::OneRank alone;
      const auto want = gradient_bytes(Executor(), 5, 3, network, alone, count);
      for (const int ranks : {2, 3, 4, 7, 9}) {
        test::ThreadRanks::run(ranks, {.most_delay_us = 100}, [&](Ranks& mine) {
          const Executor executor = Executor::threads(mine.rank() % 2 + 1);
          EXPECT_EQ(want, gradient_bytes(executor, 5, 3, network, mine, count))
              << "rank " << mine.rank() << " of " << ranks << ", " << count << " pairs";
        });
      }
    }
  }
}

// The ranks sum the gradients of this vocabulary in three parts, the last of which is short.
TEST(Shards, HaveTheSameBitsOnAnyRanksWithManyTokens) {
  for (const bool is_tied : {false, true}) {
    app::TranslatorConfig config = small_config(test::TranslatorAttention::kDot, DType::kFloat32);
    config.target_tokens = 1030;
    if (is_tied) config.tied_embeddings = app::TiedEmbeddings::kOutput;
    const auto gradients = [&](Ranks& ranks) {
      app::Translator translator = random_translator(config);
      BatchGradients batch(translator, Executor(), nullptr, ranks);
      batch.compute(Pairs(150).list, 5, 3);
      return gradients_of(batch.list(translator));
    };
    ranks::OneRank alone;
    const auto want = gradients(alone);
    for (const int ranks : {2, 3}) {
      test::ThreadRanks::run(ranks, {.most_delay_us = 100},
                             [&](Ranks& mine) { EXPECT_EQ(want, gradients(mine)) << is_tied; });
    }
  }
}

TEST(Shards, DrawDropoutBySeedAndUpdate) {
  const auto one = gradient_bytes(Executor(), 5, 3);
  EXPECT_NE(one, gradient_bytes(Executor(), 6, 3));
  EXPECT_NE(one, gradient_bytes(Executor(), 5, 4));
}

// Two micro-batches of equal sentence pairs must draw different dropout.
TEST(Shards, DrawDifferentDropout) {
  app::TranslatorConfig config = small_config(test::TranslatorAttention::kAdditive);
  config.dropout = 0.5;
  const app::Translator translator = random_translator(config);
  const Pairs once(32);
  std::vector<TokenPair> pairs = once.list;
  pairs.insert(pairs.end(), once.list.begin(), once.list.end());
  ranks::OneRank alone;
  BatchGradients batch(translator, Executor(), nullptr, alone);
  const double one = batch.compute(once.list, 5, 3).loss;
  EXPECT_NE(batch.compute(pairs, 5, 3).loss, 2 * one);
}

TEST(Shards, StopWhenTold) {
  app::Translator translator =
      random_translator(small_config(test::TranslatorAttention::kAdditive));
  const std::atomic<bool> stop{true};
  ranks::OneRank alone;
  BatchGradients batch(translator, Executor::threads(2), &stop, alone);
  EXPECT_THROW(batch.compute(Pairs(64).list, 0, 1), Cancelled);
}

TEST(Parallel, TheFirstExceptionComesThrough) {
  std::atomic<int> ran{0};
  try {
    for_each_task(Executor::threads(3), 6, [&](Index task) {
      ++ran;
      if (task >= 2) throw task;
    });
    ADD_FAILURE() << "no exception";
  } catch (const Index task) {
    EXPECT_EQ(task, 2);
  }
  EXPECT_EQ(ran.load(), 6);
}

// A model of seven source and six target tokens, special tokens before letters, and texts for it.
struct Task {
  explicit Task(int count) {
    std::mt19937 random(12);
    for (int n = 0; n < count; ++n) {
      app::TextPair pair;
      for (auto left = 1 + random() % 6; left > 0; --left) {
        pair.source += "abc"[random() % 3];
        pair.target += "xy"[random() % 2];
      }
      add(pair);
    }
  }
  void add(const app::TextPair& pair) {
    pairs.source.push_back(model.source.encode(model.tokenizer.split(pair.source)));
    pairs.target.push_back(model.target.encode(model.tokenizer.split(pair.target)));
    pairs.sentences.push_back({{pair.source, {pair.target}}, std::ssize(pairs.sentences)});
    pairs.facts.pairs = std::ssize(pairs.sentences);
  }
  app::ValidationScore validate(const Executor& executor = {}, Index update = 1) const {
    ranks::OneRank alone;
    return app::validate(model, pairs, update, executor, nullptr, alone);
  }

  app::TranslationModel model{random_translator(small_config(test::TranslatorAttention::kAdditive)),
                              app::Vocabulary({{"a", 3}, {"b", 2}, {"c", 1}}),
                              app::Vocabulary({{"x", 2}, {"y", 1}})};
  EncodedPairs pairs{};
};

TEST(Validation, IsTheLossOfAllPairsTogether) {
  const Task task(40);
  std::vector<TokenPair> list;
  for (Index n = 0; n < 40; ++n) list.push_back(task.pairs.pair(n));
  RunState run;
  Context context;
  const app::TranslationLoss whole = task.model.translator.loss(list, run, context);
  const double want = -whole.log_probability / static_cast<double>(whole.tokens);
  const app::ValidationScore score = task.validate();
  EXPECT_NEAR(score.loss, want, 1e-12);
  EXPECT_EQ(score.translated, 40);
  const app::ValidationScore other = task.validate(Executor::threads(3));
  EXPECT_EQ(other.loss, score.loss);
  EXPECT_EQ(other.bleu, score.bleu);
}

// The targets are the model's own translations, except for the last one.
TEST(Validation, CountsWhatIsTranslatedExactly) {
  Task task(0);
  // With this seed and bias, the end token is the only special token that is ever the likeliest,
  // after 1 to 10 letters.
  task.model.translator = random_translator(small_config(test::TranslatorAttention::kAdditive), 53);
  for_each_parameter(task.model.translator, [](const auto& p) {
    if (p.name != "output.bias") return;
    for (const int token : {0, 1, 3}) p.value.view().template as<double>()[token] = -1e3;
    p.value.view().template as<double>()[2] = -2;
  });
  Context context;
  for (const char* source : {"a", "b", "c", "ab", "ca", "bbc", "cab", "abcabc", "aaaa", "ccb"}) {
    const std::vector<std::string> sources{source};
    const auto translated = translate(task.model, sources, {}, context);
    ASSERT_TRUE(translated[0].is_whole);
    task.add({source, translated[0].text});
  }
  const auto all = std::ssize(task.pairs.sentences);
  EXPECT_EQ(task.validate().exact, all);
  EXPECT_EQ(task.validate().translated, all);
  // A letter that the model does not know differs from every translation.
  task.add({"a", "?"});
  const app::ValidationScore score = task.validate();
  EXPECT_EQ(score.exact, all);
  EXPECT_EQ(score.translated, all + 1);
  EXPECT_LT(score.bleu, 100);
}

TEST(Validation, ShowsAPairOfItsUpdate) {
  const Task task(40);
  std::set<std::string> seen;
  for (Index update = 500; update <= 10'000; update += 500) {
    const app::ValidationSample sample = task.validate({}, update).sample;
    seen.insert(sample.source + " " + sample.reference);
    EXPECT_EQ(task.validate(Executor::threads(2), update).sample.source, sample.source);
    const auto found = std::ranges::find_if(task.pairs.sentences, [&](const auto& one) {
      return one.text.source == sample.source && one.text.references[0] == sample.reference;
    });
    ASSERT_NE(found, task.pairs.sentences.end());
    Context context;
    const std::vector<std::string> sources{sample.source};
    EXPECT_EQ(translate(task.model, sources, {}, context)[0].text, sample.translation);
  }
  EXPECT_GE(seen.size(), 10U);
}

TEST(Validation, StopsWhenTold) {
  const Task task(5);
  const std::atomic<bool> stop{true};
  ranks::OneRank alone;
  EXPECT_THROW(validate(task.model, task.pairs, 1, Executor(), &stop, alone), Cancelled);
}

// The sentence pairs fill several batches, which the ranks share.
TEST(Validation, IsSharedByRanks) {
  const Task task(2000);
  const app::ValidationScore want = task.validate();
  for (const int ranks : {2, 3, 5}) {
    test::ThreadRanks::run(ranks, [&](Ranks& mine) {
      const app::ValidationScore got =
          validate(task.model, task.pairs, 1, Executor(), nullptr, mine);
      EXPECT_EQ(got.loss, want.loss);
      EXPECT_EQ(got.bleu, want.bleu);
      EXPECT_EQ(got.exact, want.exact);
      EXPECT_EQ(got.sample.translation, want.sample.translation);
    });
  }
}

TEST(Validation, StopsOnAllRanksWhenOneIsTold) {
  const Task task(2000);
  test::ThreadRanks::run(3, [&](Ranks& mine) {
    const std::atomic<bool> stop{mine.rank() == 1};
    EXPECT_THROW(validate(task.model, task.pairs, 1, Executor(), &stop, mine), Cancelled);
  });
}

TEST(Configuration, DifferencesAreShown) {
  RunConfig old;
  old.options.data = "a.tsv";
  RunConfig now = old;
  EXPECT_EQ(differences(settings_of(old), settings_of(now)), "");
  now.options.data = "b.tsv";
  now.options.valid = "c.tsv";
  now.options.after = app::parse_budget("3u");
  now.options.save_every = app::parse_budget("4s");
  EXPECT_EQ(differences(settings_of(old), settings_of(now)), "");
  now.train.hash = "1";
  now.options.letters = app::LetterCase::kLower;
  now.options.model.attention = app::TranslatorAttention::kMultiHead;
  now.options.schedule.rate = 0.5;
  now.options.seed = ~std::uint64_t{0};
  now.options.validate_every = app::parse_budget("7u");
  EXPECT_EQ(differences(settings_of(old), settings_of(now)),
            "DATA hash: \"\" -> \"1\"; --lower: false -> true; --attention: \"additive\" -> "
            "\"multihead\"; --lr: 0.002 -> 0.5; --valid-freq: \"1e\" -> \"7u\"; --seed: "
            "0 -> 18446744073709551615");
  now = old;
  now.options.target_column = 2;  // --cols sets both columns
  EXPECT_EQ(differences(settings_of(old), settings_of(now)), "--cols: 0,1 -> 0,2");
}

TEST(Configuration, KnowsTheOptionsOfItsSettings) {
  EXPECT_EQ(app::settings_of_option("--lr"), std::vector<std::string>{"learning_rate"});
  EXPECT_EQ(app::settings_of_option("--cols"),
            (std::vector<std::string>{"source_column", "target_column"}));
  EXPECT_EQ(app::settings_of_option("--batch-tokens"), std::vector<std::string>{"batch_tokens"});
  EXPECT_EQ(app::settings_of_option("DATA"), std::vector<std::string>{"data"});
  EXPECT_TRUE(app::settings_of_option("--none").empty());
  const app::Settings all = settings_of(RunConfig{});
  for (const app::SettingOption& other : app::kSettingOptions) {
    EXPECT_NE(find_setting(all, other.setting), nullptr) << other.setting;
  }
}

TEST(Configuration, ComesBack) {
  RunConfig config;
  app::TrainingOptions& o = config.options;
  o.data = "a\tb";
  o.source_column = 3;
  o.tokenization = app::Tokenization::kWord;
  o.letters = app::LetterCase::kLower;
  o.subwords = {.vocabulary = 777, .algorithm = app::SubwordAlgorithm::kBpe};
  config.subword_hash = "cd";
  o.model.attention = app::TranslatorAttention::kNone;
  o.model.dropout = 0.1;
  o.clip = std::numeric_limits<double>::infinity();
  o.schedule.rate = 1;
  o.validate_every = {};
  o.after = app::parse_budget("3e,5u,7s");
  o.seed = ~std::uint64_t{0};
  config.train = {.pairs = 4, .left_out = 1, .hash = "ab"};
  const app::Settings settings = settings_of(config);
  EXPECT_EQ(app::settings_text(settings_of(config_of(settings, "file"))),
            app::settings_text(settings));
}

TEST(Configuration, SettingsOfLaterVersionsAreImplied) {
  const test::Directory directory;
  app::Settings settings = settings_of({});
  std::erase_if(settings, [](const app::Setting& setting) {
    return setting.name == "vocab" || setting.name.starts_with("subword");
  });
  const std::string path = directory.write("config.json", app::settings_text(settings));
  EXPECT_EQ(differences(read_config(path), settings_of({})), "");
}

// A run of another version may have other settings.
TEST(Configuration, SettingsOfOneSideOnlyAreDifferences) {
  const app::Settings one{{"a", Index{1}}, {"b", true}};
  const app::Settings other{{"b", true}, {"c", 0.5}};
  EXPECT_EQ(differences(one, other), "--c: absent -> 0.5; a: 1 -> absent");
}

}  // namespace
}  // namespace qkv::app
