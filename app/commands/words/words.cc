// SPDX-License-Identifier: Apache-2.0
#include "commands/words/words.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "commands/shell/array_store.h"
#include "commands/shell/exit_codes.h"
#include "commands/shell/terminal.h"
#include "commands/words/commands.h"

namespace {

constexpr qkv::Index kMostHeads = 1024;

constexpr fmt::format_string<const char* const&> kWordsFooter = R"(Examples:
  qkv words "the cat walked on the street" --vectors glove.6B.50d.txt
  qkv words "no file needed" --score additive --seed 7 -o out.npz -o out.svg
  qkv words "near words count more" --score-mod 's - abs(i - j) / 2' --mask-mod 'j <= i'

Text is split at white space, and punctuation at the ends of words is split off. A word is looked up
as typed, then in lower case. Rows are queries: row i says how much word i attends to each word;
"strongest other" is the word it attends to most besides itself. q, k and v are the word vectors
themselves, in float64; with --heads they are projected. Parameters of scores and projections are
random, drawn from the seed, unless --params reads learned ones. On a terminal the map is drawn
above the table; a table that is too wide is split into bands of columns.

Spelling vectors, used without --vectors, need no file and do not reflect meaning. All runs of 3 to
5 letters of "<word>", and the whole of it, are hashed (FNV-1a). Each hash draws 50 (--dim) uniform
numbers from the seed (Philox4x32-10), and their sum is divided by the square root of their count,
which makes it as large as GloVe's vectors. Words that share letters get similar vectors.

{}
In a text, i and j are words, Tq and Tk their number, b is 0, and h is 0 without --heads.

An .npz or .safetensors file holds all that is needed to compute the weights again: tokens, words,
x, q, k, v, score, scale, params.*, scores (before --score-mod), score_mod, mask_mod, with.*,
weights, lse, out; attn, src, tgt and, if anything is masked, mask make it an attention file, which
qkv view draws, also as a page (.html). An .npy file holds the weights, an .svg, .png or .pdf is
their picture, a .txt the report, a .json report and weights.)";

// Throws UsageError if two inputs are standard input.
void check_stdin(const WordsOptions& options) {
  std::vector<std::string> readers;
  if (options.text == std::vector<std::string>{"-"}) readers.emplace_back("TEXT");
  if (options.vectors == "-") readers.emplace_back("--vectors");
  if (options.params == "-") readers.emplace_back("--params");
  if (std::ranges::any_of(options.expressions.with, [](const std::string& text) {
        return split_spec(text.substr(text.find('=') + 1)).file == "-";
      })) {
    readers.emplace_back("--with");
  }
  if (readers.size() < 2) return;
  throw UsageError(fmt::format("{} and {} cannot both be standard input", readers[0], readers[1]));
}

void run(const WordsOptions& options, const Common& common) {
  check_stdin(options);
  if (options.heads > 0 && !std::holds_alternative<qkv::ScaledDot>(options.score)) {
    throw UsageError("--heads requires --score scaled_dot");
  }
  const bool learned = qkv::has_parameters(options.score) || options.heads > 0;
  if (!options.params.empty() && !learned) {
    throw UsageError("--params requires " + learned_scores(", ") + " or --heads");
  }
  WordInput input;
  WordAttention attention;
  Expressions expressions;
  const Results forms = word_forms(input, attention, options, expressions, common);
  check_outputs(options.outputs, forms);
  const bool piped = options.text == std::vector<std::string>{"-"};
  ArrayStore store;
  expressions = read_expressions(options.expressions, store);
  std::vector<std::string> inputs = store.files();
  inputs.insert(inputs.end(), {options.vectors, options.params, piped ? "-" : ""});
  check_inputs(options.outputs, inputs);
  input = read_words(options, common);
  const bool matrices = !options.outputs.paths.empty() || options.outputs.json ||
                        std::ssize(input.tokens) <= (on_terminal() ? kLongestMap : kLongestTable);
  attention = attend_words(input, options, expressions, common, matrices);
  write_outputs(options.outputs, forms);
}

}  // namespace

void add_words(const Command& program, const Common& common) {
  const Command command =
      program.add_command("words", "show which words of a text attend to which");
  const auto options = std::make_shared<WordsOptions>();
  command.add_option("TEXT", options->text, "the words; - reads standard input")
      .type_name("")
      .required();
  Option vectors = command
                       .add_option("--vectors", options->vectors,
                                   "word vectors, one word per line; - reads standard input")
                       .type_name("FILE");
  add_number(command, "--dim", options->width, Bounds<qkv::Index>{1, kLargestSize},
             "width of a word vector (default: that of the file; of spelling vectors 50)");
  add_choice(command, "--unknown", options->unknown, kUnknowns,
             "what to do with a word without a vector (default error)")
      .needs(vectors);
  add_choice(command, "--score", options->score, kScores,
             "score of a query and a key (default scaled_dot)");
  Option heads = add_number(
      command, "--heads", options->heads, Bounds<qkv::Index>{1, kMostHeads},
      "number of heads, whose q, k and v are projected (default: one, not projected); needs "
      "--score scaled_dot");
  add_choice(command, "--form", options->form, kForms,
             "split (default): each head has a share of the width; wide: the whole width")
      .needs(heads);
  command
      .add_flag("--identity", options->identity,
                "no projections, q = k = v = the word vectors (the default)")
      .excludes(heads);
  add_number(command, "--seed", options->seed, std::uint64_t{0},
             "seed of spelling vectors and drawn parameters (default 0)");
  command
      .add_option("--params", options->params,
                  "read the parameters from a file: W; Wq, Wk, v, b; or, with --heads, a layer's")
      .type_name("FILE.npz");
  add_expressions(command, options->expressions);
  add_outputs(command, options->outputs, "npz", {.arrays = true, .array = true, .picture = true});
  command.footer(fmt::format(kWordsFooter, kExpressionHelp));
  command.callback([options, &common] { run(*options, common); });
}
