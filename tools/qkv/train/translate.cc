// SPDX-License-Identifier: Apache-2.0
// `qkv translate`: a line in, its translation out.
#include "train/translate.h"

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <qkv/app/file_error.h>
#include <qkv/app/translation_model.h>
#include <qkv/context.h>

#include "io/parallel_text.h"
#include "shell/exit_codes.h"
#include "shell/progress.h"
#include "shell/terminal.h"
#include "train/commands.h"

namespace {

using qkv::Index;
using qkv::app::TranslationModel;

constexpr const char* kTranslateFooter = R"(Examples:
  qkv translate --demo "the 3rd of May, 1987" --show
  qkv gen dates -n 5 --split test -o few.tsv
  qkv translate RUN few.tsv --beam 4 --scores
  qkv translate RUN few.tsv -o alignments.npz

Each line is translated to one line, in order and as soon as possible; of a line with tabs the first
column is read. An empty line stays empty. Lines have at most 4096 tokens. Unknown tokens are read
as <unk>. A translation that has not ended after --most-tokens tokens is truncated.

-o keeps all lines and their attention: .npz and .safetensors hold attn [lines,1,1,tokens of the
translation, tokens of the line], padded with <pad>, and src, tgt, mask, line, translation and
log_probability (qkv view FILE --example N draws them); an .svg, .png or .pdf shows one line; a .txt
has the translations.)";

// Translates lines as they arrive, several at a time.
class LineTranslator {
 public:
  using Take = std::function<void(std::vector<TranslatedLine>& lines)>;

  LineTranslator(const TranslationModel& model, const qkv::app::SearchOptions& search,
                 const Common& common, Take take)
      : model_(model),
        search_(search),
        context_(qkv::Executor::threads(common.threads)),
        take_(std::move(take)) {
    context_.set_stop_flag(&stop_flag());
  }

  // Throws InputError for a line that is too long.
  void add(std::string_view text, const std::string& file, Index line) {
    tokens_ += count_tokens(model_, text, file, line);
    texts_.emplace_back(text);
    if (is_enough(texts_.size(), tokens_)) flush();
  }

  void flush() {
    std::vector<TranslatedLine> lines;
    auto translations = qkv::app::translate(model_, texts_, search_, context_);
    for (std::size_t n = 0; n < texts_.size(); ++n) {
      lines.push_back({std::move(texts_[n]), std::move(translations[n])});
    }
    texts_.clear();
    tokens_ = 0;
    take_(lines);
  }

 private:
  const TranslationModel& model_;
  const qkv::app::SearchOptions search_;
  qkv::Context context_;
  Take take_;
  std::vector<std::string> texts_{};
  std::size_t tokens_ = 0;
};

// No more input is pending: a person or program writing it may be waiting for an answer.
bool is_waiting() {
  struct pollfd input {};
  input.fd = STDIN_FILENO;
  input.events = POLLIN;
  return ::poll(&input, 1, 0) == 0;
}

// Every line of the input, or the words of --demo as one line.
void translate_all(const TranslateOptions& options, LineTranslator& lines) {
  const bool is_text = !options.demo.empty() && options.demo != std::vector<std::string>{"-"};
  if (is_text) {
    const std::string text = fmt::format("{}", fmt::join(options.demo, " "));
    if (!qkv::app::from_utf8(text)) {
      throw UsageError("--demo: expected UTF-8 text, got " + qkv::app::quoted(text));
    }
    lines.add(text, "TEXT", 1);
    return lines.flush();
  }
  qkv::app::ParallelTextOptions reading;
  reading.columns = {0};
  reading.empty_lines = qkv::app::EmptyLines::kKept;
  reading.stop = &stop_flag();
  const std::string name = options.input == "-" ? "<stdin>" : options.input;
  try {
    qkv::app::for_each_row(options.input, reading, [&](const auto& fields, Index line) {
      lines.add(fields[0], name, line);
      if (options.input == "-" && is_waiting()) lines.flush();
      return true;
    });
  } catch (const qkv::app::InputError&) {
    lines.flush();  // those before the malformed one
    throw;
  }
  lines.flush();
}

std::string shown(const TranslatedLine& line, const TranslateOptions& options,
                  const Common& common) {
  if (!options.show || !has_attention(line)) return line_of(line, options);
  return line_of(line, options) + qkv::app::draw_terminal(alignment(line), terminal_style(common)) +
         "\n";
}

void check(const TranslateOptions& options) {
  check_search(options.search);
  const bool wants_files = !options.outputs.paths.empty() || options.outputs.json;
  if (options.show && wants_files) throw UsageError("--show excludes -o and --json");
  if (options.demo.empty() && options.run.empty()) {
    throw UsageError("RUN or --demo TEXT is needed; see qkv translate --help");
  }
  if (!options.demo.empty() && !options.run.empty()) {
    throw UsageError(
        fmt::format("RUN {} and --demo exclude each other", qkv::app::quoted(options.run)));
  }
}

void run(const TranslateOptions& options, const Common& common) {
  check(options);
  std::vector<TranslatedLine> kept;
  const Results results = translate_forms(kept, options);
  check_outputs(options.outputs, results);
  if (options.demo.empty()) {
    check_inputs(options.outputs, {options.input});
    check_inputs(options.outputs, model_files(options.run));
  }
  const TranslationModel model =
      options.demo.empty() ? read_model(options.run, options.model) : qkv::app::date_model();
  const bool keeps = !options.outputs.paths.empty() || options.outputs.json;
  std::optional<Progress> progress;
  if (keeps || ::isatty(STDOUT_FILENO) != 1) progress.emplace(common, "translate");
  Index done = 0;
  qkv::app::SearchOptions search = options.search;
  search.attention = keeps || options.show;
  LineTranslator lines(model, search, common, [&](std::vector<TranslatedLine>& some) {
    for (TranslatedLine& line : some) {
      if (!keeps) print(shown(line, options, common));
      if (keeps) kept.push_back(std::move(line));
    }
    done += std::ssize(some);
    if (progress) progress->at(fmt::format("{} lines", done));
  });
  translate_all(options, lines);
  progress.reset();
  if (keeps) write_outputs(options.outputs, results, common);
}

}  // namespace

void add_translate(const Command& program, const Common& common) {
  constexpr Index kMostTokens = 65536;
  const Command command = program.add_command("translate", "translate lines");
  const auto options = std::make_shared<TranslateOptions>();
  command.add_option("RUN", options->run, kRunHelp).type_name("");
  command
      .add_option("FILE", options->input,
                  "lines, or the first column of a .tsv (default -: standard input)")
      .type_name("");
  command
      .add_option("--demo", options->demo,
                  "translate TEXT with the model linked into the program (a single -: lines "
                  "of standard input)")
      .type_name("TEXT...");
  add_run_model(command, options->model);
  add_search(command, options->search);
  add_number(
      command, "--most-tokens", options->search.most_tokens, Bounds<Index>{1, kMostTokens},
      "maximum length of a translation, with its end (default: 2 x that of the line, with its end, "
      "+ 10)");
  command.add_flag("--scores", options->scores,
                   "after each translation a tab and its natural log-probability");
  command.add_flag("--show", options->show,
                   "below each translation, where each of its tokens looked");
  add_outputs(command, options->outputs, "txt");
  command.footer(kTranslateFooter);
  command.callback([options, &common] { run(*options, common); });
}
