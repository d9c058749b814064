// SPDX-License-Identifier: Apache-2.0
// `qkv train`: trains a translator on sentence pairs, in a folder from which it can be resumed.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include <qkv/app/file_error.h>
#include <qkv/app/translation_model.h>
#include <qkv/error.h>

#include "commands/shell/exit_codes.h"
#include "commands/shell/launched.h"
#include "commands/shell/memory.h"
#include "commands/shell/options.h"
#include "commands/shell/progress.h"
#include "commands/train/commands.h"
#include "commands/train/train_report.h"
#include "commands/train/translation.h"
#include "ranks/collective.h"
#include "translator/model/model_names.h"
#include "translator/training/translation_run.h"

namespace {

using qkv::Index;
using qkv::app::Budget;
using qkv::app::InputError;
using qkv::app::LetterCase;
using qkv::app::TiedEmbeddings;
using qkv::app::TrainingEnd;
using qkv::app::TrainingOptions;
using qkv::app::TrainingProgress;
using qkv::app::TrainingReport;
using qkv::app::TrainingValidation;

constexpr Index kMostCount = 1'000'000'000;

constexpr const char* kTrainFooter = R"(Examples:
  qkv gen dates -n 20000 --split train -o dates.tsv
  qkv train dates.tsv -o RUN --after 2u --batch-tokens 500
  qkv train RUN --after 4u

Trains a translator with attention (Bahdanau, Cho, Bengio 2015) on lines of source, tab, target,
using Adam with warm-up and decay, in batches of pairs of similar length.

qkv train RUN resumes a run: its settings and the paths of its data are in the folder. --after is
the limit of all training in the folder together, in e (epochs), u (updates), or s, m, h (time);
the first limit reached ends the run. Other settings that are given must be those of the run; only
--after, --save-freq, --keep, --skip-bad and --threads may change. If the data has moved:
qkv train DATA -o RUN --valid FILE. Files that have moved together with RUN are found, and the error
message of qkv train RUN states the whole command.

With --skip-bad, lines of DATA and of --valid that are no pairs (too few columns, an empty text, not
UTF-8) are left out; a warning counts and names them. Blank lines at the end of a file are no error.

During training, standard error shows the loss of the last update and the speed in target tokens
(with end tokens) per second of training. Each validation is shown with its loss and perplexity,
BLEU and exact matches of the first sentences (--valid-translate) as in qkv score, the share of
updates since the previous one whose gradients were clipped, and a different sentence each time.
--quiet hides all this; train.jsonl keeps the validations, and qkv curve RUN draws them.

--best sets which validation is the best, and so what --patience waits for: bleu (the smaller loss
if BLEU is equal, or if no reference has the 4 tokens that BLEU needs) or loss. --valid-freq 5m
validates every five minutes, counted from the end of the previous validation, over all training in
the folder. --valid-freq does not change how the parameters are trained; but with a time, the best
ones and the end by --patience depend on the machine's speed. --keep 4 keeps the parameters of the
last four validations for qkv average.

Subwords are pieces of words, --vocab of them, that SentencePiece learns from both languages. Text
that no piece covers is written as bytes, so that nothing is unknown. The folder and the models
hold the pieces.

Ctrl-C (or SIGTERM) saves and exits with 130 (143); if the process is killed, its progress since the
last save is lost. With budgets in epochs or updates, the parameters of an interrupted and resumed
run are bit-identical to those of an uninterrupted one, on any number of threads. A loss that is not
finite ends the run with exit code 5 and keeps the last checkpoint.

mpirun -n 4 qkv train ... divides the work of each update among processes, which may run on several
machines that share DATA and RUN (docs/cluster.md). The parameters are bit-identical to those of one
process.

RUN holds plain files: config.json (all settings), source.vocab.json, target.vocab.json (with
subwords SentencePiece's subwords.model instead), model.safetensors (the latest parameters),
best.safetensors (the best on --valid; the latest before the first validation, or without --valid),
state.safetensors (the checkpoint), train.jsonl (a line for each epoch, each validation, and where a
run ended), checkpoint-N.safetensors (with --keep).)";

struct TrainOptions {
  TrainingOptions training{};
  std::string folder{};
  std::vector<std::string> given{};  // names in config.json of settings on the command line
  bool resumes = false;              // whether the other settings are a run's, not the defaults
};

// The text of a library's error about an option: "--lr: must be positive, got -1".
std::string said_of_option(const qkv::Error& error, const TrainOptions& options) {
  const std::string setting = error.argument() == "rate" ? "learning_rate" : error.argument();
  const std::string option = qkv::app::option_of(setting);
  const std::string_view text = error.what();
  const std::size_t rule = text.find("must ");
  if (rule == text.npos || option.empty()) return std::string(text);
  const bool is_default = !options.resumes && std::ranges::count(options.given, setting) == 0;
  return fmt::format("{}: {}{}", option, text.substr(rule),
                     is_default ? fmt::format(" (the default of {})", option) : "");
}

// Adds an option whose value is a budget such as "10e,5000u,30m".
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

// The names in config.json of the settings that the command line gives.
std::vector<std::string> settings_given(const Command& command) {
  std::vector<std::string> settings;
  for (const std::string& option : command.given()) {
    if (option == "--output") continue;
    const std::vector<std::string> its = qkv::app::settings_of_option(option);
    settings.insert(settings.end(), its.begin(), its.end());
    if (its.empty()) settings.push_back(option);  // not a setting; options_of_run() reports it
  }
  return settings;
}

// The command that resumes the run.
std::string resuming(const TrainOptions& options) {
  const bool is_piped = options.training.data == "-";
  return fmt::format("qkv train {}{}", is_piped ? "- -o " : "", in_shell(options.folder));
}

// Reports why training cannot begin without -o: the named path is not a folder with a run.
[[noreturn]] void refuse_without_folder(const std::string& named) {
  std::error_code failed;
  if (std::filesystem::is_directory(named, failed)) {
    throw InputError(named,
                     "expected pairs to train on, or a folder that holds a run, got a folder "
                     "without config.json");
  }
  if (named == "-" || std::filesystem::exists(named, failed)) {
    throw UsageError(fmt::format("--output is required to train on a file: qkv train {} -o FOLDER",
                                 in_shell(named)));
  }
  throw InputError(named,
                   "No such file or folder; a run begins with qkv train DATA -o FOLDER and is "
                   "resumed with qkv train FOLDER");
}

// A file of the run's data, as the command line names it, else as config.json does.
struct DataFile {
  std::string path{};
  bool is_given = false;  // whether the command line names it again

  bool is_piped() const { return !is_given && path == "-"; }
  bool is_missing() const {
    std::error_code failed;  // if exists() fails, reading the file reports why
    return !is_given && !path.empty() && path != "-" && !std::filesystem::exists(path, failed) &&
           !failed;
  }
};

// Looks for a file that has moved together with the run: the last parts of its old path, as many as
// possible, below the nearest folder above the run. Empty if there is none.
std::string moved_with(const std::string& run, const std::string& old) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path start = fs::weakly_canonical(run, failed);
  for (fs::path above = start.parent_path();; above = above.parent_path()) {
    const fs::path relative = fs::path(old).relative_path();
    for (auto first = relative.begin(); first != relative.end(); ++first) {
      fs::path candidate = above;
      for (auto part = first; part != relative.end(); ++part) candidate /= *part;
      if (fs::is_regular_file(candidate, failed)) return fs::proximate(candidate, failed).string();
    }
    if (above == above.parent_path()) return {};
  }
}

// The command that resumes a run whose missing files have moved: it names each file that
// moved_with() finds, and has DATA or FILE in place of any other.
std::string resuming_moved(const TrainOptions& options, const DataFile& data, const DataFile& valid,
                           const std::vector<std::string>& given) {
  const auto place = [&](const std::string& old, const char* name) {
    const std::string moved = moved_with(options.folder, old);
    return moved.empty() ? name : in_shell(moved);
  };
  std::string command = resuming(options);
  if (data.is_missing()) {
    command = fmt::format("qkv train {} -o {}", place(data.path, "DATA"), in_shell(options.folder));
  } else if (data.is_given && options.training.data != "-") {
    command = fmt::format("qkv train {} -o {}", in_shell(options.training.data),
                          in_shell(options.folder));
  }
  if (valid.is_missing()) {
    command += fmt::format(" --valid {}", place(valid.path, "FILE"));
  } else if (valid.is_given) {
    command += fmt::format(" --valid {}", in_shell(options.training.valid));
  }
  const auto is_given = [&](const char* name) { return std::ranges::count(given, name) > 0; };
  if (is_given("after")) command += fmt::format(" --after {}", to_string(options.training.after));
  if (is_given("save_every")) {
    command += fmt::format(" --save-freq {}", to_string(options.training.save_every));
  }
  if (is_given("keep")) command += fmt::format(" --keep {}", options.training.keep);
  if (data.is_piped()) command += " < DATA";
  return command;
}

// Checks that the run's data can be read again: all that is missing is reported at once, with the
// whole command to use if it has moved.
void check_data_files(const TrainOptions& options, const DataFile& data, const DataFile& valid,
                      const std::vector<std::string>& given) {
  const std::string moved = resuming_moved(options, data, valid, given);
  if (data.is_piped()) {
    throw UsageError(fmt::format(
        "the data of the run came from standard input, so it must be given again: {}", moved));
  }
  if (!data.is_missing() && !valid.is_missing()) return;
  const char* const what = !data.is_missing()    ? "the validation data of the run is"
                           : !valid.is_missing() ? "the data of the run is"
                                                 : "the data and validation data of the run are";
  throw InputError(data.is_missing() ? data.path : valid.path,
                   fmt::format("{} not there any more; if moved: {}", what, moved));
}

// Throws UsageError for --best or --valid-translate without --valid.
void check_applies(const TrainingOptions& options, const std::vector<std::string>& given) {
  const auto is_given = [&](const char* name) { return std::ranges::count(given, name) > 0; };
  if (!options.valid.empty()) return;
  if (is_given("best")) throw UsageError("--best requires --valid");
  if (is_given("valid_translate")) throw UsageError("--valid-translate requires --valid");
}

// Checks that no given option applies only to other kinds of tokens.
void check_tokens(const TrainingOptions& options, const std::vector<std::string>& given) {
  const bool has_subwords = options.tokenization == qkv::app::Tokenization::kSubword;
  const auto is_given = [&](const char* name) { return std::ranges::count(given, name) > 0; };
  for (const auto& [setting, option] :
       {std::pair{"vocab", "--vocab"}, std::pair{"subword_model", "--subword-model"}}) {
    if (!has_subwords && is_given(setting)) {
      throw UsageError(fmt::format("{} requires --tokenize subword", option));
    }
  }
  if (has_subwords && is_given("min_count")) {
    throw UsageError("--min-count does not apply to subwords, all of which are known");
  }
}

// Sets the run's folder and, if the folder holds a run, the options with which the run resumes.
void resolve(TrainOptions& options, const Command& command) {
  std::vector<std::string> given = settings_given(command);
  const std::string named = options.training.data;
  if (qkv::app::holds_run(named)) {
    if (!options.folder.empty()) {
      throw UsageError(
          fmt::format("{} holds a run, which is resumed in its own folder, without -o: "
                      "qkv train {}",
                      named, in_shell(named)));
    }
    options.folder = named;
    std::erase(given, "data");
  }
  if (options.folder.empty()) refuse_without_folder(named);
  options.given = given;
  options.resumes = qkv::app::holds_run(options.folder);
  if (!options.resumes) {
    check_tokens(options.training, given);
    check_applies(options.training, given);
  } else {
    options.training = options_of_run(options.folder, options.training, given);
    const auto is_given = [&](const char* name) { return std::ranges::count(given, name) > 0; };
    check_data_files(options, {options.training.data, is_given("data")},
                     {options.training.valid, is_given("valid")}, given);
  }
  if (!options.training.valid.empty()) return;
  if (options.training.patience > 0) throw UsageError("--patience requires --valid");
  const bool says_when = std::ranges::count(given, "validate_every") > 0;
  if (says_when && options.training.keep == 0) {  // --keep uses --valid-freq too
    throw UsageError("--valid-freq requires --valid or --keep");
  }
}

std::string budget_of(const TrainOptions& options) {
  const bool is_default = !options.resumes && std::ranges::count(options.given, "after") == 0;
  return budget_text(options.training.after, is_default);
}

// Warns if there was nothing left to train.
void warn_if_idle(const TrainOptions& options, const TrainingReport& report, const Common& common) {
  if (report.resumed != report.spent.updates) return;
  if (report.end == TrainingEnd::kPatience) {
    warn(common, fmt::format("nothing was trained: validation stopped improving at update {}",
                             report.spent.updates));
  }
  if (report.end == TrainingEnd::kBudget) {
    warn(common, fmt::format("nothing was trained: {} is used up; to resume: {} --after {}",
                             budget_of(options), resuming(options),
                             longer(options.training.after, report.spent)));
  }
}

// Checks that memory suffices for the float32 parameters, gradients and two moments of Adam of the
// encoder and of the decoder's cell, start and readout. Embeddings and attention are left out.
void check_memory(const qkv::app::TranslatorConfig& model) {
  constexpr double kBytes = 4 * sizeof(float);
  const auto H = static_cast<double>(model.hidden);
  const auto layers = static_cast<double>(model.encoder_layers);
  const auto direction = [H](double input) { return 3 * H * (input + H); };
  const auto embedding = static_cast<double>(model.embedding);
  const double first = 2 * direction(embedding);
  const bool has_heads = model.attention == qkv::app::TranslatorAttention::kMultiHead;
  const bool is_tied = model.tied_embeddings == qkv::app::TiedEmbeddings::kOutput;
  const double contexts = has_heads ? H : 2 * H;
  const double readout = is_tied ? embedding : H;
  const double decoder =
      direction(embedding + contexts) + H * H + 2 * readout * (H + contexts + embedding);
  const double parameters = first + (layers - 1) * 2 * direction(2 * H) + decoder;
  const qkv::app::TranslatorConfig usual;
  const auto or_default = [](bool is_default) { return is_default ? " (the default)" : ""; };
  ::check_memory(kBytes * parameters,
                 fmt::format("a model of --hidden {}{} and --encoder-layers {}{}", model.hidden,
                             or_default(model.hidden == usual.hidden), model.encoder_layers,
                             or_default(model.encoder_layers == usual.encoder_layers)),
                 "smaller ones take less");
}

TrainingReport train(const TrainOptions& options, const Common& common) {
  Progress progress(common, "train");
  qkv::app::TrainingHooks hooks;
  hooks.stop = &stop_flag();
  hooks.progress = [&](const TrainingProgress& now) { progress.at(text_of(now)); };
  hooks.learning = [&](Index pieces, Index pairs) {
    constexpr Index kSlow = 10'000;  // this many pairs take about a second
    const std::string step = fmt::format("learning {} subwords from {} pairs", pieces, pairs);
    pairs < kSlow ? progress.at(step) : progress.now(step);
  };
  hooks.warning = [&](const std::string& text) { warn(common, text); };
  hooks.validation = [&](const TrainingValidation& done) { progress.keep(text_of(done)); };
  hooks.lone_error = &lone_error;
  try {
    return train_translation(options.training, options.folder, hooks);
  } catch (const qkv::Error& error) {
    throw UsageError(said_of_option(error, options));
  }
}

// Trains alone, or as one of several processes, of which only the first prints the report.
void run(TrainOptions options, const Command& command, Common common) {
  qkv::ranks::OneRank alone;
  qkv::Ranks* const joined = join_ranks();
  qkv::Ranks& ranks = joined == nullptr ? alone : *joined;
  const bool is_first = ranks.rank() == 0;
  if (!is_first) {
    common.quiet = true;
    common.progress = ProgressMode::kNever;
  }
  qkv::ranks::agreed(ranks, [&] {
    resolve(options, command);
    check_memory(options.training.model);
    options.training.executor = qkv::Executor::threads(common.threads);
  });
  keep_freed_memory();
  options.training.ranks = joined;
  const TrainingReport report = train(options, common);
  if (report.end == TrainingEnd::kStopped) {
    warn(common, fmt::format("stopped and saved at update {}; to resume: {}", report.spent.updates,
                             resuming(options)));
    throw qkv::Cancelled("train");
  }
  if (is_first) {
    print(text_of(report, options.folder, options.training, budget_of(options)));
  }
  warn_if_idle(options, report, common);
}

void add_data_options(const Command& command, TrainingOptions& o, bool& lower) {
  command
      .add_option(
          "DATA", o.data,
          "lines of source, tab, target; - is standard input; or the folder of a run to resume")
      .required()
      .type_name("");
  add_columns(command, o.source_column, o.target_column);
  command.add_flag("--skip-bad", o.skip_bad,
                   "skip lines that are not pairs; a warning counts and names them");
  add_choice(command, "--tokenize", o.tokenization, qkv::app::kTokenizations,
             "translate characters (default), words, or subwords: pieces of words");
  add_number(command, "--vocab", o.subwords.vocabulary, Bounds<Index>{1, kMostCount},
             fmt::format("number of subword pieces, shared by both languages (default {})",
                         o.subwords.vocabulary));
  add_choice(command, "--subword-model", o.subwords.algorithm, qkv::app::kSubwordAlgorithms,
             "how SentencePiece finds pieces (default unigram)");
  command.add_flag("--lower", lower, "convert letters to lower case");
  add_number(command, "--min-count", o.min_count, Bounds<Index>{1, kMostCount},
             "rarer tokens become unknown tokens (default 1)");
  add_number(command, "--max-length", o.max_length, Bounds<Index>{1, kLargestSize},
             "leave out pairs with more tokens on either side (default 200)");
  command.add_option("--valid", o.valid, "pairs to validate on").type_name("FILE");
  add_number(command, "--patience", o.patience, Bounds<Index>{1, kMostCount},
             "stop after this many validations without improvement (default: never)");
  add_budget(command, "--valid-freq", o.validate_every,
             "validate every so many epochs, updates, or minutes: 2e, 500u, 5m (default 1e)");
  add_number(command, "--valid-translate", o.valid_translate, Bounds<Index>{1, kMostCount},
             fmt::format("translate the first N validation sentences for BLEU (default {})",
                         o.valid_translate));
  add_choice(command, "--best", o.best, qkv::app::kBestBy,
             "what makes a validation the best: the highest BLEU (default) or the lowest loss");
}

void add_model_options(const Command& command, qkv::app::TranslatorConfig& model, bool& tied) {
  add_choice(
      command, "--attention", model.attention, qkv::app::kTranslatorAttentions,
      "how the decoder attends to the source (default additive); none: the encoder's last states "
      "alone");
  const auto size = [&](const char* name, Index& target, const char* help) {
    add_number(command, name, target, Bounds<Index>{1, kLargestSize},
               fmt::format("{} (default {})", help, target));
  };
  size("--embedding", model.embedding, "width of the embeddings");
  size("--hidden", model.hidden, "width of the GRU states");
  size("--encoder-layers", model.encoder_layers, "layers of the encoder");
  size("--units", model.units, "units of additive attention");
  size("--heads", model.heads, "heads of multihead attention");
  command.add_flag("--tied-embeddings", tied,
                   "the output's weight is the target embedding: fewer parameters");
  add_real(command, "--dropout", model.dropout,
           fmt::format("dropout on embeddings and readout (default {})", model.dropout));
  add_real(command, "--label-smoothing", model.label_smoothing,
           fmt::format("probability spread over all tokens (default {})", model.label_smoothing));
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
             "save every so many updates, epochs or seconds (default 500u)");
  add_number(command, "--keep", o.keep, Bounds<Index>{0, kMostCount},
             "keep the parameters of the last N validations (not of the extra one at the end of a "
             "budget), for qkv average (default 0)");
}

}  // namespace

void add_train(const Command& program, const Common& common) {
  const Command command = program.add_command("train", "train a translator");
  const auto options = std::make_shared<TrainOptions>();
  const auto lower = std::make_shared<bool>(false);
  const auto tied = std::make_shared<bool>(false);
  command.add_option("-o,--output", options->folder, "folder of the run to begin or to resume")
      .type_name("FOLDER");
  add_data_options(command, options->training, *lower);
  add_model_options(command, options->training.model, *tied);
  add_learning_options(command, options->training);
  command.footer(kTrainFooter);
  command.callback([options, lower, tied, command, &common] {
    if (*lower) options->training.letters = LetterCase::kLower;
    if (*tied) options->training.model.tied_embeddings = TiedEmbeddings::kOutput;
    run(*options, command, common);
  });
}
