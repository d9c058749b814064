// SPDX-License-Identifier: Apache-2.0
// `qkv score`: compares translations with those that people wrote.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <qkv/context.h>

#include "commands/shell/exit_codes.h"
#include "commands/shell/outputs.h"
#include "commands/shell/progress.h"
#include "commands/train/commands.h"
#include "commands/train/score_report.h"
#include "commands/train/test_pairs.h"
#include "commands/train/translation.h"
#include "text/corpus_score.h"
#include "text/sentences.h"

namespace {

using qkv::Index;
using qkv::app::Sentence;
using qkv::app::SentenceCounts;
using qkv::app::TextPair;
using qkv::app::TranslationModel;

constexpr const char* kScoreFooter = R"(Examples:
  qkv gen dates -n 50 --split test --seed 1 -o test.tsv
  qkv score RUN test.tsv
  qkv score RUN test.tsv --beam 4 --json

Lines of DATA with the same source are one sentence with several references. BLEU (Papineni et al.
2002) and chrF2 (Popovic 2016) are as sacreBLEU computes them by default, with its signatures: of
whole texts, with its tokenizer 13a, any number of references, and exponential smoothing. They
compare the text that qkv translate prints with DATA as it is. exact: translations that equal a
reference, except for the kind of white space and of quotation marks.

Where 100 sentences or more have several references, "one reference" scores the translations against
the first alone, and then the next different reference in the same way: a measure of how well people
agree. --json has it for fewer, too.

log-probability: the natural log-probability of the targets of all lines, end tokens included;
perplexity: exp(-log-probability / tokens). Texts have at most 4096 tokens.

--hypotheses scores translations that were made elsewhere, one per line: one for each different
source in the order of DATA, or one for each line of DATA, where the first of each source counts.
RUN is left out: qkv score --hypotheses THEIRS DATA.

--against also scores other translations, and gives p by paired bootstrap resampling (Koehn 2004, as
in sacreBLEU): how likely a difference at least this large is for systems that are equally good.)";

struct ScoreOptions {
  std::string run{};
  std::string data{};
  std::string hypotheses{};
  std::string against{};
  PairColumns columns{};
  bool has_columns = false;  // whether the command line gives `columns`
  bool skip_bad = false;
  qkv::app::RunModel model = qkv::app::RunModel::kBest;
  qkv::app::SearchOptions search{};
  qkv::app::Resampling resampling{};
  OutputOptions outputs{};
};

// Calls take(begin, end) for consecutive ranges [begin, end) of items, each a full batch for the
// model, except that the last may be smaller. A pass pads all items to the longest, so its range
// also ends before an item with which the padded batch would be too large. length(n) is the number
// of tokens of item n.
template <class Length, class Take>
void for_each_batch(Batch batch, std::size_t items, const Length& length, const Take& take) {
  std::size_t begin = 0;
  std::size_t tokens = 0;
  std::size_t longest = 0;
  constexpr std::size_t kMostPadded = 16384;
  for (std::size_t n = 0; n < items; ++n) {
    const std::size_t item_length = length(n);
    const std::size_t padded = std::max(longest, item_length) * (n + 1 - begin);
    if (batch == Batch::kPass && n > begin && padded > kMostPadded) {
      take(begin, n);
      begin = n;
      tokens = longest = 0;
    }
    tokens += item_length;
    longest = std::max(longest, item_length);
    if (n + 1 < items && !is_full(batch, n + 1 - begin, tokens)) continue;
    take(begin, n + 1);
    begin = n + 1;
    tokens = longest = 0;
  }
}

// Computes a model's loss and translations of the sentence pairs.
class ModelRun {
 public:
  ModelRun(const TranslationModel& model, const qkv::app::SearchOptions& search,
           const Common& common)
      : model_(model),
        search_(search),
        context_(qkv::Executor::threads(common.threads)),
        progress_(common, "score") {
    search_.attention = false;
    search_.scores = qkv::app::SearchScores::kIfCompared;
    context_.set_stop_flag(&stop_flag());
  }

  qkv::app::TranslationLoss loss(const TestPairs& data) {
    qkv::app::TranslationLoss sum;
    const auto length = [&](std::size_t n) { return data.lengths[n]; };
    for_each_batch(Batch::kPass, data.pairs.size(), length,
                   [&](std::size_t begin, std::size_t end) {
                     const auto batch = std::span(data.pairs).subspan(begin, end - begin);
                     const auto loss = qkv::app::loss(model_, batch, context_);
                     sum.tokens += loss.tokens;
                     sum.log_probability += loss.log_probability;
                     progress_.at(fmt::format("{} of {} pairs", end, data.pairs.size()));
                   });
    return sum;
  }

  std::vector<std::string> translate(const TestPairs& data) {
    const std::vector<Sentence>& sentences = data.sentences.all();
    std::vector<std::string> translations;
    const auto length = [&](std::size_t n) {
      return count_tokens(model_, sentences[n].source, data.name, 0);
    };
    for_each_batch(
        Batch::kSearch, sentences.size(), length, [&](std::size_t begin, std::size_t end) {
          std::vector<std::string> sources;
          for (std::size_t n = begin; n < end; ++n) sources.push_back(sentences[n].source);
          for (auto& translated : qkv::app::translate(model_, sources, search_, context_)) {
            translations.push_back(std::move(translated.text));
          }
          progress_.at(fmt::format("{} of {} sentences", end, sentences.size()));
        });
    return translations;
  }

 private:
  const TranslationModel& model_;
  qkv::app::SearchOptions search_;
  qkv::Context context_;
  Progress progress_;
};

std::vector<SentenceCounts> counts_of(const std::vector<Sentence>& sentences,
                                      const std::vector<std::string>& translations) {
  std::vector<SentenceCounts> counts;
  for (std::size_t n = 0; n < sentences.size(); ++n) {
    counts.push_back(qkv::app::sentence_counts(translations[n], sentences[n].references));
  }
  return counts;
}

// The first reference that differs from the very first one; null if there is none.
const std::string* next_reference(const Sentence& sentence) {
  const std::string first = qkv::app::folded_text(sentence.references[0]);
  const auto next = std::ranges::find_if(sentence.references, [&](const std::string& reference) {
    return qkv::app::folded_text(reference) != first;
  });
  return next == sentence.references.end() ? nullptr : &*next;
}

std::optional<OneReference> with_one_reference(const std::vector<Sentence>& sentences,
                                               const std::vector<std::string>& translations) {
  OneReference one;
  std::vector<SentenceCounts> translated;
  std::vector<SentenceCounts> human;
  for (std::size_t n = 0; n < sentences.size(); ++n) {
    const std::string* next = next_reference(sentences[n]);
    if (next == nullptr) continue;
    const auto first = std::span(sentences[n].references).first(1);
    translated.push_back(qkv::app::sentence_counts(translations[n], first));
    human.push_back(qkv::app::sentence_counts(*next, first));
    one.signature.add(1);
  }
  if (human.empty()) return {};
  one.translations = corpus_score(translated);
  one.humans = corpus_score(human);
  return one;
}

Scores compare(const ScoreOptions& options, const TestPairs& data,
               const std::vector<std::string>& translations) {
  const std::vector<Sentence>& sentences = data.sentences.all();
  const std::vector<SentenceCounts> counts = counts_of(sentences, translations);
  Scores scores;
  scores.pairs = std::ssize(data.pairs);
  scores.score = corpus_score(counts);
  for (const Sentence& sentence : sentences) scores.signature.add(std::ssize(sentence.references));
  scores.one_reference = with_one_reference(sentences, translations);
  if (options.against.empty()) return scores;
  const auto others = counts_of(sentences, read_translations(options.against, data));
  scores.rival = {options.against, corpus_score(others),
                  paired_bootstrap(counts, others, options.resampling, &stop_flag()),
                  options.resampling};
  return scores;
}

Scores score_model(const ScoreOptions& options, const Common& common) {
  const TranslationModel model = read_model(options.run, options.model);
  const PairColumns columns = options.has_columns ? options.columns : columns_of_run(options.run);
  const auto check = [&](const TextPair& pair, const std::string& file, Index line) {
    return count_tokens(model, pair.source, file, line) +
           count_tokens(model, pair.target, file, line);
  };
  const TestPairs data =
      read_test_pairs(options.data, columns,
                      options.skip_bad ? BadPairs::kSkipped : BadPairs::kSkippable, check, common);
  ModelRun run(model, options.search, common);
  const qkv::app::TranslationLoss loss = run.loss(data);
  Scores scores = compare(options, data, run.translate(data));
  scores.loss = loss;
  return scores;
}

Scores score_file(const ScoreOptions& options, const Common& common) {
  const auto check = [](const TextPair&, const std::string&, Index) { return std::size_t{0}; };
  const TestPairs data =
      read_test_pairs(options.data, options.columns, BadPairs::kRefused, check, common);
  return compare(options, data, read_translations(options.hypotheses, data));
}

// Throws UsageError that names the missing one of RUN and DATA, inferred from the given one.
[[noreturn]] void refuse_one_argument(const std::string& given) {
  std::error_code failed;
  const bool is_model =
      given.ends_with(".safetensors") || !std::filesystem::is_regular_file(given, failed);
  const std::string name = in_shell(given);
  throw UsageError(is_model ? fmt::format("DATA is required: qkv score {} DATA", name)
                            : fmt::format("RUN is required, before DATA: qkv score RUN {}", name));
}

// Assigns the positional arguments: with --hypotheses there is no RUN.
void resolve(ScoreOptions& options) {
  if (!options.hypotheses.empty()) {
    if (!options.data.empty()) {
      throw UsageError(
          fmt::format("--hypotheses takes the place of RUN: qkv score --hypotheses {} {}",
                      in_shell(options.hypotheses), in_shell(options.data)));
    }
    options.data = std::exchange(options.run, "");
    if (options.data.empty()) throw UsageError("DATA is required");
  }
  if (options.hypotheses.empty() && options.run.empty()) throw UsageError("RUN is required");
  if (options.data.empty()) refuse_one_argument(options.run);
  const std::string* inputs[] = {&options.data, &options.hypotheses, &options.against};
  if (std::ranges::count(inputs, "-", [](const auto* path) { return *path; }) > 1) {
    throw UsageError("only one of DATA, --hypotheses and --against can be standard input");
  }
}

void run(ScoreOptions options, const Common& common) {
  resolve(options);
  check_search(options.search);
  Scores scores;
  Results results;
  results.text = [&] { return text_of(scores); };
  results.json = [&] { return json_of(scores); };
  check_outputs(options.outputs, results);
  check_inputs(options.outputs, {options.data, options.hypotheses, options.against});
  if (!options.run.empty()) check_inputs(options.outputs, model_files(options.run));
  scores = options.run.empty() ? score_file(options, common) : score_model(options, common);
  write_outputs(options.outputs, results);
}

// Adds the options of a model, which exclude --hypotheses.
void add_model_options(const Command& command, ScoreOptions& options, const Option& hypotheses) {
  add_run_model(command, options.model);
  add_search(command, options.search);
  for (const char* name : {"--model", "--beam", "--length-penalty"}) {
    hypotheses.excludes(command.option(name));
  }
}

void add_comparison(const Command& command, ScoreOptions& options) {
  constexpr Index kMostSamples = 1'000'000;
  const Option against =
      command
          .add_option("--against", options.against,
                      "other translations, and whether they differ by more than chance")
          .type_name("FILE");
  add_number(command, "--resamples", options.resampling.samples, Bounds<Index>{1, kMostSamples},
             "samples of the paired bootstrap (default 1000)")
      .needs(against);
  add_number(command, "--seed", options.resampling.seed, Bounds<std::uint64_t>{},
             "random seed of the samples (default 0)")
      .needs(against);
}

}  // namespace

void add_score(const Command& program, const Common& common) {
  const Command command =
      program.add_command("score", "measure how well translations match references");
  const auto options = std::make_shared<ScoreOptions>();
  command.add_option("RUN", options->run, fmt::format("{}; not with --hypotheses", kRunHelp))
      .type_name("");
  command
      .add_option("DATA", options->data,
                  "tab-separated text, one pair per line; - is standard input")
      .needed()
      .type_name("");
  const Option hypotheses =
      command
          .add_option("--hypotheses", options->hypotheses,
                      "score these translations, one per line, in place of a model's")
          .type_name("FILE");
  const Option columns =
      add_columns(command, options->columns.source, options->columns.target,
                  "default: those with which RUN was trained; 0,1 for a model file");
  hypotheses.excludes(
      command.add_flag("--skip-bad", options->skip_bad,
                       "skip lines that are not pairs; a warning counts and names them"));
  add_model_options(command, *options, hypotheses);
  add_comparison(command, *options);
  add_outputs(command, options->outputs, "txt", {});
  command.footer(kScoreFooter);
  command.callback([options, columns, &common] {
    options->has_columns = columns.is_given();
    run(*options, common);
  });
}
