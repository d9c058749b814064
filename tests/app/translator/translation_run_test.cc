// SPDX-License-Identifier: Apache-2.0
// Tests training in a folder through the C++ API: a run that is stopped after each update ends with
// the files of an uninterrupted one.
#include "translator/training/translation_run.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>

#include "tests/app/files/files.h"
#include "tests/app/translator/small_model.h"
#include "tests/ranks/thread_ranks.h"
#include "translator/data/tasks.h"
#include "translator/training/training_settings.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Directory;
using test::small_model;
using test::Texts;

// Options for a tiny translator that learns to reverse words: 70 to train, and 10 to validate.
struct Task {
  Task() {
    const auto lines = [](Index begin, Index end) {
      std::string text;
      for (Index n = begin; n < end; ++n) {
        const Example example = reverse_example(1, n);
        text += example.source + "\t" + example.target + "\n";
      }
      return text;
    };
    options.data = directory.write("data.tsv", lines(0, 70));
    options.valid = directory.write("valid.tsv", lines(70, 80));
    options.model.embedding = options.model.hidden = options.model.units = 4;
    options.batch_tokens = 800;  // more than one micro-batch
    options.validate_every = parse_budget("2u");
    options.best = BestBy::kLoss;
    options.schedule = {.rate = 0.05, .warmup = 2, .decay = 5};
  }

  // Repeats the validation pairs so often that a validation runs its batches on the executor.
  void validate_on_many() {
    std::string pairs;
    for (int n = 0; n < 80; ++n) pairs += test::read(options.valid);
    options.valid = directory.write("many.tsv", pairs);
  }
  TrainingReport train(const std::string& folder, const char* after,
                       const TrainingHooks& hooks = {}) {
    options.after = parse_budget(after);
    return train_translation(options, directory / folder, hooks);
  }
  std::string file(const std::string& folder, const char* name) const {
    return test::read(directory / (folder + "/" + name));
  }
  // The lines of train.jsonl without times, and without the lines that mark the end of a run.
  std::vector<std::string> log(const std::string& folder) const {
    std::vector<std::string> lines;
    std::istringstream text(file(folder, "train.jsonl"));
    for (std::string line; std::getline(text, line);) {
      if (line.find("\"end\": ") != line.npos) continue;
      const auto begin = line.find("\"seconds\"");
      auto end = line.find(", \"valid_loss\"");
      if (end == line.npos) end = line.size();
      lines.push_back(line.substr(0, begin) + line.substr(end));
    }
    return lines;
  }

  Directory directory{};
  TrainingOptions options{};
};

// The flag is set after each update; if a validation is due then, the flag interrupts it.
TEST(TranslationRun, StoppedAfterEachUpdateComesOutTheSame) {
  Task task;
  task.train("whole", "7u");
  // Update 3 ends an epoch, updates 2 and 4 have a validation, and update 6 has both.
  ASSERT_EQ(task.log("whole").size(), 4U);
  std::atomic<bool> stop{false};
  TrainingHooks hooks;
  hooks.stop = &stop;
  hooks.progress = [&](const TrainingProgress&) { stop = true; };
  for (Index update = 1; update <= 7; ++update) {
    stop = false;
    const TrainingReport report = task.train("parts", "7u", hooks);
    EXPECT_EQ(report.end, TrainingEnd::kStopped);
    EXPECT_EQ(report.spent.updates, update);
    EXPECT_EQ(report.resumed.value_or(0), update - 1);
  }
  const TrainingReport report = task.train("parts", "7u");
  EXPECT_EQ(report.end, TrainingEnd::kBudget);
  EXPECT_EQ(report.resumed, 7);
  for (const char* name : {"model.safetensors", "best.safetensors"}) {
    EXPECT_EQ(task.file("parts", name), task.file("whole", name)) << name;
  }
  EXPECT_EQ(task.log("parts"), task.log("whole"));
}

// The validation at a run's end may be the best one. A later run that has nothing left to do keeps
// the model of that validation, even if it is stopped at once.
TEST(TranslationRun, AFinishedRunKeepsItsBestModel) {
  Task task;
  task.validate_on_many();
  task.options.schedule = {.rate = 0.01, .warmup = 0};
  task.train("run", "3u");  // validations after updates 2 and 3
  ASSERT_NE(task.file("run", "train.jsonl").find(R"("end": "budget")"), std::string::npos);
  const std::string best = task.file("run", "best.safetensors");
  ASSERT_EQ(best, task.file("run", "model.safetensors"));
  std::atomic<bool> stop{false};  // is set when something is first computed
  const auto run = [](void* flag, Index count, Executor::Body body, void* state) {
    *static_cast<std::atomic<bool>*>(flag) = true;
    for (Index n = 0; n < count; ++n) body(state, n);
  };
  task.options.executor = Executor(run, &stop, 2);
  TrainingHooks hooks;
  hooks.stop = &stop;
  EXPECT_EQ(task.train("run", "3u", hooks).end, TrainingEnd::kStopped);
  EXPECT_EQ(task.file("run", "best.safetensors"), best);
  // A run that goes on does not count the validation at the previous run's end, so the best model
  // is again that of update 2.
  stop = false;
  EXPECT_EQ(task.train("run", "4u", hooks).end, TrainingEnd::kStopped);
  EXPECT_NE(task.file("run", "best.safetensors"), best);
}

// A column that no run writes is an error that names the file.
TEST(TranslationRun, ColumnsOfItsSettingsAreChecked) {
  Task task;
  task.train("run", "1u");
  std::string config = task.file("run", "config.json");
  const std::string known = R"("source_column": 0)";
  ASSERT_NE(config.find(known), config.npos);
  config.replace(config.find(known), known.size(), R"("source_column": -1)");
  task.directory.write("run/config.json", config);
  EXPECT_NE(complaint<InputError>([&] {
              const std::string path = task.directory / "run/config.json";
              config_of(read_config(path), path);
            }).find("config.json: source_column: expected a column from 0 to 1048575, got -1"),
            std::string::npos);
}

// Trains on several ranks, one of which sees a flag that is set after each update.
TEST(TranslationRun, OnRanksComesOutTheSame) {
  Task task;
  task.train("whole", "7u");
  const auto train = [&](const char* folder, const char* after, int count, int flagged) {
    std::vector<TrainingReport> reports(static_cast<std::size_t>(count));
    std::atomic<bool> stop{false};
    test::ThreadRanks::run(count, {.most_delay_us = 50}, [&](Ranks& mine) {
      TrainingHooks hooks;
      if (mine.rank() == flagged) hooks.stop = &stop;
      hooks.progress = [&](const TrainingProgress&) { stop = true; };
      TrainingOptions options = task.options;
      options.after = parse_budget(after);
      options.ranks = &mine;
      options.executor = Executor::threads(mine.rank() % 2 + 1);
      reports[static_cast<std::size_t>(mine.rank())] =
          train_translation(options, task.directory / folder, hooks);
    });
    for (const TrainingReport& report : reports) {
      EXPECT_EQ(report.end, reports[0].end);
      EXPECT_EQ(report.spent.updates, reports[0].spent.updates);
      EXPECT_EQ(report.loss, reports[0].loss);
      EXPECT_EQ(report.best.loss, reports[0].best.loss);
    }
    return reports[0];
  };
  const auto same = [&](const char* folder) {
    for (const char* name : {"model.safetensors", "best.safetensors"}) {
      EXPECT_EQ(task.file(folder, name), task.file("whole", name)) << folder << name;
    }
    EXPECT_EQ(task.log(folder), task.log("whole")) << folder;
  };
  for (const int count : {1, 2, 3, 4}) {
    const std::string folder = "ranks" + std::to_string(count);
    EXPECT_EQ(train(folder.c_str(), "7u", count, -1).end, TrainingEnd::kBudget);
    same(folder.c_str());
  }
  // The run is interrupted after each update, and resumed by another number of ranks.
  for (const auto& [count, flagged] :
       {std::pair(3, 0), {1, 0}, {4, 3}, {2, 1}, {5, 2}, {2, 0}, {3, 2}}) {
    const TrainingReport report = train("parts", "7u", count, flagged);
    // Rank 0 sets the flag. A rank that looks at the flag before that stops an update later.
    if (flagged == 0) {
      EXPECT_EQ(report.end, TrainingEnd::kStopped);
    }
  }
  EXPECT_EQ(train("parts", "7u", 2, -1).end, TrainingEnd::kBudget);
  same("parts");
}

// One rank's error ends the others, too.
TEST(TranslationRun, AnErrorOfARankEndsAll) {
  Task task;
  const auto errors = [&](int count, const auto& change) {
    std::vector<std::string> texts(static_cast<std::size_t>(count));
    test::ThreadRanks::run(count, [&](Ranks& mine) {
      TrainingOptions options = task.options;
      options.after = parse_budget("1u");
      options.ranks = &mine;
      change(mine.rank(), options);
      try {
        train_translation(options, task.directory / "run");
      } catch (const OtherRankFailed& error) {
        texts[static_cast<std::size_t>(mine.rank())] = std::string("other: ") + error.what();
      } catch (const std::exception& error) {
        texts[static_cast<std::size_t>(mine.rank())] = error.what();
      }
    });
    return texts;
  };
  EXPECT_EQ(
      errors(3,
             [&](int rank, TrainingOptions& options) {
               if (rank > 0) options.data = task.directory / "none.tsv";
             }),
      (Texts{"other: rank 1 has failed", task.directory / "none.tsv: No such file or directory",
             "other: rank 1 has failed"}));
  EXPECT_EQ(errors(2,
                   [&](int rank, TrainingOptions& options) {
                     if (rank == 1) options.data = options.valid;
                   })[1]
                .substr(0, 53),
            "the data or settings are not those of rank 0: DATA pa");
  EXPECT_EQ(errors(2,
                   [&](int rank, TrainingOptions& options) {
                     if (rank == 1) options.after = parse_budget("2u");
                   })[1],
            "the data or settings are not those of rank 0: --after: \"1u\" -> \"2u\"");
  EXPECT_EQ(errors(2, [&](int, TrainingOptions& options) { options.data = "-"; })[0],
            "train_translation: data must be a file that all processes can read, where several "
            "train, got standard input");
  EXPECT_FALSE(std::filesystem::exists(task.directory / "run/state.safetensors"));
  EXPECT_EQ(errors(2, [&](int, TrainingOptions&) {}), (Texts{"", ""}));
}

// Networks with several layers and tied embeddings resume from their saved states.
TEST(TranslationRun, StoppedWithSharedWeightsComesOutTheSame) {
  Task task;
  task.options.model.encoder_layers = 2;
  task.options.model.tied_embeddings = TiedEmbeddings::kOutput;
  task.options.model.embedding = 5;  // differs from hidden
  const Index parameters = task.train("whole", "5u").parameters;
  for (const char* after : {"2u", "3u", "5u"}) {
    EXPECT_EQ(task.train("parts", after).parameters, parameters);
  }
  for (const char* name : {"model.safetensors", "best.safetensors"}) {
    EXPECT_EQ(task.file("parts", name), task.file("whole", name)) << name;
  }
  EXPECT_EQ(task.log("parts"), task.log("whole"));
  const TranslationModel model = read_translation_model(task.directory / "parts", RunModel::kLast);
  EXPECT_EQ(model.translator.config().encoder_layers, 2);
  EXPECT_EQ(model.translator.config().tied_embeddings, TiedEmbeddings::kOutput);
  EXPECT_EQ(parameter_count(model.translator), parameters);
}

// A setting that an older version's config.json lacks has the value that was fixed in that version.
TEST(TranslationRun, SettingsOfLaterVersionsAreImplied) {
  Task task;
  task.train("whole", "5u");
  task.train("old", "2u");
  const std::string path = task.directory / "old/config.json";
  std::string text = test::read(path);
  for (const std::string line :
       {"  \"encoder_layers\": 1,\n", "  \"tied_embeddings\": \"none\",\n"}) {
    ASSERT_NE(text.find(line), text.npos) << text;
    text.erase(text.find(line), line.size());
  }
  task.directory.write("old/config.json", text);
  TrainingOptions typed;
  typed.after = parse_budget("5u");
  typed.model.encoder_layers = 2;
  typed.model.tied_embeddings = TiedEmbeddings::kOutput;
  const auto options = [&](const std::vector<std::string>& given) {
    return options_of_run(task.directory / "old", typed, given);
  };
  EXPECT_EQ(
      complaint<RunMismatch>([&] {
        train_translation(options({"encoder_layers", "tied_embeddings"}), task.directory / "old");
      }),
      (task.directory / "old") +
          " holds a run with other settings: --encoder-layers: 1 -> 2; --tied-embeddings: "
          "\"none\" -> \"output\"; use another folder, or resume with its own");
  EXPECT_EQ(test::read(path), text);
  train_translation(options({"after"}), task.directory / "old");
  EXPECT_EQ(task.file("old", "model.safetensors"), task.file("whole", "model.safetensors"));
  EXPECT_EQ(task.log("old"), task.log("whole"));
}

TEST(TranslationRun, SaysHowFarItIs) {
  Task task;
  std::vector<TrainingProgress> reports;
  TrainingHooks hooks;
  hooks.progress = [&](const TrainingProgress& progress) { reports.push_back(progress); };
  const TrainingReport report = task.train("run", "2e", hooks);
  ASSERT_EQ(std::ssize(reports), report.spent.updates);
  const Index batches = reports[0].batches;
  EXPECT_EQ(report.spent.updates, 2 * batches);
  for (std::size_t n = 0; n < reports.size(); ++n) {
    const auto update = static_cast<Index>(n) + 1;
    EXPECT_EQ(reports[n].spent.updates, update);
    EXPECT_EQ(reports[n].spent.epochs, update / batches);
    EXPECT_EQ(reports[n].batch, update % batches);
    EXPECT_GT(reports[n].loss, 0);
    EXPECT_GT(reports[n].tokens_per_second, 0);
    ASSERT_TRUE(reports[n].seconds_left.has_value());
    EXPECT_EQ(*reports[n].seconds_left == 0, n + 1 == reports.size());
  }
  EXPECT_EQ(report.pairs, 70);
  EXPECT_EQ(report.left_out, 0);
  EXPECT_EQ(report.source_tokens, 30);
  EXPECT_EQ(report.loss, reports.back().loss);
  ASSERT_TRUE(report.valid.has_value());
  EXPECT_EQ(report.valid->translated, 10);
  EXPECT_LE(report.best.loss, report.valid->loss);
}

// There is a validation after each second update, and one at the end, after update 5.
TEST(TranslationRun, SaysEachValidation) {
  Task task;
  std::vector<TrainingValidation> reports;
  TrainingHooks hooks;
  hooks.validation = [&](const TrainingValidation& done) { reports.push_back(done); };
  const TrainingReport report = task.train("run", "5u", hooks);
  ASSERT_EQ(reports.size(), 3U);
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t n = 0; n < reports.size(); ++n) {
    EXPECT_EQ(reports[n].spent.updates, std::min<Index>(2 * static_cast<Index>(n + 1), 5));
    EXPECT_EQ(reports[n].is_best, reports[n].score.loss < least);
    least = std::min(least, reports[n].score.loss);
    EXPECT_EQ(reports[n].score.translated, 10);
    EXPECT_FALSE(reports[n].score.sample.source.empty());
  }
  ASSERT_TRUE(report.valid.has_value());
  EXPECT_EQ(report.valid->loss, reports.back().score.loss);
  EXPECT_EQ(report.best.loss, least);
  EXPECT_EQ(task.train("run", "5u", hooks).valid->loss, report.valid->loss);
  EXPECT_EQ(reports.size(), 3U);  // a finished run does not report its last validation again
}

// The flag is set in the validation at the end of the budget, which has enough batches to use the
// caller's threads.
TEST(TranslationRun, IsStoppedInItsLastValidation) {
  Task task;
  task.validate_on_many();
  const TrainingReport whole = task.train("whole", "5u");

  struct Trap {
    std::atomic<bool> armed{false};
    std::atomic<bool> stop{false};
  } trap;
  const auto run = [](void* pool, Index count, Executor::Body body, void* state) {
    auto& set = *static_cast<Trap*>(pool);
    if (set.armed) set.stop = true;
    for (Index n = 0; n < count; ++n) body(state, n);
  };
  task.options.executor = Executor(run, &trap, 2);
  TrainingHooks hooks;
  hooks.stop = &trap.stop;
  hooks.progress = [&](const TrainingProgress& now) { trap.armed = now.spent.updates == 5; };
  const TrainingReport stopped = task.train("parts", "5u", hooks);
  EXPECT_EQ(stopped.end, TrainingEnd::kStopped);
  EXPECT_FALSE(stopped.valid.has_value());
  const auto last_line = [&] {
    const std::string log = task.file("parts", "train.jsonl");
    return log.substr(log.rfind('\n', log.size() - 2) + 1);
  };
  EXPECT_TRUE(last_line().starts_with(R"({"epoch": 1, "update": 5, "end": "stopped")"));
  EXPECT_EQ(last_line().find("valid_loss"), std::string::npos);

  task.options.executor = Executor();
  const TrainingReport report = task.train("parts", "5u");
  EXPECT_EQ(report.resumed, 5);
  ASSERT_TRUE(report.valid.has_value());
  EXPECT_EQ(report.valid->loss, whole.valid->loss);
  EXPECT_TRUE(last_line().starts_with(R"({"epoch": 1, "update": 5, "end": "budget")"));
  for (const char* name : {"model.safetensors", "best.safetensors"}) {
    EXPECT_EQ(task.file("parts", name), task.file("whole", name)) << name;
  }
}

TEST(TranslationRun, GoesOnWithItsOptions) {
  Task task;
  task.options.seed = 4;
  task.train("run", "3u");
  TrainingOptions typed;
  typed.after = parse_budget("4u");
  typed.seed = 7;
  const std::string folder = task.directory / "run";
  const std::vector<std::string> given{"after"};
  EXPECT_TRUE(holds_run(folder));
  const TrainingOptions options = options_of_run(folder, typed, given);
  EXPECT_EQ(options.seed, 4U);
  EXPECT_EQ(options.data, task.options.data);
  EXPECT_EQ(options.batch_tokens, task.options.batch_tokens);
  EXPECT_EQ(train_translation(options, folder).spent.updates, 4);
  const std::vector<std::string> wrong{"afterwards"};
  EXPECT_EQ(complaint<Error>([&] { options_of_run(folder, typed, wrong); }),
            "options_of_run: given must be names of settings, got \"afterwards\"");
  EXPECT_FALSE(holds_run(task.directory / "none"));
  EXPECT_EQ(complaint<InputError>([&] { options_of_run(task.directory / "none", typed, given); }),
            task.directory / "none/config.json" + ": No such file or directory");
}

TEST(TranslationRun, ItsModelIsRead) {
  Task task;
  task.options.tokenization = Tokenization::kWord;
  task.options.letters = LetterCase::kLower;
  const TrainingReport report = task.train("run", "4u");
  for (const RunModel which : {RunModel::kBest, RunModel::kLast}) {
    const TranslationModel model = read_translation_model(task.directory / "run", which);
    EXPECT_EQ(model.tokenizer.tokenization(), Tokenization::kWord);
    EXPECT_EQ(model.tokenizer.letters(), LetterCase::kLower);
    EXPECT_EQ(model.source.size(), report.source_tokens);
    EXPECT_EQ(parameter_count(model.translator), report.parameters);
  }
  // The final parameters give the reported loss.
  const TranslationModel last = read_translation_model(task.directory / "run", RunModel::kLast);
  std::vector<TextPair> pairs;
  for (Index n = 70; n < 80; ++n) {
    const Example example = reverse_example(1, n);
    pairs.push_back({example.source, example.target});
  }
  Context context;
  const TranslationLoss loss = app::loss(last, pairs, context);
  EXPECT_NEAR(-loss.log_probability / static_cast<double>(loss.tokens), report.valid->loss, 1e-6);
  const std::string none = task.directory / "none";
  EXPECT_EQ(complaint<InputError>([&] { read_translation_model(none, RunModel::kBest); }),
            none +
                ": expected the folder of a run, got one without config.json; qkv train DATA -o "
                "FOLDER makes one");
}

// A run's folder is read as its best model, which differs from its last one.
TEST(TranslationRun, ItsFolderIsAModelFile) {
  Task task;
  task.train("run", "4u");
  const std::string run = task.directory / "run";
  const auto bytes_of = [&](const TranslationModel& model) {
    write_model_file(task.directory / "copy", model);
    return test::read(task.directory / "copy");
  };
  write_model_file(run + "/best.safetensors", small_model());
  EXPECT_NE(task.file("run", "best.safetensors"), task.file("run", "model.safetensors"));
  EXPECT_EQ(bytes_of(read_model_file(run)), task.file("run", "best.safetensors"));
  EXPECT_EQ(bytes_of(read_translation_model(run, RunModel::kLast)),
            task.file("run", "model.safetensors"));
  const auto refusal = [](const std::string& path) {
    return complaint<InputError>([&] { read_model_file(path); });
  };
  std::filesystem::remove(run + "/best.safetensors");
  EXPECT_EQ(refusal(run),
            run + ": best.safetensors is missing: qkv train " + run +
                " writes it again; --model last uses model.safetensors, which is there");
  std::filesystem::remove(run + "/model.safetensors");
  EXPECT_EQ(refusal(run), run + ": this run has no model yet: best.safetensors is missing");
  std::filesystem::remove(run + "/config.json");
  EXPECT_EQ(refusal(run), run +
                              ": expected the folder of a run, got one without config.json; qkv "
                              "train DATA -o FOLDER makes one");
}

TEST(TranslationRun, AnotherFileThanAModelIsNamed) {
  const Directory directory;
  const auto refusal = [&](const std::string& name, std::string_view bytes) {
    const std::string path = directory.write(name, bytes);
    const std::string text = complaint<InputError>([&] { read_model_file(path); });
    return text.starts_with(path) ? text.substr(path.size()) : text;
  };
  const std::string expected = ": expected the folder of a run or a .safetensors model, got ";
  EXPECT_EQ(refusal("a.txt", "Some words.\n"), expected + "text");
  EXPECT_EQ(refusal("a.tsv", "one\tun\n"), expected + "text in columns");
  EXPECT_EQ(refusal("v.txt", "the 0.5 1\ncat 2 3\n"), expected + "word vectors");
  EXPECT_EQ(refusal("n.txt", "1 2\n3 4\n"), expected + "a table of numbers");
  EXPECT_EQ(refusal("a.npz", "PK\x03\x04 and more"), expected + "an .npz file");
  EXPECT_EQ(refusal("a.png", "\x89PNG"),
            ": byte 0: expected arrays (.npy, .npz, .safetensors), word vectors or UTF-8 text, got "
            "a PNG picture");
}

TEST(TranslationRun, WithoutValidationTheLastIsTheBest) {
  Task task;
  task.options.valid.clear();
  const TrainingReport report = task.train("run", "4u");
  EXPECT_FALSE(report.valid.has_value());
  EXPECT_EQ(task.file("run", "best.safetensors"), task.file("run", "model.safetensors"));
}

TEST(TranslationRun, RefusesInvalidOptions) {
  Task task;
  const auto refused = [&](auto change) {
    TrainingOptions options = task.options;
    change(options);
    return complaint<Error>([&] { train_translation(options, task.directory / "run"); });
  };
  const std::string start = "train_translation: ";
  EXPECT_EQ(refused([](auto& o) { o.data.clear(); }),
            start + "data must be the name of a file, got \"\"");
  EXPECT_EQ(refused([](auto& o) { o.target_column = 0; }),
            start + "target_column must be different from the source's, got 0");
  EXPECT_EQ(refused([](auto& o) { o.min_count = 0; }),
            start + "min_count must be at least 1, got 0");
  EXPECT_EQ(refused([](auto& o) { o.max_length = 0; }),
            start + "max_length must be at least 1, got 0");
  EXPECT_EQ(refused([](auto& o) { o.batch_tokens = 0; }),
            start + "batch_tokens must be at least 1, got 0");
  EXPECT_EQ(refused([](auto& o) { o.clip = std::nan(""); }),
            start + "clip must be positive, got nan");
  EXPECT_EQ(refused([](auto& o) { o.patience = -1; }),
            start + "patience must be at least 0, got -1");
  EXPECT_EQ(refused([](auto& o) {
              o.valid.clear();
              o.patience = 1;
            }),
            start + "patience must be 0 without validation data, got 1");
  EXPECT_EQ(refused([](auto& o) { o.valid_translate = 0; }),
            start + "valid_translate must be at least 1, got 0");
  EXPECT_EQ(refused([](auto& o) { o.keep = -1; }), start + "keep must be at least 0, got -1");
  EXPECT_EQ(refused([](auto& o) { o.source_column = -1; }),
            "for_each_row: columns must not be negative, got -1");
  EXPECT_EQ(refused([](auto& o) { o.adam.beta1 = 1; }), "Adam: beta1 must be in [0,1), got 1");
  EXPECT_EQ(task.directory.names(), (std::vector<std::string>{"data.tsv", "valid.tsv"}));
}

}  // namespace
}  // namespace qkv::app
