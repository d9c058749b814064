// SPDX-License-Identifier: Apache-2.0
// `qkv score`: how well a translator does on sentence pairs.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/app/file_error.h>
#include <qkv/context.h>

#include "io/parallel_text.h"
#include "shell/json_values.h"
#include "shell/outputs.h"
#include "shell/progress.h"
#include "text/bleu.h"
#include "train/commands.h"
#include "train/translation.h"

namespace {

using Json = nlohmann::ordered_json;
using qkv::Index;
using qkv::app::Bleu;
using qkv::app::TextPair;
using qkv::app::TranslationModel;

constexpr const char* kScoreFooter = R"(Examples:
  qkv gen dates -n 50 --split test --seed 1 -o test.tsv
  qkv score RUN test.tsv
  qkv score RUN test.tsv --beam 4 --json

log-probability: natural, of the targets with their end tokens; perplexity: exp(-it / tokens). BLEU
(Papineni et al. 2002, n = 1 to 4, smoothed as sacreBLEU does by default) and exact (the whole line)
compare the model's translations with the targets; tokens are the model's: characters, or
words and punctuation. Texts have at most 4096 tokens. Targets are lower-cased if the model was
trained so. A line with a token that the model does not know is never exact.)";

struct ScoreOptions {
  std::string run{};
  std::string data{};
  Index source_column = 0;
  Index target_column = 1;
  qkv::app::RunModel model = qkv::app::RunModel::kBest;
  qkv::app::SearchOptions search{};
  OutputOptions outputs{};
};

struct Scores {
  Index pairs = 0;
  Index tokens = 0;  // of the targets, including end tokens
  double log_probability = 0;
  Index exact = 0;
  Bleu bleu{};

  double per_token() const { return log_probability / static_cast<double>(tokens); }
  double perplexity() const { return std::exp(-per_token()); }
  double exact_percent() const {
    return 100 * static_cast<double>(exact) / static_cast<double>(pairs);
  }
};

// Accumulates the scores of blocks of pairs.
class Scorer {
 public:
  Scorer(const TranslationModel& model, const qkv::app::SearchOptions& search, int threads)
      : model_(model), search_(search), context_(qkv::Executor::threads(threads)) {
    search_.attention = false;
    context_.set_stop_flag(&stop_flag());
  }

  // Throws InputError for text that is too long.
  void add(TextPair pair, const std::string& file, Index line) {
    for (const std::string* text : {&pair.source, &pair.target}) {
      tokens_ += count_tokens(model_, *text, file, line);
    }
    pairs_.push_back(std::move(pair));
    if (is_enough(pairs_.size(), tokens_)) flush();
  }
  Scores finish() {
    flush();
    scores_.bleu = bleu_.result();
    return scores_;
  }

 private:
  void flush() {
    if (pairs_.empty()) return;
    const auto loss = qkv::app::loss(model_, pairs_, context_);
    scores_.tokens += loss.tokens;
    scores_.log_probability += loss.log_probability;
    std::vector<std::string> sources;
    sources.reserve(pairs_.size());
    for (const TextPair& pair : pairs_) sources.push_back(pair.source);
    const auto translations =
        qkv::app::translate(model_, sources, search_, context_, qkv::app::UnknownTokens::kKept);
    for (std::size_t n = 0; n < pairs_.size(); ++n) compare(translations[n], pairs_[n].target);
    scores_.pairs += std::ssize(pairs_);
    pairs_.clear();
    tokens_ = 0;
  }

  void compare(const qkv::app::TranslatedText& translation, const std::string& target) {
    const auto reference = qkv::app::split_text(target, model_.tokenization, model_.letters);
    std::vector<std::string> tokens = translation.target;
    if (translation.is_whole && !tokens.empty()) tokens.pop_back();
    bleu_.add(tokens, reference);
    if (translation.is_whole && tokens == reference) ++scores_.exact;
  }

  const TranslationModel& model_;
  qkv::app::SearchOptions search_;
  qkv::Context context_;
  std::vector<TextPair> pairs_{};
  std::size_t tokens_ = 0;
  qkv::app::BleuCounter bleu_{};
  Scores scores_{};
};

// Reads pairs and passes them on. Throws InputError for an empty field.
void read_pairs(const ScoreOptions& options, const Common& common, Scorer& scorer) {
  Progress progress(common, "score");
  qkv::app::ParallelTextOptions reading;
  reading.columns = {options.source_column, options.target_column};
  reading.stop = &stop_flag();
  const std::string name = options.data == "-" ? "<stdin>" : options.data;
  Index lines = 0;
  qkv::app::for_each_row(options.data, reading, [&](const auto& fields, Index line) {
    for (std::size_t field = 0; field < 2; ++field) {
      if (!fields[field].empty()) continue;
      throw qkv::app::InputError::at_line(
          name, line, fmt::format("expected text in column {}, got none", reading.columns[field]));
    }
    scorer.add({std::string(fields[0]), std::string(fields[1])}, name, line);
    progress.at(fmt::format("{} pairs", ++lines));
    return true;
  });
}

std::string report(const Scores& scores) {
  const auto& p = scores.bleu.precisions;
  return fmt::format(
      "pairs            {}\n"
      "target tokens    {}, including end tokens\n"
      "log-probability  {:.4f}, {:.6f} per token\n"
      "perplexity       {:.6g}\n"
      "BLEU             {:.2f}, of 1 to 4 tokens {:.2f} {:.2f} {:.2f} {:.2f}, brevity {:.2f}\n"
      "exact            {}, {:.2f} %\n",
      scores.pairs, scores.tokens, scores.log_probability, scores.per_token(), scores.perplexity(),
      scores.bleu.score, p[0], p[1], p[2], p[3], scores.bleu.brevity_penalty, scores.exact,
      scores.exact_percent());
}

Json json_of(const Scores& scores) {
  Json json;
  json["pairs"] = scores.pairs;
  json["target_tokens"] = scores.tokens;
  json["log_probability"] = json_number(scores.log_probability);
  json["log_probability_per_token"] = json_number(scores.per_token());
  json["perplexity"] = json_number(scores.perplexity());
  json["bleu"] = json_number(scores.bleu.score);
  json["bleu_precisions"] = scores.bleu.precisions;
  json["bleu_brevity_penalty"] = scores.bleu.brevity_penalty;
  json["exact"] = scores.exact;
  json["exact_percent"] = scores.exact_percent();
  return json;
}

void run(const ScoreOptions& options, const Common& common) {
  check_search(options.search);
  Scores scores;
  Results results;
  results.text = [&] { return report(scores); };
  results.json = [&] { return json_of(scores); };
  check_outputs(options.outputs, results);
  check_inputs(options.outputs, {options.data});
  check_inputs(options.outputs, model_files(options.run));
  const TranslationModel model = read_model(options.run, options.model);
  Scorer scorer(model, options.search, common.threads);
  read_pairs(options, common, scorer);
  scores = scorer.finish();
  write_outputs(options.outputs, results, common);
}

}  // namespace

void add_score(const Command& program, const Common& common) {
  const Command command =
      program.add_command("score", "how well a translator does on sentence pairs");
  const auto options = std::make_shared<ScoreOptions>();
  command.add_option("RUN", options->run, kRunHelp).required().type_name("");
  command
      .add_option("DATA", options->data, "tab-separated text, one pair a line; - is standard input")
      .required()
      .type_name("");
  add_columns(command, options->source_column, options->target_column);
  add_run_model(command, options->model);
  add_search(command, options->search);
  add_outputs(command, options->outputs, "txt");
  command.footer(kScoreFooter);
  command.callback([options, &common] { run(*options, common); });
}
