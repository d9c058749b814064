// SPDX-License-Identifier: Apache-2.0
#include "commands/attend/attend.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "commands/attend/commands.h"
#include "commands/shell/exit_codes.h"
#include "text/numbers.h"

namespace {

using qkv::Index;

constexpr fmt::format_string<std::string, const char* const&> kAttendFooter = R"(Examples:
  qkv attend q.npy k.npy v.npy --causal -o out.npz
  qkv attend qkv.npz --save weights,lse -o weights.svg -o weights.npz
  qkv attend q.npy k.npy v.npy --save out -o - --format npy > out.npy
  qkv attend q.npy k.npy --pool 64,64 --save entropy -o maps.npz

Arrays are .npy, .npz or .safetensors files; FILE:NAME selects one of several arrays, - is standard
input. A single FILE holds arrays named q, k and, optionally, v. q [B,H,Tq,D], k [B,G,Tk,D],
v [B,G,Tk,E], or rank 3 [B,T,D], or rank 2 [T,D]; all of one dtype (float64, float32, bfloat16,
float16), or float32 q with 16-bit k and v. out has q's dtype; other results are float64 for
float64 and float32 for the rest. Without V the scores and weights are computed.

Order: --qk-norm, --rotary, score, --scale, --softcap, --score-mod, --bias, --alibi, masks, --sinks,
softmax, --dropout, values. In --mask true or 1 means "may attend", in --padding-mask true or 1
means padding. --params holds W (bilinear), or Wq, Wk, v and, optionally, b (additive); with
--qk-norm also, optionally, the gains norm_q [D] or [H,D] and norm_k [D] or [G,D].

Names for --save:
{}
Without -o the report shows all numbers, or the first ones. A file with weights is also an
attention file: attn, mask if anything is masked, and src and tgt if an input has them. With pooled
and without weights, attn holds the cells. qkv view draws such a file, also as a page (.html). An
.svg, .png or .pdf shows the weights, with --dropout those after it unless --save names weights
only. A .npy file holds one result.

{}

A wrong option exits with 2, a missing file or arrays that do not fit together with 3; nothing is
written then. NaN and infinity are allowed in inputs; a warning is printed.)";

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::vector<Index> whole_numbers(const std::string& option, const std::string& text) {
  std::vector<Index> numbers;
  for (const std::string& part : parts_of(text)) {
    const auto number = qkv::app::parse_number<Index>(part);
    if (!number) {
      throw BadValue(option, fmt::format("expected whole numbers, separated by commas, got {}",
                                         qkv::app::quoted(text)));
    }
    numbers.push_back(*number);
  }
  return numbers;
}

// A line for each result: "  out          weighted sums of v".
std::string result_lines() {
  std::string lines;
  for (const ResultKind& kind : kResultKinds) {
    lines += fmt::format("  {:<13}{}\n", kind.name, kind.help);
  }
  return lines;
}

std::string result_names() {
  std::string names;
  for (const ResultKind& kind : kResultKinds) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kind.name);
  }
  return names;
}

void add_saves(AttendOptions& options, const std::string& text) {
  for (const std::string& name : parts_of(text)) {
    const auto* kind = std::ranges::find(kResultKinds, name, &ResultKind::name);
    if (kind == std::end(kResultKinds)) {
      throw BadValue("--save", fmt::format("unknown name {}; valid: {}", qkv::app::quoted(name),
                                           result_names()));
    }
    options.save[static_cast<std::size_t>(kind - std::begin(kResultKinds))] = true;
  }
}

void add_arrays(const Command& command, AttendOptions& options) {
  const auto add = [&](const char* name, std::string& target, const char* help) {
    command.add_option(name, target, help).type_name(kArrayType);
  };
  command.add_option("--params", options.params, "parameters of the score, gains of the norm")
      .type_name("FILE");
  add("--rotary-frequencies", options.rotary_frequencies,
      "[width/2]: radians per position, instead of those of the base");
  add("--q-positions", options.q_positions, "[Tq] or [B,Tq]: positions of the queries");
  add("--k-positions", options.k_positions, "[Tk] or [B,Tk]: positions of the keys");
  add("--bias", options.bias, "added to the scores, broadcast to the weights; -inf masks");
  add("--mask", options.mask, "true: may attend; broadcast to the weights");
  add("--padding-mask", options.padding, "[B,Tk], true: padding, which is masked");
  add("--lengths", options.lengths, "[B] or [B,Tq]: how many keys are valid");
  add("--sinks", options.sinks, "[H]: one more logit for each head, with value 0");
  add("--cu-seqlens-q", options.cu_seqlens_q,
      "packed sequences of q: where each starts, and the total");
  add("--cu-seqlens-k", options.cu_seqlens_k,
      "packed sequences of k and v: where each starts, and the total");
  command.add_option("--alibi", options.alibi, "slopes [H]; auto: those of Press et al. 2022")
      .type_name("FILE[:NAME]|auto");
  command
      .add_option("--causal-offset", options.offset,
                  "the diagonal j = i + N; a file: one N for each batch entry")
      .type_name("N|FILE[:NAME]");
}

void add_numbers(const Command& command, AttendOptions& options) {
  add_real(command, "--qk-norm", options.norm_eps,
           "normalise each row of q and k: x / sqrt(mean(x^2) + X), such as 1e-6");
  add_real(command, "--rotary-base", options.rotary_base,
           "pair m is rotated by base^(-2m/width) per position (default 10000)");
  add_number(command, "--rotary-width", options.rotary_width, Bounds<Index>{2},
             "how many leading channels are rotated (default all)");
  add_real(command, "--scale", options.scale,
           "factor of the scores (default 1/sqrt(D) for scaled_dot, else 1)");
  add_real(command, "--softcap", options.softcap, "s becomes X tanh(s/X); 0 (default): off");
  add_real(command, "--dropout", options.dropout, "probability of dropping a weight (default 0)");
  add_number(command, "--seed", options.seed, Bounds<std::uint64_t>{},
             "seed of the dropout, required with it");
  command
      .add_parsed(
          "--window",
          [&options](const std::string& text) {
            const std::vector<Index> sides = whole_numbers("--window", text);
            if (sides.size() != 2) {
              throw BadValue("--window", "expected LEFT,RIGHT, got " + qkv::app::quoted(text));
            }
            options.window = qkv::Window{sides[0], sides[1]};
          },
          "keys from LEFT before to RIGHT after the diagonal; -1: unbounded")
      .type_name("LEFT,RIGHT");
}

// Sets the M x N cells of --pool, and requests the result `pooled`.
void set_pool(AttendOptions& options, const std::string& text) {
  options.pool = whole_numbers("--pool", text);
  if (options.pool.size() != 2 || std::ranges::min(options.pool) < 1) {
    throw BadValue("--pool", "expected M,N of 1 or more each, got " + qkv::app::quoted(text));
  }
  add_saves(options, "pooled");
}

void add_results(const Command& command, AttendOptions& options) {
  command
      .add_all_parsed(
          "--save",
          [&options](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) add_saves(options, text);
          },
          "results, separated by commas, see below (default: out; without V scores,weights)")
      .type_name("NAMES")
      .one_each_time();
  add_number(command, "--top", options.top, Bounds<Index>{1},
             "also the N largest weights of each query: top_weights and top_keys");
  command
      .add_parsed(
          "--rows",
          [&options](const std::string& text) { options.rows = whole_numbers("--rows", text); },
          "weights and scores of these queries only")
      .type_name("I,J,...");
  command
      .add_parsed(
          "--column-rows",
          [&options](const std::string& text) {
            options.column_rows = whole_numbers("--column-rows", text);
          },
          fmt::format("{} over these queries only", names_with(qkv::ResultAxes::kKeys, "and")))
      .type_name("I,J,...");
  command
      .add_parsed(
          "--pool", [&options](const std::string& text) { set_pool(options, text); },
          "also pooled: weights in M x N cells, summed over keys, averaged over queries")
      .type_name("M,N");
  command.add_option("--path", options.path, "force a path (qkv info --paths)").type_name("NAME");
}

void run(const AttendOptions& options, const Common& common) {
  AttendCall call;
  AttendResults results;
  const Results forms = attend_forms(options, call, results);
  check_outputs(options.outputs, forms);
  if (options.files.size() > 3) {
    throw UsageError(fmt::format("unexpected argument {}; Q, K and V are the arrays",
                                 qkv::app::quoted(options.files[3])));
  }
  if (std::ranges::count_if(options.files, [](const std::string& f) {
        return f == "-" || f.starts_with("-:");
      }) > 1) {
    throw UsageError("standard input can be one of the arrays only");
  }
  read_call(options, call);
  check_inputs(options.outputs, call.store.files());
  check_results(options, call);
  for (const std::string& warning : call.warnings) warn(common, warning);
  results = compute(options, call, common);
  write_outputs(options.outputs, forms);
}

}  // namespace

std::string names_with(qkv::ResultAxes axes, std::string_view conjunction) {
  std::vector<std::string_view> names;
  for (const ResultKind& kind : kResultKinds) {
    if (kind.axes == axes) names.push_back(kind.name);
  }
  return fmt::format("{}", fmt::join(names, fmt::format(" {} ", conjunction)));
}

void add_attend(const Command& program, const Common& common) {
  const Command command = program.add_command("attend", "compute attention on arrays from files");
  const auto options = std::make_shared<AttendOptions>();
  command.add_option("Q K [V]", options->files, "the arrays; or one file with all of them")
      .type_name("")
      .required()
      .any_number();
  add_choice(command, "--layout", options->layout, kLayouts,
             "axis order of arrays of rank 4 and of out: bhtd (default) or bthd");
  add_choice(command, "--score", options->score, kScores,
             "score of a query and a key (default scaled_dot)");
  add_choice(command, "--rotary", options->rotary, kRotaryPairings,
             "rotary positions: pairs (2m, 2m+1), or (m, m + width/2)");
  add_numbers(command, *options);
  add_expressions(command, options->expressions);
  command.add_flag("--causal", options->causal, "keys up to the diagonal only");
  Option corner = add_choice(command, "--causal-corner", options->corner, kCorners,
                             "the corner that the diagonal goes through (default bottom_right)");
  add_arrays(command, *options);
  command.option("--causal-offset").excludes(corner);
  add_results(command, *options);
  add_outputs(command, options->outputs, "npz", {.arrays = true, .array = true, .picture = true});
  command.footer(fmt::format(kAttendFooter, result_lines(), kExpressionHelp));
  command.callback([options, &common] { run(*options, common); });
}
