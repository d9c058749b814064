// SPDX-License-Identifier: Apache-2.0
// `qkv train`: trains a translator on sentence pairs, in a folder from which it can be resumed.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <qkv/app/translation_model.h>
#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "models/model_names.h"
#include "models/translation_run.h"
#include "shell/exit_codes.h"
#include "shell/options.h"
#include "shell/progress.h"
#include "text/numbers.h"
#include "train/commands.h"
#include "train/translation.h"

namespace {

using qkv::Index;
using qkv::app::Budget;
using qkv::app::LetterCase;
using qkv::app::TrainingEnd;
using qkv::app::TrainingOptions;
using qkv::app::TrainingProgress;
using qkv::app::TrainingReport;

constexpr Index kMostCount = 1'000'000'000;

constexpr const char* kTrainFooter = R"(Examples:
  qkv gen dates -n 20000 --split train -o dates.tsv
  qkv train dates.tsv -o RUN --after 2u --batch-tokens 500
  qkv train dates.tsv -o RUN --after 4u --batch-tokens 500

Trains a translator with attention (Bahdanau, Cho, Bengio 2015) on lines of source, tab, target,
using Adam with warm-up and decay, in batches of pairs of similar length. Running the same command
again resumes from the folder's checkpoint; --after counts all runs together. Budgets are e
(epochs), u (updates), s, m, h (time), whichever ends first. Changed settings are rejected, except
--after, --save-freq and --threads.

Ctrl-C (or SIGTERM) saves and exits with 130 (143); a killed process loses what it learned
since the last save. With budgets in epochs or updates, an interrupted and resumed run has bit
for bit the parameters of an uninterrupted one, on any number of threads. A loss that is not finite
ends the run with 5 and keeps the last checkpoint.

RUN holds plain files: config.json (all settings), source.vocab.json, target.vocab.json,
model.safetensors (the latest parameters), best.safetensors (the best on --valid; the latest before
the first validation, or without --valid), state.safetensors (the checkpoint), train.jsonl (a line
for each epoch and validation).)";

struct TrainOptions {
  TrainingOptions training{};
  std::string folder{};
};

// A library error about an option: "--lr: must be positive, got -1".
std::string said_of_option(const qkv::Error& error) {
  constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
      {"rate", "--lr"}, {"validate_every", "--valid-freq"}};
  std::string option = "--" + error.argument();
  std::ranges::replace(option, '_', '-');
  for (const auto& [argument, name] : kOthers) {
    if (error.argument() == argument) option = name;
  }
  const std::string_view text = error.what();
  const std::size_t rule = text.find("must ");
  return rule == text.npos ? std::string(text) : fmt::format("{}: {}", option, text.substr(rule));
}

// "10e,5000u,30m".
void add_budget(const Command& command, const std::string& name, Budget& target,
                const std::string& help) {
  command
      .add_parsed(
          name,
          [&target, name](const std::string& text) {
            try {
              target = qkv::app::parse_budget(text);
            } catch (const qkv::Error& error) {
              const std::string_view what = error.what();
              throw BadValue(name, std::string(what.substr(what.find("must be"))));
            }
          },
          help)
      .type_name("BUDGET");
}

// "2 min 5 s"
std::string duration(double seconds) {
  constexpr double kMostShown = 3.2e13;  // a million years
  const auto whole = static_cast<Index>(std::llround(std::min(seconds, kMostShown)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string line_of(const TrainingProgress& progress) {
  const auto batches = static_cast<double>(progress.batches);
  const double epoch =
      static_cast<double>(progress.spent.epochs) + static_cast<double>(progress.batch) / batches;
  std::string line = fmt::format("epoch {:.2f}, update {}, loss {:.4f}, {:.0f} tokens/s", epoch,
                                 progress.spent.updates, progress.loss, progress.tokens_per_second);
  if (progress.seconds_left) line += fmt::format(", {} left", duration(*progress.seconds_left));
  return line;
}

std::string text_of(const TrainingReport& report, const std::string& folder) {
  const char* why = report.end == TrainingEnd::kPatience  ? "validation stopped improving"
                    : report.end == TrainingEnd::kStopped ? "stopped"
                                                          : "the budget is used up";
  std::string text = fmt::format(
      "{}: {} pairs ({} left out), {} source and {} target tokens, {} parameters\n", folder,
      report.pairs, report.left_out, report.source_tokens, report.target_tokens, report.parameters);
  text += fmt::format("epochs {}, updates {}, {}: {}\n", report.spent.epochs, report.spent.updates,
                      duration(report.spent.seconds), why);
  text += fmt::format("loss {:.4f}\n", report.loss);
  if (report.valid) {
    text += fmt::format(
        "validation: loss {:.4f}, perplexity {:.4f}, exact {} of {}; best loss {:.4f}\n",
        report.valid->loss, std::exp(report.valid->loss), report.valid->exact,
        report.valid->translated, report.best);
  }
  return text;
}

void run(TrainOptions options, const Common& common) {
  options.training.executor = qkv::Executor::threads(common.threads);
  Progress progress(common, "train");
  qkv::app::TrainingHooks hooks;
  hooks.stop = &stop_flag();
  hooks.progress = [&](const TrainingProgress& now) { progress.at(line_of(now)); };
  TrainingReport report;
  try {
    report = train_translation(options.training, options.folder, hooks);
  } catch (const qkv::Error& error) {
    throw UsageError(said_of_option(error));
  }
  if (report.end == TrainingEnd::kStopped) {
    warn(common, fmt::format("stopped and saved at update {}; the same command resumes",
                             report.spent.updates));
    throw qkv::Cancelled("train");
  }
  print(text_of(report, options.folder));
}

void add_data_options(const Command& command, TrainingOptions& o, bool& lower) {
  command.add_option("DATA", o.data, "source, tab, target, one pair a line; - is standard input")
      .required()
      .type_name("");
  add_columns(command, o.source_column, o.target_column);
  add_choice(command, "--tokenize", o.tokenization, qkv::app::kTokenizations,
             "translate characters (default) or words");
  command.add_flag("--lower", lower, "convert letters to lower case");
  add_number(command, "--min-count", o.min_count, Bounds<Index>{1, kMostCount},
             "rarer tokens become unknown tokens (default 1)");
  add_number(command, "--max-length", o.max_length, Bounds<Index>{1, kMostNumbers},
             "leave out pairs with more tokens on either side (default 200)");
  Option valid = command.add_option("--valid", o.valid, "pairs to validate on after each epoch")
                     .type_name("FILE");
  add_number(command, "--patience", o.patience, Bounds<Index>{1, kMostCount},
             "stop after this many validations without improvement (default: never)")
      .needs(valid);
  add_budget(command, "--valid-freq", o.validate_every,
             "validate every this many epochs or updates (default 1e)");
}

void add_model_options(const Command& command, qkv::app::TranslatorConfig& model) {
  add_choice(command, "--attention", model.attention, qkv::app::kTranslatorAttentions,
             "how the decoder looks at the source (default additive); none: its last state alone");
  const auto size = [&](const char* name, Index& target, const char* help) {
    add_number(command, name, target, Bounds<Index>{1, kMostNumbers},
               fmt::format("{} (default {})", help, target));
  };
  size("--embedding", model.embedding, "width of the embeddings");
  size("--hidden", model.hidden, "width of the GRU states");
  size("--units", model.units, "units of additive attention");
  size("--heads", model.heads, "heads of multihead attention");
  add_real(command, "--dropout", model.dropout,
           fmt::format("dropout on embeddings and readout (default {})", model.dropout));
  add_real(command, "--label-smoothing", model.label_smoothing,
           fmt::format("label mass spread over all tokens (default {})", model.label_smoothing));
}

void add_learning_options(const Command& command, TrainingOptions& o) {
  add_number(command, "--batch-tokens", o.batch_tokens, Bounds<Index>{1, kMostCount},
             fmt::format("tokens per batch, including padding (default {})", o.batch_tokens));
  add_real(command, "--lr", o.schedule.rate,
           fmt::format("peak learning rate (default {})", o.schedule.rate));
  add_number(command, "--warmup", o.schedule.warmup, Bounds<Index>{0, kMostCount},
             fmt::format("updates over which the rate rises (default {})", o.schedule.warmup));
  add_real(
      command, "--decay", o.schedule.decay,
      fmt::format("D: after the warm-up the rate falls like 1/sqrt(1 + updates/D) (default {}; "
                  "0: constant)",
                  o.schedule.decay));
  add_real(command, "--clip", o.clip,
           fmt::format("clip the gradient to this norm (default {})", o.clip));
  add_real(command, "--weight-decay", o.adam.weight_decay,
           "decoupled weight decay of matrices, as in AdamW (default 0)");
  add_number(command, "--seed", o.seed, Bounds<std::uint64_t>{},
             "seed for parameters, batches and dropout (default 0)");
  add_budget(command, "--after", o.after, "when to stop, such as 10e,5000u,30m (default 10e)");
  add_budget(command, "--save-freq", o.save_every,
             "save every this many updates, epochs or seconds (default 500u)");
}

}  // namespace

void add_train(const Command& program, const Common& common) {
  const Command command = program.add_command("train", "train a translator");
  const auto options = std::make_shared<TrainOptions>();
  const auto lower = std::make_shared<bool>(false);
  command.add_option("-o,--output", options->folder, "folder of this run")
      .type_name("FOLDER")
      .required();
  add_data_options(command, options->training, *lower);
  add_model_options(command, options->training.model);
  add_learning_options(command, options->training);
  command.footer(kTrainFooter);
  command.callback([options, lower, &common] {
    if (*lower) options->training.letters = LetterCase::kLower;
    run(*options, common);
  });
}
