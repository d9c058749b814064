// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "attention/validate/resolve.h"
#include "attention/validate/shapes.h"
#include "core/message.h"
#include "core/tile_classes.h"
#include "expressions/indices.h"
#include "expressions/known_keys.h"

namespace qkv::attn {
namespace {

using core::text;

// Largest diagonal offset and window size: numbers up to it can be added to indices without
// overflow, and are exact as float64.
constexpr Index kLargestOffset = Index{1} << 53;

// Refuses an option whose array has an axis of Tk keys if batch entries have different numbers of
// keys.
void refuse_uneven(const Problem& p, std::string_view name) {
  if (p.packed()) {
    throw Error(p.function, name, "is not available with packed sequences (cu_seqlens)");
  }
  if (p.paged()) {
    throw Error(p.function, name, "is not available with keys in pages (block_tables)");
  }
}

// Checks that the view inside Offsets, Keep, Padding or KeyLengths is given.
void expect_given(const Problem& p, std::string_view name, const ConstView& x) {
  if (!x.given()) throw Error(p.function, name, "must hold an array, got none");
}

void resolve_bias(const Options& options, Problem& p) {
  p.bias = {};
  const ConstView& bias = options.bias;
  if (!bias.given()) return;
  refuse_uneven(p, "bias");
  expect_real(p, "bias", bias);
  const Dims weights = result_shape(p, {p.Tq, p.Tk});
  p.bias = to_operand(p, bias, broadcast_strides(p, "bias", bias, weights, "Tq,Tk"), 2);
}

Operand per_head(const Problem& p, const char* name, const ConstView& x) {
  if (!x.given()) return {};
  expect_real(p, name, x);
  expect_shape(p, name, x, Dims(p.H), "[H]");
  return plain_operand(p, x, x.stride(0), 0, 0);
}

// Resolves the slopes of ALiBi: [H], or [B,H] where B counts all batch axes.
Operand resolve_slopes(const Problem& p, const ConstView& x) {
  if (!x.given() || x.rank() != 2) return per_head(p, "alibi", x);
  expect_real(p, "alibi", x);
  if (x.shape() != Dims(p.B, p.H)) {
    throw Error(p.function, "alibi",
                text("must have the shape [H] = ", to_string(Dims(p.H)),
                     " or [B,H] = ", to_string({p.B, p.H}), ", got ", describe(x)));
  }
  Operand slopes = plain_operand(p, x, x.stride(1), 0, 0);
  slopes.entry_stride = x.stride(0);
  return slopes;
}

bool is_offset(Index o) { return o >= -kLargestOffset && o <= kLargestOffset; }

[[noreturn]] void refuse_offset(const Problem& p, const std::string& value) {
  throw Error(p.function, "diagonal", text("must be in -2^53 to 2^53, got ", value));
}

void check_diagonal(const BottomRight&, const Problem&) {}
void check_diagonal(const TopLeft&, const Problem&) {}
void check_diagonal(const Offset& one, const Problem& p) {
  if (!is_offset(one.o)) refuse_offset(p, text(one.o));
}
void check_diagonal(const Offsets& many, Problem& p) {
  expect_given(p, "diagonal", many.o);
  expect_integer(p, "diagonal", many.o);
  expect_shape(p, "diagonal", many.o, Dims(p.B), "[B]");
  p.offsets = Operand{many.o.data(), many.o.dtype(), {}, 0, many.o.stride(0), 0};
  if (p.on_device()) return;
  for (Index b = 0; b < p.B; ++b) {
    p.stop();
    const Index offset = b * many.o.stride(0);
    if (is_offset(integer_at(many.o, offset))) continue;
    refuse_offset(p, text(integer_text(many.o, offset), " for batch entry ", b));
  }
}

void resolve_diagonal(const Options& options, Problem& p) {
  p.diagonal = options.diagonal;
  p.offsets = {};
  std::visit([&](const auto& diagonal) { check_diagonal(diagonal, p); }, options.diagonal);
}

void resolve_dropout(const Options& options, Problem& p) {
  const double probability = options.dropout.p;
  if (!(probability >= 0 && probability < 1)) {
    throw Error(p.function, "dropout.p", text("must be in [0,1), got ", probability));
  }
  if (probability > 0 && !options.dropout.seed.has_value()) {
    throw Error(p.function, "dropout.seed",
                text("is absent but dropout.p is ", probability, "; dropout needs a seed"));
  }
  constexpr Index kDraws = 4;  // number of keys that share one draw of Philox
  if (probability > 0 && p.first_key() % kDraws != 0) {
    throw Error(p.function, "shard",
                text("must have a first_key that is a multiple of ", kDraws, " with dropout, got ",
                     p.first_key()));
  }
  p.dropout = probability;
  p.dropout_mask = core::DropoutMask(probability, options.dropout.seed.value_or(0));
}

// Checks sizes, since indices are passed to user functions as 32-bit integers (qkv::At).
void check_mod_range(const Problem& p, std::string_view name) {
  const Index largest = std::numeric_limits<std::int32_t>::max();
  const core::Sequence s{0, 0, p.Tq, p.Tk};
  const std::pair<const char*, Index> sizes[] = {
      {"B", p.B}, {"H", p.H}, {"Tq", p.whole_queries(s)}, {"Tk", p.whole_keys(s)}};
  for (const auto& [letter, size] : sizes) {
    if (size <= largest) continue;
    throw Error(
        p.function, name,
        text("is a user's function, which takes sizes up to 2^31 - 1, got ", letter, " = ", size));
  }
}

void resolve_mods(const Options& options, Problem& p) {
  p.mods = options.mods;
  for (std::size_t n = 0; n < options.mods.size(); ++n) {
    const ScoreMod& mod = options.mods[n];
    if (mod.callable == nullptr || mod.instance_count < 1) {
      throw Error(p.function, text("mods[", n, "]"), "is empty; make it with score_mod(...)");
    }
    if (p.accumulator == DType::kComplex128 && mod.complex128 == nullptr) {
      throw Error(p.function, text("mods[", n, "]"), "has no complex instance");
    }
    check_mod_range(p, text("mods[", n, "]"));
    if (mod.program != nullptr) {
      expressions::check_indices(p.function, text("mods[", n, "]"), mod.program->program,
                                 expressions::all_pairs(p), &p);
    }
  }
}

}  // namespace

namespace {

// Checks that a number, converted to the accumulator's type as the loops use it, stays finite and,
// if `not_zero`, does not become 0.
void check_in_sums(const Problem& p, const char* name, double value, bool not_zero) {
  if (p.accumulator != DType::kFloat32) return;
  const auto narrow = static_cast<float>(value);
  if (std::isfinite(narrow) && !(not_zero && narrow == 0)) return;
  throw Error(p.function, name, text("must fit in float32, the type of the sums, got ", value));
}

}  // namespace

void resolve_options(const Options& options, core::ResolvedProblem& p) {
  p.softcap = options.softcap;
  if (!std::isfinite(p.softcap) || p.softcap < 0) {
    throw Error(p.function, "softcap", text("must be finite and 0 (off) or more, got ", p.softcap));
  }
  check_in_sums(p, "softcap", p.softcap, p.softcap > 0);
  check_in_sums(p, "scale", p.scale, false);
  resolve_mods(options, p);
  resolve_bias(options, p);
  resolve_diagonal(options, p);
  p.alibi = resolve_slopes(p, options.alibi);
  resolve_masks(options, p);
  p.sinks = per_head(p, "sinks", options.sinks);
  resolve_dropout(options, p);
}

namespace {

core::ResolvedMask resolve_mask(const Causal&, std::string_view, const Problem&) {
  return core::CausalMask{};
}

core::ResolvedMask resolve_mask(const Window& mask, std::string_view name, const Problem& p) {
  const std::pair<const char*, Index> sides[] = {{"left", mask.left}, {"right", mask.right}};
  for (const auto& [side, reach] : sides) {
    if (reach >= -1 && reach <= kLargestOffset) continue;
    throw Error(p.function, text(name, ".", side),
                text("must be -1 (unbounded) or in 0 to 2^53, got ", reach));
  }
  return core::WindowMask{mask};
}

core::ResolvedMask resolve_mask(const Keep& mask, std::string_view name, const Problem& p) {
  refuse_uneven(p, name);
  expect_given(p, name, mask.keep);
  expect_integer(p, name, mask.keep, true);
  const Dims weights = result_shape(p, {p.Tq, p.Tk});
  const Dims strides = broadcast_strides(p, name, mask.keep, weights, "Tq,Tk");
  return core::KeepMask{to_operand(p, mask.keep, strides, 2)};
}

core::ResolvedMask resolve_mask(const Padding& mask, std::string_view name, const Problem& p) {
  refuse_uneven(p, name);
  const ConstView& x = mask.padding;
  expect_given(p, name, x);
  expect_integer(p, name, x, true);
  expect_shape(p, name, x, {p.B, p.Tk}, "[B,Tk]");
  return core::PaddingMask{{x.data(), x.dtype(), {}, 0, 0, x.stride(1)}, x.stride(0)};
}

// Checks every length in host memory; the caller has checked dtype and shape.
void check_lengths(const Problem& p, std::string_view name, const ConstView& x) {
  if (p.on_device()) return;
  const bool per_query = x.rank() == 2;
  for (Index b = 0; b < p.B; ++b) {
    p.stop();
    const Index Tk = p.whole_keys(p.sequence(b));
    for (Index i = 0; i < (per_query ? p.Tq : 1); ++i) {
      p.stop();
      const Index offset = b * x.stride(0) + (per_query ? i * x.stride(1) : 0);
      const Index length = integer_at(x, offset);
      if (length >= 0 && length <= Tk) continue;
      throw Error(
          p.function, name,
          text("must be in 0 to Tk = ", Tk, ", got ", integer_text(x, offset), " for ",
               p.packed() ? "sequence " : "batch entry ", b, per_query ? text(", query ", i) : ""));
    }
  }
}

core::ResolvedMask resolve_mask(const KeyLengths& mask, std::string_view name, const Problem& p) {
  const ConstView& x = mask.lengths;
  expect_given(p, name, x);
  expect_integer(p, name, x);
  const bool per_query = x.rank() == 2;
  if (p.packed()) {
    expect_shape(p, name, x, Dims(p.B), "[B]");
  } else if (x.shape() != Dims(p.B) && x.shape() != Dims(p.B, p.Tq)) {
    throw Error(p.function, name,
                text("must have the shape [B] = ", to_string(Dims(p.B)),
                     " or [B,Tq] = ", to_string({p.B, p.Tq}), ", got ", describe(x)));
  }
  check_lengths(p, name, x);
  return core::LengthMask{
      {x.data(), x.dtype(), {}, 0, per_query ? x.stride(1) : 0, 0}, x.stride(0), p.first_key()};
}

core::ResolvedMask resolve_mask(const MaskMod& mask, std::string_view name, const Problem& p) {
  if (mask.callable == nullptr || mask.instance_count < 1) {
    throw Error(p.function, name, "is empty; make it with mask_mod(...)");
  }
  check_mod_range(p, name);
  // precompute() has checked the indices of its own batch entries and heads.
  const auto is_checked = [&](const expressions::Program& program) {
    return mask.classes != nullptr &&
           (mask.classes->B > 1 || p.B <= 1 || !program.reads(detail::Operation::kBatch)) &&
           (mask.classes->H > 1 || p.H <= 1 || !program.reads(detail::Operation::kHead));
  };
  if (mask.program != nullptr && !is_checked(mask.program->program)) {
    expressions::check_indices(p.function, name, mask.program->program, expressions::all_pairs(p),
                               &p);
  }
  return core::UserMask{.mod = &mask, .classes = mask.classes.get()};
}

// Finds out from a mask's expression, if it has one, which keys the mask allows, as far as that
// shows without evaluating each pair.
void find_known_keys(core::UserMask& mask, core::ResolvedProblem& p) {
  if (mask.mod->program == nullptr || mask.classes != nullptr || p.on_device()) return;
  const expressions::Program& program = mask.mod->program->program;
  const auto ranges = expressions::solved_for_keys(program, p);
  mask.ranges = ranges.get();
  p.own_mask_tables.push_back(ranges);
  if (is_range(mask)) return;
  const auto classes = expressions::classified_by_ranges(program, p);
  mask.classes = classes.get();
  p.own_mask_tables.push_back(classes);
}

// Throws Error if a precomputed mask was made for other sizes than the call's.
void check_precomputed(const Problem& p, std::string_view name, const MaskMod& mask) {
  if (mask.classes == nullptr) return;
  if (p.packed() || p.paged() || p.shard) {
    throw Error(p.function, name,
                text("is precomputed, which is not available with ",
                     p.packed()  ? "packed sequences (cu_seqlens)"
                     : p.paged() ? "keys in pages (block_tables)"
                                 : "a shard"));
  }
  struct Size {
    const char* letter;
    Index made_for;
    Index in_call;
    bool may_be_one;  // made_for = 1 stands for all entries
  };
  const detail::TileClasses& made = *mask.classes;
  const Size sizes[] = {{"Tq", made.Tq, p.Tq, false},
                        {"Tk", made.Tk, p.Tk, false},
                        {"B", made.B, p.B, true},
                        {"H", made.H, p.H, true}};
  for (const Size& size : sizes) {
    if (size.made_for == size.in_call || (size.may_be_one && size.made_for == 1)) continue;
    throw Error(p.function, name,
                text("is precomputed for ", size.letter, " = ", size.made_for, " but the call has ",
                     size.letter, " = ", size.in_call));
  }
}

// If the last mod is where(mask, x, -inf) and its mask has ranges of keys, adds these as a mask,
// unless a bias or ALiBi, which may be NaN or infinite, changes the masked scores.
void add_mask_of_scores(core::ResolvedProblem& p) {
  if (p.mods.empty() || p.bias.given() || p.alibi.given() || p.on_device()) return;
  const auto& program = p.mods.back().program;
  if (program == nullptr || !program->mask.has_value()) return;
  const auto ranges = expressions::solved_for_keys(*program->mask, p);
  if (ranges == nullptr) return;
  p.own_mask_tables.push_back(ranges);
  p.own_masks.emplace_back(core::UserMask{.ranges = ranges.get()});
}

}  // namespace

void resolve_masks(const Options& options, core::ResolvedProblem& p) {
  p.own_masks.clear();
  p.own_mask_tables.clear();
  for (std::size_t n = 0; n < options.masks.size(); ++n) {
    const Mask& mask = options.masks[n];
    const std::string_view name = name_of(mask);
    p.own_masks.push_back(
        std::visit([&](const auto& m) { return resolve_mask(m, name, p); }, mask));
    const auto* mod = std::get_if<MaskMod>(&mask);
    if (mod == nullptr) continue;
    check_precomputed(p, text("masks[", n, "]"), *mod);
    find_known_keys(std::get<core::UserMask>(p.own_masks.back()), p);
  }
  add_mask_of_scores(p);
  p.masks = p.own_masks;
}

}  // namespace qkv::attn
