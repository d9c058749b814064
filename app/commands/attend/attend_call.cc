// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <filesystem>
#include <type_traits>

#include <fmt/format.h>

#include <qkv/app/utf8.h>

#include "commands/attend/attend.h"
#include "commands/shell/exit_codes.h"
#include "text/numbers.h"

namespace {

using qkv::ConstView;
using qkv::DType;
using qkv::Index;

// Reads the array that an option names, and records its origin and setting. Returns an absent view
// if the option was not given.
ConstView read_option(AttendCall& call, const std::string& spec, const std::string& option,
                      const std::string& argument) {
  if (spec.empty()) return {};
  std::string role = option.substr(2);
  for (char& c : role) c = c == '-' ? '_' : c;
  const ConstView view = call.store.get(spec, role);
  call.origins[argument] = {fmt::format("{} {}", option, shown_file(spec)), true, word_of(option)};
  call.settings[role] = spec;
  return view;
}

// ---- q, k, v --------------------------------------------------------------------------------

ConstView read_input(const AttendOptions& options, const std::string& spec, const char* role,
                     AttendCall& call) {
  ConstView view = call.store.get(spec, role, true);
  call.origins[role] = {shown_file(spec), true};
  if (options.layout == Layout::kBhtd) return view;
  if (view.rank() != 4) {
    throw qkv::app::InputError(
        shown_file(spec),
        fmt::format("{}: expected rank 4 for --layout bthd, got {}", role, qkv::describe(view)));
  }
  return qkv::transpose(view, 1, 2);
}

// Reads q, k and v from one file; v is optional. read_input() refuses an array of text.
void read_together(const AttendOptions& options, AttendCall& call) {
  const std::string& file = options.files.front();
  if (!call.store.has(file, "q") || !call.store.has(file, "k")) {
    throw qkv::app::InputError(shown_file(file),
                               "expected arrays called q and k (and v); or give a file for each of "
                               "Q, K and V");
  }
  call.inputs.q = read_input(options, file, "q", call);
  call.inputs.k = read_input(options, file, "k", call);
  if (call.store.has(file, "v")) call.inputs.v = read_input(options, file, "v", call);
}

void read_inputs(const AttendOptions& options, AttendCall& call) {
  if (options.layout != Layout::kBhtd) call.settings["layout"] = "bthd";
  if (options.files.size() == 1) return read_together(options, call);
  call.inputs.q = read_input(options, options.files[0], "q", call);
  call.inputs.k = read_input(options, options.files[1], "k", call);
  if (options.files.size() > 2) call.inputs.v = read_input(options, options.files[2], "v", call);
}

// ---- the score ------------------------------------------------------------------------------

// The array NAME of the --params file or, if there is none, "params.NAME", as `qkv words` names it.
// Absent if the file has neither; if the score needs the parameter, the library reports this.
ConstView parameter(const AttendOptions& options, AttendCall& call, const std::string& name) {
  if (auto plain = call.store.find(options.params, name)) return *plain;
  return call.store.find(options.params, "params." + name).value_or(ConstView());
}

qkv::Score read_score(const AttendOptions& options, AttendCall& call) {
  const bool learned = qkv::has_parameters(options.score);
  const bool has_gains = options.norm_eps.has_value() && !options.params.empty();
  if (learned && options.params.empty()) {
    throw UsageError(fmt::format("--score {} needs --params FILE", name_of(options.score)));
  }
  if (!learned && !has_gains && !options.params.empty()) {
    throw UsageError("--params requires " + learned_scores(", ") + " or --qk-norm");
  }
  call.settings["score"] = name_of(options.score);
  if (options.params.empty()) return options.score;
  call.settings["params"] = options.params;
  const std::string file = "--params " + shown_file(options.params);
  call.origins["qk_norm.q"] = {file, true, "norm_q"};
  call.origins["qk_norm.k"] = {file, true, "norm_k"};
  qkv::Score score = options.score;
  take_parameters(score, [&](const char* name) {
    std::string argument = fmt::format("{}.{}", name_of(options.score), name);
    for (char& c : argument) c = c == 'W' ? 'w' : c;  // the library's name of Wq is additive.wq
    call.origins[argument] = {file, true, name};
    return parameter(options, call, name);
  });
  return score;
}

// ---- norm and rotation of q and k -----------------------------------------------------------

void read_norm(const AttendOptions& options, AttendCall& call) {
  if (!options.norm_eps) return;
  qkv::QkNorm norm{.eps = *options.norm_eps};
  call.origins["qk_norm.eps"] = {"--qk-norm", false, "qk-norm"};
  call.settings["qk_norm"] = *options.norm_eps;
  // If the score has no parameters of its own, the --params file must have a gain.
  bool any = options.params.empty() || qkv::has_parameters(options.score);
  if (!options.params.empty()) {
    qkv::QkNorm::for_each_parameter([&](const char* side, auto gain, auto) {
      norm.*gain = parameter(options, call, std::string("norm_") + side);
      any = any || (norm.*gain).given();
    });
  }
  if (!any) {
    throw qkv::app::InputError("--params " + shown_file(options.params),
                               "expected an array called norm_q or norm_k, got neither");
  }
  call.options.qk_norm = norm;
}

void read_rotary(const AttendOptions& options, AttendCall& call) {
  if (!options.rotary) {
    for (const auto& [option, given] :
         {std::pair{"--rotary-base", options.rotary_base.has_value()},
          {"--rotary-width", options.rotary_width.has_value()},
          {"--rotary-frequencies", !options.rotary_frequencies.empty()},
          {"--q-positions", !options.q_positions.empty()},
          {"--k-positions", !options.k_positions.empty()}}) {
      if (given) throw UsageError(fmt::format("{} requires --rotary", option));
    }
    return;
  }
  qkv::Rotary rotary{.pairs = *options.rotary};
  call.settings["rotary"] = kRotaryPairings[static_cast<std::size_t>(*options.rotary)].name;
  call.origins["rotary.base"] = {"--rotary-base", false, "rotary-base"};
  call.origins["rotary.width"] = {options.rotary_width ? "--rotary-width" : "--rotary", false,
                                  "rotary-width"};
  if (options.rotary_base) call.settings["rotary_base"] = rotary.base = *options.rotary_base;
  if (options.rotary_width) call.settings["rotary_width"] = rotary.width = *options.rotary_width;
  rotary.frequencies =
      read_option(call, options.rotary_frequencies, "--rotary-frequencies", "rotary.frequencies");
  rotary.q_positions =
      read_option(call, options.q_positions, "--q-positions", "rotary.q_positions");
  rotary.k_positions =
      read_option(call, options.k_positions, "--k-positions", "rotary.k_positions");
  call.options.rotary = rotary;
}

// ---- numbers --------------------------------------------------------------------------------

void read_numbers(const AttendOptions& options, AttendCall& call) {
  if (options.seed && !options.dropout) throw UsageError("--seed requires --dropout");
  if (options.dropout.value_or(0) > 0 && !options.seed) {
    throw UsageError(fmt::format("--dropout {} needs --seed N", *options.dropout));
  }
  call.options.scale = options.scale;
  call.options.softcap = options.softcap;
  call.options.dropout = {options.dropout.value_or(0), options.seed};
  for (const auto& [argument, option] :
       std::map<std::string, std::string>{{"scale", "--scale"},
                                          {"softcap", "--softcap"},
                                          {"dropout", "--dropout"},
                                          {"window", "--window"},
                                          {"top", "--top"},
                                          {"context", "--path"},
                                          {"diagonal", "--causal-offset"}}) {
    call.origins[argument] = {option, false, word_of(option)};
  }
  call.origins["context"].word = "";  // "context forces the path ..." becomes "forces the path ..."
  call.origins["window.left"] = {"--window", false, "LEFT"};
  call.origins["window.right"] = {"--window", false, "RIGHT"};
  const qkv::Index D = call.inputs.q.rank() > 0 ? call.inputs.q.size(-1) : 1;
  const double usual =
      std::visit([&]<class S>(const S&) { return S::default_scale(D); }, options.score);
  call.settings["scale"] = options.scale.value_or(usual);
  if (options.softcap != 0) call.settings["softcap"] = options.softcap;
}

// ---- the diagonal, slopes -------------------------------------------------------------------

// The ALiBi slopes of H heads (Press et al. 2022, section 3). If H is a power of two, slope h is
// 2^(-8(h+1)/H). If not, the slopes are those of the next lower power of two, then every other
// slope of the next higher one, from the first on (as in the authors' published code).
std::vector<double> usual_slopes(Index heads) {
  Index below = 1;
  while (2 * below <= heads) below *= 2;
  std::vector<double> slopes;
  for (Index h = 0; h < heads; ++h) {
    const auto n = static_cast<double>(h < below ? h + 1 : 2 * (h - below) + 1);
    const auto of = static_cast<double>(h < below ? below : 2 * below);
    slopes.push_back(std::exp2(-8 * n / of));
  }
  return slopes;
}

ConstView read_slopes(const AttendOptions& options, AttendCall& call) {
  if (options.alibi != "auto") return read_option(call, options.alibi, "--alibi", "alibi");
  call.settings["alibi"] = "auto";
  if (!qkv::is_real(call.inputs.q.dtype())) return {};  // the library refuses q's dtype
  std::vector<double> slopes = usual_slopes(shape_of(call.inputs).head_count);
  call.slopes = qkv::convert(ConstView(slopes), qkv::accumulator_of(call.inputs.q.dtype()));
  return call.slopes;
}

qkv::Diagonal read_offset(const AttendOptions& options, AttendCall& call) {
  if (const auto number = qkv::app::parse_number<Index>(options.offset)) {
    call.settings["causal_offset"] = *number;
    return qkv::Offset{*number};
  }
  const std::string file = split_spec(options.offset).file;
  std::error_code error;
  if (file != "-" && !std::filesystem::exists(file, error) && !qkv::app::array_format(file)) {
    throw UsageError(fmt::format("--causal-offset: expected a whole number or {}, got {}",
                                 kArrayType, qkv::app::quoted(options.offset)));
  }
  return qkv::Offsets{read_option(call, options.offset, "--causal-offset", "diagonal")};
}

void read_diagonal(const AttendOptions& options, AttendCall& call) {
  if (!options.corner && options.offset.empty()) return;
  if (!options.causal && !options.window && options.alibi.empty() && !options.rotary) {
    throw UsageError(fmt::format("{} requires --causal, --window, --alibi or --rotary",
                                 options.corner ? "--causal-corner" : "--causal-offset"));
  }
  if (!options.corner) {
    call.options.diagonal = read_offset(options, call);
    return;
  }
  if (*options.corner == Corner::kTopLeft) call.options.diagonal = qkv::TopLeft{};
  call.settings["causal_corner"] = kCorners[static_cast<std::size_t>(*options.corner)].name;
}

// ---- expressions ----------------------------------------------------------------------------

void take_expressions(const AttendOptions& options, AttendCall& call) {
  const Expressions expressions = read_expressions(options.expressions, call.store);
  call.options.mods = expressions.mods;
  call.options.masks.insert(call.options.masks.end(), expressions.masks.begin(),
                            expressions.masks.end());
  call.settings.update(settings_of(expressions));
}

// ---- masks ----------------------------------------------------------------------------------

void read_masks(const AttendOptions& options, AttendCall& call) {
  std::vector<qkv::Mask>& masks = call.options.masks;
  if (options.causal) {
    call.settings["causal"] = true;
    masks.emplace_back(qkv::Causal{});
  }
  if (options.window) {
    call.settings["window"] = {options.window->left, options.window->right};
    masks.emplace_back(*options.window);
  }
  const ConstView lengths = read_option(call, options.lengths, "--lengths", "key_lengths");
  if (lengths.given()) masks.emplace_back(qkv::KeyLengths{lengths});
  const ConstView keep = read_option(call, options.mask, "--mask", "keep");
  if (keep.given()) masks.emplace_back(qkv::Keep{keep});
  const ConstView padding = read_option(call, options.padding, "--padding-mask", "padding");
  if (padding.given()) masks.emplace_back(qkv::Padding{padding});
}

// ---- warnings of non-finite numbers ---------------------------------------------------------

struct NotFinite {
  Index nan = 0;
  Index infinite = 0;
};

template <class T>
double as_double(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return static_cast<double>(static_cast<float>(value));
  }
}

// Counts NaN and infinite numbers. -inf counts only with `minus`: in a bias it masks a pair, and a
// sink of -inf has no effect.
template <class T>
NotFinite count_not_finite(const ConstView& view, bool minus) {
  const qkv::Tensor copy = view.is_contiguous() ? qkv::Tensor() : qkv::contiguous(view);
  const T* values = static_cast<const T*>(copy.given() ? copy.view().data() : view.data());
  NotFinite count;
  for (Index n = 0; n < view.element_count(); ++n) {
    const double value = as_double(values[n]);
    if (std::isnan(value)) ++count.nan;
    if (std::isinf(value) && (minus || value > 0)) ++count.infinite;
  }
  return count;
}

NotFinite count_not_finite(const ConstView& view, bool minus) {
  switch (view.dtype()) {
    case DType::kFloat64:
      return count_not_finite<double>(view, minus);
    case DType::kFloat32:
      return count_not_finite<float>(view, minus);
    case DType::kBFloat16:
      return count_not_finite<qkv::BFloat16>(view, minus);
    case DType::kFloat16:
      return count_not_finite<qkv::Float16>(view, minus);
    default:
      return {};
  }
}

void add_warning(AttendCall& call, const std::string& name, const ConstView& view,
                 bool minus = true) {
  const NotFinite count = count_not_finite(view, minus);
  if (count.nan == 0 && count.infinite == 0) return;
  call.warnings.push_back(
      fmt::format("{} holds {}{}{}{}; results may be NaN or infinite", name,
                  count.nan > 0 ? fmt::format("{} NaN", count.nan) : "",
                  count.nan > 0 && count.infinite > 0 ? " and " : "",
                  count.infinite > 0 ? fmt::format("{} infinite", count.infinite) : "",
                  count.nan + count.infinite == 1 ? " number" : " numbers"));
}

void add_warnings(AttendCall& call) {
  for (const auto& [name, view] :
       {std::pair{"q", &call.inputs.q}, {"k", &call.inputs.k}, {"v", &call.inputs.v}}) {
    if (view->given())
      add_warning(call, fmt::format("{}: {}", call.origins[name].place, name), *view);
  }
  const auto parameter = [&](const std::string& name, const ConstView& view) {
    if (view.given()) add_warning(call, fmt::format("--params: {}", name), view);
  };
  std::visit(
      [&]<class S>(const S& score) {
        S::for_each_parameter(
            [&](const char* name, auto value, auto) { parameter(name, score.*value); });
      },
      call.options.score);
  if (call.options.qk_norm) {
    qkv::QkNorm::for_each_parameter([&](const char* side, auto gain, auto) {
      parameter(std::string("norm_") + side, *call.options.qk_norm.*gain);
    });
  }
  add_warning(call, "--bias", call.options.bias, false);
  add_warning(call, "--alibi", call.options.alibi);
  add_warning(call, "--sinks", call.options.sinks, false);
}

}  // namespace

void read_call(const AttendOptions& options, AttendCall& call) {
  read_inputs(options, call);
  call.inputs.cu_seqlens_q =
      read_option(call, options.cu_seqlens_q, "--cu-seqlens-q", "cu_seqlens_q");
  call.inputs.cu_seqlens_k =
      read_option(call, options.cu_seqlens_k, "--cu-seqlens-k", "cu_seqlens_k");
  call.options.score = read_score(options, call);
  read_norm(options, call);
  read_rotary(options, call);
  read_numbers(options, call);
  call.options.bias = read_option(call, options.bias, "--bias", "bias");
  call.options.alibi = read_slopes(options, call);
  read_diagonal(options, call);
  read_masks(options, call);
  take_expressions(options, call);
  call.options.sinks = read_option(call, options.sinks, "--sinks", "sinks");
  if (options.dropout.value_or(0) != 0) call.settings["dropout"] = *options.dropout;
  if (options.seed) call.settings["seed"] = *options.seed;
  if (!options.rows.empty()) call.settings["rows"] = options.rows;
  if (!options.column_rows.empty()) call.settings["column_rows"] = options.column_rows;
  if (!options.pool.empty()) call.settings["pool"] = options.pool;
  add_warnings(call);
}
