// SPDX-License-Identifier: Apache-2.0
// `qkv translate`: translates each line to one line.
#include "commands/train/translate.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <qkv/app/file_error.h>
#include <qkv/app/translation_model.h>
#include <qkv/context.h>

#include "commands/shell/exit_codes.h"
#include "commands/shell/progress.h"
#include "commands/shell/terminal.h"
#include "commands/train/commands.h"
#include "commands/train/translate_input.h"
#include "files/bad_lines.h"
#include "files/parallel_text.h"
#include "text/text.h"

namespace {

using qkv::Index;
using qkv::app::TranslationModel;

constexpr const char* kTranslateFooter = R"(Examples:
  qkv translate --demo "I am hungry." --show
  qkv translate --dates "the 3rd of May, 1987"
  qkv gen dates -n 5 --split test -o few.tsv
  qkv translate RUN "3 may 1987"
  qkv translate RUN few.tsv --beam 4 --scores
  qkv translate RUN few.tsv -o alignments.npz

Each line is translated to one line, in order and as soon as possible. In a file or on standard
input, column --col of each line is read. An empty line stays empty. A line of more than 4096 tokens
or without the column is reported and its translation left empty, so that line numbers match; the
other lines are translated, and the exit code is 3. With --skip-bad it is 0, and lines that are not
UTF-8 are left empty, too. A translation that has not ended after --most-tokens tokens is cut off; a
warning names its line. TEXT is a file if one of that name exists. A single word with a letter
counts as a missing file if it has an extension (lines.tsv) or begins with a folder that exists
(runs/lines, ./lines), and several words do if they end in .txt or .tsv; everything else, such as
and/or, is text.

Models of words write spaces around punctuation as in the training data; if trained with --lower,
they also write capitals as there. Curly quotation marks are read as ' and ". Words that the model
does not know are read as <unk>; where it writes <unk>, a word is copied (--unknown).

-o and --attn keep all lines and their attention: .npz and .safetensors hold attn [lines,1,1,tokens
of the translation, tokens of the line], padded with <pad>, and src, tgt, mask, axes, line,
translation and log_probability (qkv view FILE --example N draws them); a .txt has the translations.
An .svg, .png or .pdf shows one line: of several, -o x.svg writes x-1.svg, x-2.svg and so on, with
the numbers of the lines, and replaces no file. --show draws on the terminal as well.

A warning names lines with more tokens than every source that the model was trained on.)";

constexpr Choice<qkv::app::UnknownTokens> kUnknownTokens[] = {
    {"copy", qkv::app::UnknownTokens::kCopied}, {"keep", qkv::app::UnknownTokens::kKept}};

// Translates lines as they arrive, several at a time.
class LineTranslator {
 public:
  using Take = std::function<void(std::vector<TranslatedLine>& lines)>;

  LineTranslator(const TranslationModel& model, const qkv::app::SearchOptions& search,
                 qkv::app::UnknownTokens unknown, const Common& common, Take take)
      : model_(model),
        search_(search),
        unknown_(unknown),
        context_(qkv::Executor::threads(common.threads)),
        take_(std::move(take)) {
    context_.set_stop_flag(&stop_flag());
  }

  // Adds a line, and calls flush() once the batch is full. Throws InputError for a line that is too
  // long.
  void add(std::string_view text, const std::string& file, Index line) {
    const std::size_t tokens = count_tokens(model_, text, file, line);
    const bool is_known = model_.longest_source > 0;  // earlier versions did not store it
    if (is_known && static_cast<Index>(tokens) > model_.longest_source) longer_.add(line);
    tokens_ += tokens;
    texts_.emplace_back(text);
    numbers_.push_back(line);
    if (is_full(Batch::kSearch, texts_.size(), tokens_)) flush();
  }

  // Warns of the lines of a file that are longer than all sources that the model was trained on; an
  // empty name stands for the text of the command line.
  void warn_of_longer(const std::string& file, const Common& common) const {
    if (longer_.count() == 0) return;
    const std::string lines = file.empty() ? "" : fmt::format("; lines: {}", longer_.text());
    warn(common,
         fmt::format("{}: longer than every source in training, of at most {} tokens, so the "
                     "translation may be poor{}",
                     file.empty() ? "TEXT" : file, model_.longest_source, lines));
  }

  // Warns of lines without a translation, since the model's numbers are not finite; `file` as in
  // warn_of_longer().
  void warn_of_failed(const std::string& file, const Common& common) const {
    if (not_finite_.count() == 0) return;
    const std::string lines = file.empty() ? "" : fmt::format("; lines: {}", not_finite_.text());
    warn(common, fmt::format("{}: the model gives NaN, so there is no translation{}",
                             file.empty() ? "TEXT" : file, lines));
  }

  // Warns of translations that were cut off; `file` as in warn_of_longer().
  void warn_of_cut(const std::string& file, const Common& common) const {
    if (cut_.count() == 0) return;
    const std::string limit =
        search_.most_tokens > 0
            ? fmt::format("--most-tokens {}", search_.most_tokens)
            : std::string("--most-tokens (by default 2 x the line's tokens, end included, + 10)");
    warn(common,
         file.empty()
             ? fmt::format("TEXT: the translation reached {} and was cut off", limit)
             : fmt::format("{}: {} of {} translations reached {} and were cut off; lines: {}", file,
                           cut_.count(), translated_, limit, cut_.text()));
  }

  // Translates the lines added since the last flush(), and passes them to `take`.
  void flush() {
    std::vector<TranslatedLine> lines;
    auto translations = qkv::app::translate(model_, texts_, search_, context_, unknown_);
    for (std::size_t n = 0; n < texts_.size(); ++n) {
      const bool has_failed = translations[n].target.empty() && !translations[n].source.empty();
      if (has_failed) {
        not_finite_.add(numbers_[n]);
      } else if (!translations[n].is_whole) {
        cut_.add(numbers_[n]);
      }
      if (!translations[n].target.empty()) ++translated_;
      lines.push_back({std::move(texts_[n]), std::move(translations[n])});
    }
    texts_.clear();
    numbers_.clear();
    tokens_ = 0;
    take_(lines);
  }

 private:
  const TranslationModel& model_;
  const qkv::app::SearchOptions search_;
  const qkv::app::UnknownTokens unknown_;
  qkv::Context context_;
  Take take_;
  std::vector<std::string> texts_{};
  std::vector<Index> numbers_{};  // the line number of each text
  std::size_t tokens_ = 0;
  Index translated_ = 0;                // lines that have a translation
  qkv::app::LineNumbers longer_{};      // the lines that are longer than every source in training
  qkv::app::LineNumbers cut_{};         // the lines whose translations were cut off
  qkv::app::LineNumbers not_finite_{};  // the lines for which the model gives NaN
};

// True if standard input has nothing to read now: the program that writes to it may be waiting for
// an answer.
bool has_no_input() {
  struct pollfd input {};
  input.fd = STDIN_FILENO;
  input.events = POLLIN;
  return ::poll(&input, 1, 0) == 0;
}

// The lines of a file that were not translated. Each is reported as an error or, with --skip-bad,
// only counted.
class Untranslated {
 public:
  Untranslated(std::string file, const TranslateOptions& options, const Common& common)
      : file_(std::move(file)), skips_(options.skip_bad), common_(common) {}

  void add(const qkv::app::InputError& error) {
    if (!skips_) complain(error.what());
    lines_.add(error);
    numbers_.add(error.line());
  }

  // Warns of the skipped lines, if there were any among the `lines` lines that were read.
  void warn_of_skipped(Index lines) const {
    if (!skips_ || lines_.count() == 0) return;
    warn(common_, fmt::format("{}: {}", file_, lines_.summary(lines, "left empty")));
  }
  // Throws InputError if any line was not translated, unless --skip-bad was given.
  void check(Index lines) const {
    if (skips_ || lines_.count() == 0) return;
    throw qkv::app::InputError(
        file_, fmt::format("{} of {} lines left empty: {}; --skip-bad makes this a warning",
                           numbers_.count(), lines, numbers_.text()));
  }

 private:
  std::string file_;
  bool skips_;
  const Common& common_;
  qkv::app::BadLines lines_{};
  qkv::app::LineNumbers numbers_{};
};

// Checks that the pictures of lines 1 .. `line` can be written. It is called for each line in turn.
void check_pictures(const OutputOptions& outputs, Index line) {
  constexpr Index kMostPictures = 1000;
  if (line < 2) return;  // the picture of a single line has the output's own name
  if (line > kMostPictures && wants_picture_file(outputs)) {
    throw UsageError(
        fmt::format("-o: at most {} lines can have pictures, got line {}; an .npz holds all lines, "
                    "and qkv view --example N draws one of them",
                    kMostPictures, line));
  }
  if (line == 2) check_numbered(outputs, 1);
  check_numbered(outputs, line);
}

// The column that is translated: --col, else the column of sources of the run's training if the
// file is a .tsv, else 0.
Index column_of(const TranslateOptions& options, const Source& source) {
  if (options.column) return *options.column;
  const bool is_table = source.file.ends_with(".tsv") && linked_model(options) == nullptr;
  return is_table ? columns_of_run(options.run).source : 0;
}

// The text in the column of a line; "" for a blank line. Throws InputError for too few columns.
std::string_view text_in(std::span<const std::string_view> fields, Index column,
                         const std::string& file, Index line) {
  const Index columns = std::ssize(fields);
  if (column >= 0 && column < columns) return fields[static_cast<std::size_t>(column)];
  if (columns == 1 && qkv::app::is_blank(fields[0])) return {};
  throw qkv::app::InputError::at_line(
      file, line,
      fmt::format("expected {} or more columns, got {}; tabs separate columns", column + 1,
                  columns));
}

// Translates all lines of the source, and calls done() when they are translated.
void translate_all(const Source& source, const TranslateOptions& options, const Common& common,
                   LineTranslator& lines, const std::function<void()>& done) {
  if (source.file.empty()) {
    lines.add(source.text, "TEXT", 1);
    lines.flush();
    done();
    lines.warn_of_longer("", common);
    lines.warn_of_failed("", common);
    return lines.warn_of_cut("", common);
  }
  qkv::app::ParallelTextOptions reading;
  const Index column = column_of(options, source);
  reading.empty_lines = qkv::app::EmptyLines::kKept;
  reading.stop = &stop_flag();
  const bool piped = source.file == "-";
  const std::string name = input_name(source.file);
  Untranslated bad(name, options, common);
  Index count = 0;
  const auto leave_empty = [&](const qkv::app::InputError& error) {
    bad.add(error);
    lines.add("", name, error.line());
  };
  const auto flush_if_answer_is_due = [&] {
    if (piped && has_no_input()) lines.flush();
  };
  reading.bad_line = [&](const qkv::app::InputError& error) {
    if (!options.skip_bad) throw with_skip_bad(error);
    count = error.line();
    check_pictures(options.outputs, count);
    leave_empty(error);
    flush_if_answer_is_due();
  };
  try {
    qkv::app::for_each_row(source.file, reading, [&](const auto& fields, Index line) {
      count = line;
      check_pictures(options.outputs, line);
      try {
        lines.add(text_in(fields, column, name, line), name, line);
      } catch (const qkv::app::InputError& error) {
        leave_empty(error);
      }
      flush_if_answer_is_due();
      return true;
    });
  } catch (const qkv::app::InputError&) {
    lines.flush();  // translates the lines before the malformed one
    bad.warn_of_skipped(count);
    throw;
  }
  lines.flush();
  done();
  lines.warn_of_longer(name, common);
  lines.warn_of_failed(name, common);
  lines.warn_of_cut(name, common);
  bad.warn_of_skipped(count);
  bad.check(count);
}

void check_unknown(const TranslateOptions& options, const TranslationModel& model) {
  if (options.unknown != qkv::app::UnknownTokens::kCopied) return;
  if (model.translator.config().attention != qkv::app::TranslatorAttention::kNone) return;
  throw UsageError(
      "--unknown copy: the model was trained with --attention none and attends to no word that "
      "could be copied");
}

// Warns if --show has nothing to show.
void warn_of_show(const TranslateOptions& options, const TranslationModel& model,
                  const Common& common) {
  if (!options.show) return;
  if (model.translator.config().attention != qkv::app::TranslatorAttention::kNone) return;
  warn(common, "--show: the model was trained with --attention none, so there is nothing to draw");
}

std::string shown(const TranslatedLine& line, const TranslateOptions& options,
                  const Common& common) {
  if (!options.show) return line_of(line, options);
  if (line.translation.source.empty()) warn(common, "--show: nothing to draw for an empty line");
  if (!has_attention(line)) return line_of(line, options);
  return line_of(line, options) + qkv::app::draw_terminal(alignment(line), terminal_style(common)) +
         "\n";
}

// Warns of lines without attention, for which no picture is written, if other lines have one.
void warn_of_undrawn(const std::vector<TranslatedLine>& lines, const TranslateOptions& options,
                     const Common& common) {
  if (lines.size() < 2 || !wants_picture_file(options.outputs)) return;
  qkv::app::LineNumbers undrawn;
  for (std::size_t n = 0; n < lines.size(); ++n) {
    if (!has_attention(lines[n])) undrawn.add(static_cast<Index>(n) + 1);
  }
  if (undrawn.count() == 0 || undrawn.count() == std::ssize(lines)) return;
  warn(common, fmt::format("nothing to draw for lines without attention: {}", undrawn.text()));
}

// Adds "--attn FILE": an output that holds the attention of all lines.
void add_attention_file(const Command& command, OutputOptions& outputs) {
  command
      .add_parsed(
          "--attn",
          [&outputs](const std::string& path) {
            if (!path.ends_with(".npz") && !path.ends_with(".safetensors")) {
              throw BadValue("--attn", fmt::format("expected a .npz or .safetensors file, got {}; "
                                                   "-o writes pictures",
                                                   qkv::app::quoted(path)));
            }
            outputs.paths.push_back(path);
          },
          "write the attention of all lines, as -o does: .npz or .safetensors")
      .type_name("FILE");
}

void check(const TranslateOptions& options) {
  check_search(options.search);
  const bool is_piped = std::ranges::count(options.outputs.paths, "-") > 0;
  if (options.show && (is_piped || options.outputs.json)) {
    throw UsageError(
        fmt::format("--show and {} both write to standard output", is_piped ? "-o -" : "--json"));
  }
  check_model_choice(options);
}

// Throws UsageError for a page, which qkv view makes of an array file.
void check_pages(const OutputOptions& outputs) {
  for (const std::string& path : outputs.paths) {
    constexpr std::string_view kPage = ".html";
    if (!path.ends_with(kPage)) continue;
    const std::string arrays = path.substr(0, path.size() - kPage.size()) + ".npz";
    throw UsageError(
        fmt::format("-o {0}: this result has no .html form; use -o {1}, then qkv view {1} -o {0}",
                    in_shell(path), in_shell(arrays)));
  }
}

void run(const TranslateOptions& options, const Common& common) {
  check(options);
  std::vector<TranslatedLine> kept;
  Results results = translate_forms(kept, options);
  if (options.show) {
    results.screen = [&] {
      std::string text;
      for (const TranslatedLine& line : kept) text += shown(line, options, common);
      return text;
    };
  }
  check_pages(options.outputs);
  check_outputs(options.outputs, results);
  const Source source = source_of(options);
  if ((options.skip_bad || options.column) && source.file.empty()) {
    throw UsageError(fmt::format("{} requires the lines of a file or of standard input",
                                 options.skip_bad ? "--skip-bad" : "--col"));
  }
  check_inputs(options.outputs, {source.file});
  if (linked_model(options) == nullptr) check_inputs(options.outputs, model_files(options.run));
  const TranslationModel model = model_of(options);
  check_unknown(options, model);
  warn_of_show(options, model, common);
  const bool keeps = !options.outputs.paths.empty() || options.outputs.json;
  std::optional<Progress> progress;
  if (keeps || ::isatty(STDOUT_FILENO) != 1) progress.emplace(common, "translate");
  Index done = 0;
  qkv::app::SearchOptions search = options.search;
  search.attention = keeps || options.show;
  if (!keeps && !options.scores) search.scores = qkv::app::SearchScores::kIfCompared;
  const auto take = [&](std::vector<TranslatedLine>& some) {
    for (TranslatedLine& line : some) {
      if (!keeps) print(shown(line, options, common));
      if (keeps) kept.push_back(std::move(line));
    }
    done += std::ssize(some);
    if (progress) progress->at(fmt::format("{} lines", done));
  };
  LineTranslator lines(model, search, options.unknown, common, take);
  translate_all(source, options, common, lines, [&] {
    progress.reset();
    if (keeps) warn_of_undrawn(kept, options, common);
    if (keeps) write_outputs(options.outputs, results);
  });
}

}  // namespace

void add_translate(const Command& program, const Common& common) {
  constexpr Index kMostTokens = 65536;
  const Command command = program.add_command("translate", "translate lines of text");
  const auto options = std::make_shared<TranslateOptions>();
  const Option run_name =
      command.add_option("RUN", options->run, kRunHelp).type_name("").may_be_empty();
  command
      .add_option(
          "TEXT", options->input,
          "a text, or a file whose lines (of a .tsv, a column of them) are translated (default -: "
          "standard input)")
      .type_name("");
  add_linked_models(command, *options);
  add_run_model(command, options->model);
  add_search(command, options->search);
  add_choice(
      command, "--unknown", options->unknown, kUnknownTokens,
      "in place of <unk>: copy the source word with the largest attention weight (default with "
      "attention), or keep <unk>");
  add_number(
      command, "--most-tokens", options->search.most_tokens, Bounds<Index>{1, kMostTokens},
      "maximum number of tokens of a translation, its end token included (default: 2 x the line's "
      "tokens, its end token included, + 10)");
  add_number(command, "--col", options->column, Bounds<Index>{0, qkv::app::kMostColumns - 1},
             "the column of a file to translate, counted from 0 (default: of a .tsv, the column of "
             "sources that RUN was trained on; else 0)");
  command.add_flag("--scores", options->scores,
                   "print a tab and the natural log-probability after each translation");
  command.add_flag("--show", options->show,
                   "draw below each translation what each of its tokens attends to");
  command.add_flag("--skip-bad", options->skip_bad,
                   "leave the translations of lines that are too long, not UTF-8 or without the "
                   "column empty; one warning counts and names the lines");
  add_outputs(command, options->outputs, "txt", {.arrays = true, .picture = true});
  add_attention_file(command, options->outputs);
  command.footer(kTranslateFooter);
  command.callback([options, run_name, &common] {
    options->has_run = run_name.is_given();
    run(*options, common);
  });
}
