// SPDX-License-Identifier: Apache-2.0
#include "commands/view/view.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "commands/shell/array_store.h"
#include "commands/shell/exit_codes.h"
#include "commands/shell/terminal.h"
#include "commands/view/commands.h"
#include "text/special_tokens.h"

namespace {

using qkv::app::AttentionFile;

constexpr const char* kExamples = R"(Examples:
  qkv view a.npz --heads 0 --table
  qkv view a.npz --heads 0-1 --range row --axes from,to
  qkv view a.npz --heads 1 --hide-special --keep "[CLS]" -o a.svg -o a.png -o a.pdf
  qkv view a.npz -o a.html

An attention file is what numpy.savez("a.npz", attn=A, src=tokens) writes: attn has 2 to 5 axes,
[examples, layers, heads,] queries, keys; rows are queries. src (tokens of the keys), tgt (of the
queries; src serves both if there are as many), mask (0 = masked), rows (the query index of each
row, if not all queries are there; --queries takes these) and axes (names of rows and columns) are
optional. A stack of arrays [examples, heads, queries, keys], one per layer, is read with --order
layers,examples,heads. Masked padding at the end of src and tgt is not shown unless --queries,
--keys or --tokens names it.

--minus shows the difference from the same part of another file; --reduce is applied to both first.

An .html is a page for browsers, of all examples, layers and heads unless options select some. With
--minus it has the maps of both files, and their difference.

Indices count from 0, ranges include both ends. If there are more than 12 maps, the first layer's
are shown, at most 12; a note says so. Rows that do not sum to 1 are reported, never renormalised.
Maps are combined only by --reduce, and the picture says so.

)";

std::string view_footer() {
  std::string text = std::string(kExamples) + "--hide-special (letters in either case):";
  std::size_t column = text.size() - text.rfind('\n');
  for (const std::string_view token : qkv::app::special_tokens()) {
    column += token.size() + 1;
    const bool wraps = column > 100;
    if (wraps) column = token.size() + 2;
    text += fmt::format("{}{}", wraps ? "\n  " : " ", token);
  }
  return text + "\nand the empty token.";
}

// The drawing for standard output. Notes are shown with their hints, since a person reads them.
std::string screen(const Shown& shown, const ViewOptions& options, const Common& common) {
  qkv::app::Picture picture = shown.picture;
  picture.notes.clear();
  for (const Note& note : shown.notes) picture.notes.push_back(note.line());
  if (options.table) return qkv::app::draw_table(picture, table_columns());
  return qkv::app::draw_terminal(picture, terminal_style(common));
}

// The input of --minus: the array of the same name as the first file's, unless --minus names one.
AttentionInput minus_of(const ViewOptions& options) {
  const ArraySpec parts = split_spec(options.input.spec);
  AttentionInput minus{options.minus, options.input.options};
  if (!parts.name.empty()) minus.options.name = parts.name;
  if (options.is_difference() && parts.file == "-" && split_spec(options.minus).file == "-") {
    throw UsageError("FILE and --minus cannot both be standard input");
  }
  return minus;
}

// Whether any output but a page is written or printed.
bool wants_picture(const OutputOptions& outputs) {
  return outputs.json || outputs.paths.empty() ||
         std::ranges::any_of(outputs.paths, [&](const std::string& path) {
           return !wants({{path}, outputs.format, outputs.usual}, "html");
         });
}

void warn_of(const std::vector<Note>& notes, const ViewOptions& options, const Common& common) {
  for (const Note& note : notes) {
    warn(common, fmt::format("{}: {}", options.input.name(), note.line()));
  }
}

// Warns of a page's notes, each once, at most kMostNotes of them.
void warn_of(const qkv::app::Page& page, const ViewOptions& options, const Common& common) {
  constexpr std::size_t kMostNotes = 10;
  std::vector<std::string> notes;
  for (const qkv::app::PageExample& example : page.examples) {
    for (const std::string& note : example.notes) {
      if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
    }
  }
  const std::size_t more = notes.size() - std::min(notes.size(), kMostNotes);
  notes.resize(notes.size() - more);
  if (more > 0) notes.push_back(fmt::format("and {} more notes, all on the page", more));
  for (const std::string& note : notes) {
    warn(common, fmt::format("{}: {}", options.input.name(), note));
  }
}

void run(const ViewOptions& options, const Common& common) {
  std::optional<Shown> shown;
  std::optional<PageParts> page;
  Results results;
  results.arrays = [&] { return arrays_of(*shown); };
  results.array = [&] { return qkv::app::ArrayView(attn_of(*shown)); };
  results.picture = [&] { return shown->picture; };
  results.page = [&] { return page_bytes(*page); };
  results.text = [&] { return qkv::app::draw_table(shown->picture); };
  results.json = [&] { return json_of(*shown, options); };
  results.screen = [&] { return screen(*shown, options, common); };
  results.brief = [] { return std::string(); };  // the files are the result
  check_style(options.style, options.is_difference());
  for (const auto axis : {qkv::app::LeadingAxis::kLayers, qkv::app::LeadingAxis::kHeads}) {
    if (std::ranges::count(options.reductions, axis, &Reduction::axis) > 1) {
      throw UsageError(fmt::format("--reduce combines {} twice",
                                   axis == qkv::app::LeadingAxis::kLayers ? "layers" : "heads"));
    }
  }
  if (options.style.lowest && wants(options.outputs, "html")) {
    throw UsageError("--min is not for a page (.html), whose colours begin at 0");
  }
  check_outputs(options.outputs, results);
  check_inputs(options.outputs,
               {split_spec(options.input.spec).file, split_spec(options.minus).file});

  const AttentionInput minus = minus_of(options);
  const AttentionFile file = read(options.input);
  std::optional<AttentionFile> other;
  if (options.is_difference()) other = read(minus);
  const AttentionFile* subtracted = other ? &*other : nullptr;
  if (wants_picture(options.outputs)) {
    shown = show(file, subtracted, options);
    check_lowest(options.style, shown->picture.colours, shown->weights, shown->allowed);
    // Without outputs, the drawing has the notes.
    if (!options.outputs.paths.empty() || options.outputs.json) {
      warn_of(shown->notes, options, common);
    }
  }
  if (wants(options.outputs, "html")) {
    page = page_parts(file, subtracted, options);
    if (!shown) warn_of(page->page, options, common);
  }
  warn_of_font(options.style, options.outputs, common);
  try {
    write_outputs(options.outputs, results);
  } catch (const UsageError& error) {
    const std::string_view what = error.what();
    if (!what.ends_with("select or reduce")) throw;
    throw UsageError(fmt::format("{} with --layers, --heads, --queries, --keys or --reduce", what));
  }
}

std::vector<std::string> kept_tokens(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    if (qkv::app::is_special(text)) continue;
    throw BadValue("--keep",
                   fmt::format("{} is not hidden by --hide-special; valid: {}",
                               qkv::app::quoted(text), fmt::join(qkv::app::special_tokens(), " ")));
  }
  return texts;
}

void add_selection(const Command& command, ViewOptions& options) {
  add_head_choice(command, options.choice, "the first that is not empty");
  Option tokens = add_indices(command, "--tokens", options.tokens,
                              "which queries and keys, with the same indices for both");
  add_indices(command, "--queries", options.queries, "which queries (rows)").excludes(tokens);
  add_indices(command, "--keys", options.keys, "which keys (columns)").excludes(tokens);
  const Option hide = command.add_flag("--hide-special", options.hide_special,
                                       "hide [CLS], </s>, <pad> and the like (list below)");
  command
      .add_all_parsed(
          "--keep", [&options](const auto& texts) { options.keep = kept_tokens(texts); },
          "a special token to show despite --hide-special (repeatable)")
      .type_name("TOKEN")
      .one_each_time()
      .needs(hide);
}

}  // namespace

void add_view(const Command& program, const Common& common) {
  const Command command = program.add_command("view", "draw an attention file");
  const auto options = std::make_shared<ViewOptions>();
  add_attention_input(command, options->input);
  add_selection(command, *options);
  add_choices(command, "--reduce", options->reductions, kReductions,
              "combine several maps into one (repeatable)");
  command
      .add_option("--minus", options->minus,
                  "show the difference from this file (the same array; FILE:NAME for another)")
      .type_name("FILE");
  add_style(command, options->style);
  command.add_flag("--table", options->table, "print numbers instead of drawing");
  add_outputs(command, options->outputs, "svg",
              {.arrays = true, .array = true, .picture = true, .page = true});
  command.footer(view_footer());
  command.callback([options, &common] { run(*options, common); });
}
