// SPDX-License-Identifier: Apache-2.0
#include "commands/train/train_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "commands/shell/console.h"
#include "text/text.h"

namespace {

using qkv::Index;
using qkv::app::BestBy;
using qkv::app::Spent;
using qkv::app::Tokenization;
using qkv::app::TrainingEnd;
using qkv::app::TrainingOptions;
using qkv::app::TrainingReport;
using qkv::app::ValidationScore;

// A duration as text: "2 min 5 s".
std::string duration(double seconds) {
  constexpr double kMostShown = 3.2e13;  // a million years
  const auto whole = static_cast<Index>(std::llround(std::min(seconds, kMostShown)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

// A position in training as text: "epoch 1.50, update 366".
std::string place(const Spent& spent, Index batch, Index batches) {
  const double part = batches > 0 ? static_cast<double>(batch) / static_cast<double>(batches) : 0.0;
  return fmt::format("epoch {:.2f}, update {}", static_cast<double>(spent.epochs) + part,
                     spent.updates);
}

std::string figures(const ValidationScore& score) {
  return fmt::format("loss {:.4f}, perplexity {:.4f}, BLEU {:.2f}, exact {} of {}", score.loss,
                     std::exp(score.loss), score.bleu, score.exact, score.translated);
}

std::string clipped(const std::optional<double>& share) {
  return share ? fmt::format(", clipped {:.0f} % of updates", 100 * *share) : "";
}

// The number of pairs that were left out as too long, with the option that sets the limit.
std::string left_out(const TrainingReport& report, const TrainingOptions& options) {
  std::string text = fmt::format("{} left out", report.left_out);
  if (report.left_out == 0) return text;
  const char* unit = options.tokenization == Tokenization::kCharacter ? "characters"
                     : options.tokenization == Tokenization::kWord    ? "words"
                                                                      : "subwords";
  return text + fmt::format(", longer than --max-length {} {}", options.max_length, unit);
}

// The best value of the criterion --best.
std::string best_of(const TrainingReport& report) {
  if (!std::isfinite(report.best.loss)) return "no validation with a finite loss";
  switch (report.best_by) {
    case BestBy::kBleu:
      if (report.best.bleu >= 0) return fmt::format("best BLEU {:.2f}", report.best.bleu);
      return fmt::format("best loss {:.4f}, since no reference has the 4 tokens that BLEU needs",
                         report.best.loss);
    case BestBy::kLoss:
      break;
  }
  return fmt::format("best loss {:.4f}", report.best.loss);
}

}  // namespace

std::string text_of(const qkv::app::TrainingProgress& progress) {
  // The line is short for terminals of 80 columns. Its tokens are target tokens, as the help says.
  std::string line = place(progress.spent, progress.batch, progress.batches);
  if (progress.seconds_left) line += fmt::format(", {} left", duration(*progress.seconds_left));
  return line +
         fmt::format(", loss {:.4f}, {:.0f} tokens/s", progress.loss, progress.tokens_per_second);
}

std::string text_of(const qkv::app::TrainingValidation& validation) {
  constexpr int kMostColumns = 400;  // train.jsonl has the whole texts
  const qkv::app::ValidationSample& sample = validation.score.sample;
  std::string text = fmt::format("{}, validation: {}{}{}",
                                 place(validation.spent, validation.batch, validation.batches),
                                 figures(validation.score), clipped(validation.clipped),
                                 validation.is_best ? ", the best so far" : "");
  const auto add = [&](const char* name, const std::string& sentence) {
    text += fmt::format("\n  {:<11} {}", name, qkv::app::shortened(sentence, kMostColumns));
  };
  add("source", sample.source);
  add("translation", sample.translation);
  add("reference", sample.reference);
  return text;
}

std::string budget_text(const qkv::app::Budget& after, bool is_default) {
  return fmt::format("the budget of {}{}", to_string(after),
                     is_default ? ", the default of --after," : "");
}

std::string text_of(const qkv::app::TrainingReport& report, const std::string& folder,
                    const qkv::app::TrainingOptions& options, const std::string& budget) {
  const std::string why = report.end == TrainingEnd::kPatience ? "validation stopped improving"
                          : report.end == TrainingEnd::kStopped
                              ? "stopped"
                              : fmt::format("{} is used up", budget);
  std::string text =
      fmt::format("{}: {} pairs ({}), {} source and {} target tokens, {} parameters\n",
                  shown_name(folder), report.pairs, left_out(report, options), report.source_tokens,
                  report.target_tokens, report.parameters);
  text += fmt::format("epochs {}, updates {}, {}: {}\n", report.spent.epochs, report.spent.updates,
                      duration(report.spent.seconds), why);
  text += fmt::format("loss {:.4f}\n", report.loss);
  if (report.valid) {
    text += fmt::format("validation: {}; {}\n", figures(*report.valid), best_of(report));
  }
  return text;
}

std::string longer(const qkv::app::Budget& after, const Spent& spent) {
  qkv::app::Budget more = after;
  if (more.epochs) *more.epochs += spent.epochs;
  if (more.updates) *more.updates += spent.updates;
  if (more.seconds) *more.seconds = std::ceil(*more.seconds + spent.seconds);
  return to_string(more);
}
