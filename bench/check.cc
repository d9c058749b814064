// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <variant>

#include <qkv/q8.h>

namespace qkv::bench {

// ---- numbers --------------------------------------------------------------------------------

double most_of(const ConstView& view) {
  if (view.dtype() == DType::kQ8) {
    Dims shape = view.shape();
    shape[shape.rank() - 1] *= BlockQ8::kNumbers;
    Tensor numbers(DType::kFloat32, shape);
    dequantize_q8(view, numbers);
    return most_of(numbers);
  }
  const Tensor values = convert(view, DType::kFloat64);
  double most = 0;
  for (const double value : values.values<double>()) most = std::max(most, std::abs(value));
  return most;
}

std::string difference(const ConstView& got, const ConstView& want, double bound) {
  const Tensor a = convert(got, DType::kFloat64);
  const Tensor b = convert(want, DType::kFloat64);
  const auto as = a.values<double>();
  const auto bs = b.values<double>();
  for (std::size_t n = 0; n < as.size(); ++n) {
    if (std::abs(as[n] - bs[n]) <= bound) continue;  // NaN fails
    return "got " + std::to_string(as[n]) + ", reference " + std::to_string(bs[n]);
  }
  return "";
}

namespace {

double magnitudes_of(const ConstView& view) {
  const Tensor values = convert(view, DType::kFloat64);
  double sum = 0;
  for (const double value : values.values<double>()) sum += std::abs(value);
  return sum;
}

// The allowed error relative to the largest value. Most sums of a path and of the reference have
// the same order (docs/semantics.md), and only the last bits of exponentials differ. For float32
// 2^-18 is 32 to 64 units in the last place, for float64 2^-46 is 64 to 128. Results of 16 bits may
// differ by one unit, since they are rounded.
double unit_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 0x1p-46;
    case DType::kBFloat16:
      return 0x1p-7;
    case DType::kFloat16:
      return 0x1p-10;
    default:
      return 0x1p-18;
  }
}

// The allowed error of `out`. Additive scores may differ by unit_of() / 8 times sum_u |v_u|, which
// for float32 is 2^-21 times the sum. A weight may then differ by twice as much, relative to
// itself.
double forward_bound(const Problem& problem, double largest) {
  const double unit = unit_of(problem.shape.dtype);
  const auto* additive = std::get_if<Additive>(&problem.options.score);
  const double scores = additive == nullptr ? 0 : magnitudes_of(additive->v) / 8;
  return largest * unit * (1 + 2 * scores);
}

// The allowed error of gradients: eight times that of `out`, since terms of their sums cancel.
double backward_bound(const Problem& problem, double largest) {
  return 8 * forward_bound(problem, largest);
}

// ---- parts of a problem ---------------------------------------------------------------------

// Indices of an axis: `count` from `first` on.
struct Span {
  Index first = 0;
  Index count = 0;
};

// A part of a problem: some queries (rows) and keys of some batch entries.
struct Part {
  Span entries;
  Span rows;
  Span keys;
};

template <class AnyView>
AnyView cut(const AnyView& view, int axis, const Span& span) {
  return slice(view, axis, span.first, span.first + span.count);
}

// rows_of(), keys_of() and pairs_of() return a part's slice of an array of queries [B,.,Tq,...], of
// keys [B,.,Tk,...] or of pairs [Tq,Tk].
View rows_of(const View& view, const Part& part) {
  return cut(cut(view, 0, part.entries), 2, part.rows);
}
View keys_of(const View& view, const Part& part) {
  return cut(cut(view, 0, part.entries), 2, part.keys);
}
template <class AnyView>
AnyView pairs_of(const AnyView& view, const Part& part) {
  return cut(cut(view, 0, part.rows), 1, part.keys);
}

Inputs inputs_of(const Problem& problem, const Part& part) {
  if (problem.block_tables.given()) {
    return {.q = rows_of(problem.q, part),
            .k = problem.k,
            .v = problem.v,
            .block_tables = cut(problem.block_tables, 0, part.entries),
            .context_lens = cut(problem.context_lens, 0, part.entries)};
  }
  return {rows_of(problem.q, part), keys_of(problem.k, part), keys_of(problem.v, part)};
}

Options options_of(const Problem& problem, const Part& part) {
  Options options = problem.options;
  const Index o = offset_of(problem.shape.Tq, problem.shape.Tk, options);
  options.diagonal = Offset{o + part.rows.first - part.keys.first};
  if (options.bias.given()) options.bias = pairs_of(options.bias, part);
  for (Mask& mask : options.masks) {
    if (auto* keep = std::get_if<Keep>(&mask)) keep->keep = pairs_of(keep->keep, part);
  }
  return options;
}

// The most that a problem's options need to know about a query and a key, in ascending order. It
// decides which parts of the problem have the same result in a separate call.
enum class Know {
  kDistance,  // the distance between query and key
  kPair,      // an element of an array [Tq,Tk], which can be sliced
  kIndices,   // the indices i and j, which are the same only in parts from query 0 and key 0 on
  kCount,     // the number of keys, which differs in parts with some of the keys
};

Know knowledge_of(const Causal&) { return Know::kDistance; }
Know knowledge_of(const Window&) { return Know::kDistance; }
Know knowledge_of(const Keep&) { return Know::kPair; }
Know knowledge_of(const Padding&) { return Know::kCount; }
Know knowledge_of(const KeyLengths&) { return Know::kCount; }
Know knowledge_of(const MaskMod&) { return Know::kIndices; }
Know knowledge_of_any(const Mask& mask) {
  return std::visit([](const auto& one) { return knowledge_of(one); }, mask);
}

Know knowledge_of(const Options& options) {
  Know most = options.bias.given() ? Know::kPair : Know::kDistance;
  if (!options.mods.empty() || options.dropout.p > 0) most = Know::kIndices;
  for (const Mask& mask : options.masks) most = std::max(most, knowledge_of_any(mask));
  return most;
}

Part whole_of(const Shape& shape) { return {{0, shape.B}, {0, shape.Tq}, {0, shape.Tk}}; }

// Ranges of a few indices below `length`: the first, the middle and the last ones, or all if these
// would overlap. Only the first ones if the options need indices.
std::vector<Span> samples_of(Index length, Know know) {
  constexpr Index kSome = 4;
  if (know >= Know::kIndices) return {{0, std::min(kSome, length)}};
  if (length <= 3 * kSome) return {{0, length}};
  return {{0, kSome}, {(length - kSome) / 2, kSome}, {length - kSome, kSome}};
}

// Parts of the problem that have the same result in a separate call: some rows with all keys. For
// gradients also some keys with all rows, since out and lse of the whole problem are inputs there.
std::vector<Part> parts_of(const Problem& problem, Know know) {
  const Shape& s = problem.shape;
  std::vector<Part> parts;
  std::vector<Index> entries = {0};
  if (s.B > 1 && know < Know::kIndices) entries.push_back(s.B - 1);
  for (const Index b : entries) {
    for (const Span& rows : samples_of(s.Tq, know)) parts.push_back({{b, 1}, rows, {0, s.Tk}});
    if (problem.pass == Pass::kForward) continue;
    for (const Span& keys : samples_of(s.Tk, know)) parts.push_back({{b, 1}, {0, s.Tq}, keys});
  }
  return parts;
}

// ---- the comparison -------------------------------------------------------------------------

Context reference() {
  Context context;
  context.force_path("reference");
  return context;
}

std::string forward_fault(const Problem& problem, const View& out, const Part& part) {
  const View got = rows_of(out, part);
  Tensor want(got.dtype(), got.shape());
  Context context = reference();
  const Inputs inputs = inputs_of(problem, part);
  attention(inputs, options_of(problem, part), {.out = want}, context);
  // A row of out is a weighted mean of values, so the bound is relative to the largest value, which
  // is estimated from 1024 keys. Keys are axis 1 of pages [pages,page,G,E], else axis 2.
  const int keys = problem.block_tables.given() ? 1 : 2;
  const Index some = std::min<Index>(inputs.v.size(keys), 1024);
  return difference(got, want, forward_bound(problem, most_of(slice(inputs.v, keys, 0, some))));
}

// Returns `like`, but each gradient that it has is replaced by a view of one of `buffers`, in the
// order of views_of().
ScoreGradient with_buffers(const ScoreGradient& like, std::span<Tensor> buffers) {
  ScoreGradient gradient = like;
  for_each_alternative<Score>([&]<class S>() {
    auto* given = std::get_if<typename S::Gradient>(&gradient);
    if (given == nullptr) return;
    std::size_t n = 0;
    S::for_each_parameter([&](const char*, auto, auto its) {
      if (((*given).*its).given()) (*given).*its = buffers[n++];
    });
  });
  return gradient;
}

// Names for the gradients that views_of() returns: one for each parameter that the score has.
std::vector<std::string> names_of(const Score& score) {
  std::vector<std::string> names;
  const auto add = [&]<class S>(const S& one) {
    S::for_each_parameter([&](const char* name, auto value, auto) {
      if ((one.*value).given()) names.push_back(std::string("the score's d") + name);
    });
  };
  std::visit(add, score);
  return names;
}

// Compares those gradients that the part determines: of queries if the part has all keys, of keys
// and values if it has all queries, of the bias if it has all batch entries, and of parameters if
// it is the whole problem.
std::string backward_fault(const Problem& problem, const std::vector<View>& results,
                           const Part& part) {
  const Shape& s = problem.shape;
  std::vector<View> got = {rows_of(results[0], part), keys_of(results[1], part),
                           keys_of(results[2], part)};
  if (problem.options.bias.given()) got.push_back(pairs_of(results[3], part));
  const std::size_t parameters = results.size() - got.size();
  got.insert(got.end(), results.begin() + static_cast<std::ptrdiff_t>(got.size()), results.end());
  std::vector<Tensor> want;
  want.reserve(got.size());
  for (const View& view : got) want.emplace_back(view.dtype(), view.shape());
  InputGradients gradients{.q = want[0], .k = want[1], .v = want[2]};
  if (problem.options.bias.given()) gradients.bias = want[3];
  gradients.score = with_buffers(problem.dscore, std::span(want).last(parameters));
  Context context = reference();
  attention_backward(inputs_of(problem, part), options_of(problem, part),
                     {rows_of(problem.out, part), rows_of(problem.lse, part)},
                     {.out = rows_of(problem.dout, part)}, gradients, context);
  const bool all_rows = part.rows.count == s.Tq;
  const bool all_keys = part.keys.count == s.Tk;
  const bool all_entries = part.entries.count == s.B;
  std::vector<bool> complete = {all_keys, all_rows, all_rows};
  std::vector<std::string> names = {"dq", "dk", "dv"};
  if (problem.options.bias.given()) {
    complete.push_back(all_entries);
    names.emplace_back("dbias");
  }
  const bool all = all_entries && all_rows && all_keys;
  for (std::string& name : names_of(problem.options.score)) {
    complete.push_back(all);
    names.push_back(std::move(name));
  }
  for (std::size_t n = 0; n < got.size(); ++n) {
    if (!complete[n]) continue;
    const double bound = backward_bound(problem, most_of(want[n]));
    const std::string fault = difference(got[n], want[n], bound);
    if (!fault.empty()) return names[n] + ": " + fault;
  }
  return "";
}

std::string fault_in(const Problem& problem, const std::vector<View>& results, const Part& part) {
  return problem.pass == Pass::kForward ? forward_fault(problem, results[0], part)
                                        : backward_fault(problem, results, part);
}

}  // namespace

std::string fault_of(const Problem& problem, const std::vector<View>& results) {
  // With less work than this, the reference takes less than a tenth of a second, or about one
  // second with tanh.
  const double most_work = units_of(problem) > 0 ? 0x1p24 : 0x1p26;
  const Know know = knowledge_of(problem.options);
  const Know most = problem.pass == Pass::kForward ? Know::kDistance : Know::kIndices;
  if (work_of(problem) < most_work || know > most) {
    return fault_in(problem, results, whole_of(problem.shape));
  }
  for (const Part& part : parts_of(problem, know)) {
    std::string fault = fault_in(problem, results, part);
    if (!fault.empty()) return fault;
  }
  return "";
}

}  // namespace qkv::bench
