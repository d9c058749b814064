// SPDX-License-Identifier: Apache-2.0
// The arguments of attention, attention_backward and Plan in the table's notation.
#include "tests/errors/attention_arguments.h"

#include <sstream>

namespace qkv::test {

std::size_t choice(Arguments& a, std::string_view name, std::initializer_list<const char*> words) {
  const std::string value = a.word(name);
  std::size_t n = 0;
  for (const char* word : words) {
    if (value == word) return n;
    ++n;
  }
  throw TableError(std::string(name) + " must not be \"" + value + "\"");
}

namespace {

std::optional<Shard> shard_of(Arguments& a) {
  if (!a.has("shard")) return std::nullopt;
  const std::string word = a.word("shard");
  Shard shard;
  std::istringstream numbers(word);
  char comma = 0;
  numbers >> shard.first_query >> comma >> shard.queries >> comma >> shard.first_key >> comma >>
      shard.keys;
  if (!numbers || !numbers.eof()) throw TableError("shard is FIRST_QUERY,QUERIES,FIRST_KEY,KEYS");
  return shard;
}

}  // namespace

Inputs inputs_of(Arguments& a) {
  return {a.input("q"),
          a.input("k"),
          a.input("v"),
          a.input("cu_seqlens_q"),
          a.input("cu_seqlens_k"),
          a.input("block_tables"),
          a.input("context_lens"),
          shard_of(a)};
}

// ---- options --------------------------------------------------------------------------------

namespace {

Score score_of(Arguments& a) {
  switch (choice(a, "score", {"", "scaled_dot", "dot", "bilinear", "additive"})) {
    case 2:
      return Dot{};
    case 3:
      return Bilinear{a.input("bilinear.w")};
    case 4:
      return Additive{a.input("additive.wq"), a.input("additive.wk"), a.input("additive.v"),
                      a.input("additive.b")};
    default:
      return ScaledDot{};
  }
}

Diagonal diagonal_of(Arguments& a) {
  const std::string word = a.word("diagonal");
  if (word.empty() || word == "bottom_right") return BottomRight{};
  if (word == "top_left") return TopLeft{};
  if (word == "absent" || word.find('[') != std::string::npos) return Offsets{a.input("diagonal")};
  return Offset{a.whole("diagonal", 0)};
}

Window window_of(Arguments& a) {
  // "LEFT,RIGHT" is a list without its brackets.
  const Dims sides = parse_array("i64[" + a.word("window") + "]").shape;
  if (sides.rank() != 2) throw TableError("window is LEFT,RIGHT");
  return {sides[0], sides[1]};
}

std::vector<ScoreMod> mods_of(Arguments& a) {
  const auto identity = [](auto s, At) { return s; };
  switch (choice(a, "mods", {"", "identity", "empty", "identity,empty"})) {
    case 0:
      return {};
    case 1:
      return {score_mod(identity)};
    case 2:
      return {ScoreMod{}};
    default:
      return {score_mod(identity), ScoreMod{}};
  }
}

}  // namespace

MaskMod mask_mod_of(Arguments& a) {
  const bool empty = choice(a, "mask_mod", {"all", "empty"}) == 1;
  const MaskMod mask = empty ? MaskMod{} : mask_mod([](At) { return true; });
  const std::string sizes = a.word("precomputed");
  if (sizes.empty()) return mask;
  const Dims dims = parse_array("i64[" + sizes + "]").shape;
  if (dims.rank() != 4) throw TableError("precomputed is TQ,TK,B,H");
  return precompute(mask, dims[0], dims[1], dims[2], dims[3]);
}

namespace {

std::vector<Mask> masks_of(Arguments& a) {
  std::vector<Mask> masks;
  for (const auto& [name, value] : a.all()) {
    if (name == "causal" && choice(a, name, {"yes"}) == 0) masks.emplace_back(Causal{});
    if (name == "window") masks.emplace_back(window_of(a));
    if (name == "keep") masks.emplace_back(Keep{a.input(name)});
    if (name == "padding") masks.emplace_back(Padding{a.input(name)});
    if (name == "key_lengths") masks.emplace_back(KeyLengths{a.input(name)});
    if (name != "mask_mod") continue;
    masks.emplace_back(mask_mod_of(a));
  }
  return masks;
}

std::optional<QkNorm> norm_of(Arguments& a) {
  if (!a.has("qk_norm.eps")) return std::nullopt;
  return QkNorm{a.input("qk_norm.q"), a.input("qk_norm.k"), a.number("qk_norm.eps", 0)};
}

std::optional<Rotary> rotary_of(Arguments& a) {
  if (!a.has("rotary")) return std::nullopt;
  const bool halves = choice(a, "rotary", {"neighbours", "halves"}) == 1;
  return Rotary{.pairs = halves ? RotaryPairing::kHalves : RotaryPairing::kNeighbours,
                .base = a.number("rotary.base", 10000),
                .width = a.whole("rotary.width", 0),
                .frequencies = a.input("rotary.frequencies"),
                .q_positions = a.input("rotary.q_positions"),
                .k_positions = a.input("rotary.k_positions")};
}

}  // namespace

Options options_of(Arguments& a) {
  Options options;
  options.qk_norm = norm_of(a);
  options.rotary = rotary_of(a);
  options.score = score_of(a);
  if (a.has("scale")) options.scale = a.number("scale", 0);
  options.softcap = a.number("softcap", 0);
  options.mods = mods_of(a);
  options.bias = a.input("bias");
  options.diagonal = diagonal_of(a);
  options.alibi = a.input("alibi");
  options.masks = masks_of(a);
  options.sinks = a.input("sinks");
  options.dropout.p = a.number("dropout.p", 0);
  if (a.has("dropout.seed")) {
    options.dropout.seed = static_cast<std::uint64_t>(a.whole("dropout.seed", 0));
  }
  return options;
}

// ---- results --------------------------------------------------------------------------------

namespace {

Rows rows_of(Arguments& a, const std::string& name) {
  return {a.input(name + ".rows"), a.output(name)};
}

}  // namespace

Outputs outputs_of(Arguments& a) {
  return {.out = a.output("out"),
          .lse = a.output("lse"),
          .row_max = a.output("row_max"),
          .entropy = a.output("entropy"),
          .column_sums = {a.input("column_sums.rows"), a.output("column_sums")},
          .value_sums = a.output("value_sums"),
          .pooled = a.output("pooled"),
          .top = {a.whole("top.count", 0), a.output("top.weights"), a.output("top.keys")},
          .weights = rows_of(a, "weights"),
          .dropped_weights = rows_of(a, "dropped_weights"),
          .raw_scores = rows_of(a, "raw_scores"),
          .capped_scores = rows_of(a, "capped_scores"),
          .masked_scores = rows_of(a, "masked_scores")};
}

namespace {

ScoreGradient score_gradient_of(Arguments& a) {
  const std::string name = "input_gradients.score";
  switch (choice(a, name, {"", "bilinear", "additive"})) {
    case 1:
      return BilinearGradient{a.output(name + ".w")};
    case 2:
      return AdditiveGradient{a.output(name + ".wq"), a.output(name + ".wk"), a.output(name + ".v"),
                              a.output(name + ".b")};
    default:
      return {};
  }
}

}  // namespace

BackwardArrays backward_arrays_of(Arguments& a) {
  BackwardArrays x;
  x.saved = {a.input("saved.out"), a.input("saved.lse")};
  x.from.out = a.input("output_gradients.out");
  x.from.lse = a.input("output_gradients.lse");
  x.from.weights = {a.input("output_gradients.weights.rows"), a.input("output_gradients.weights")};
  x.to.q = a.output("input_gradients.q");
  x.to.k = a.output("input_gradients.k");
  x.to.v = a.output("input_gradients.v");
  x.to.score = score_gradient_of(a);
  x.to.qk_norm = {a.output("input_gradients.qk_norm.q"), a.output("input_gradients.qk_norm.k")};
  x.to.bias = a.output("input_gradients.bias");
  x.to.alibi = a.output("input_gradients.alibi");
  x.to.sinks = a.output("input_gradients.sinks");
  return x;
}

Inputs planned_inputs(Arguments& a, const Inputs& inputs) {
  const auto planned = [&](const std::string& name, const ConstView& fallback) {
    const ConstView own = a.input("plan." + name);
    return a.has("plan." + name) ? own : fallback;
  };
  return {planned("q", inputs.q),
          planned("k", inputs.k),
          planned("v", inputs.v),
          planned("cu_seqlens_q", inputs.cu_seqlens_q),
          planned("cu_seqlens_k", inputs.cu_seqlens_k),
          planned("block_tables", inputs.block_tables),
          planned("context_lens", inputs.context_lens),
          inputs.shard};
}

}  // namespace qkv::test
