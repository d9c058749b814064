// SPDX-License-Identifier: Apache-2.0
// The difference of two attention files, for `qkv view A --minus B`.
#include <string>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/file_error.h>
#include <qkv/app/utf8.h>

#include "commands/view/view.h"

namespace {

using qkv::DType;
using qkv::Index;
using qkv::Tensor;

void check_same(const ViewOptions& options, std::string_view axis, const std::vector<Index>& ours,
                const std::vector<Index>& theirs) {
  if (ours == theirs) return;
  throw qkv::app::InputError(input_name(options.minus),
                             fmt::format("must have the same {} as {} ({}), got {}", axis,
                                         options.input.name(), ranges_of(ours), ranges_of(theirs)));
}

// A note such as 'tokens differ at 2 of 8 keys, first at 3: "he" in a.npz, "she" in b.npz', or "".
std::string differing_tokens(std::string_view axis, const std::vector<Index>& indices,
                             const qkv::app::Strings& ours, const qkv::app::Strings& theirs,
                             const ViewOptions& options) {
  if (ours.values.empty() || theirs.values.empty()) return {};
  std::size_t count = 0;
  std::size_t first = 0;
  for (std::size_t n = ours.values.size(); n-- > 0;) {
    if (ours.values[n] == theirs.values[n]) continue;
    ++count;
    first = n;
  }
  if (count == 0) return {};
  return fmt::format("tokens differ at {} of {} {}, first at {}: {} in {}, {} in {}", count,
                     ours.values.size(), axis, indices[first], qkv::app::quoted(ours.values[first]),
                     shown_name(options.input.spec), qkv::app::quoted(theirs.values[first]),
                     shown_name(options.minus));
}

void note_tokens(const Shown& other, const ViewOptions& options, Shown& shown) {
  const Selection& part = shown.selection;
  const bool once = part.named == part.keys && shown.src.values == shown.tgt.values &&
                    other.src.values == other.tgt.values;
  std::vector<std::string> texts{
      differing_tokens(once ? "places" : "keys", part.keys, shown.src, other.src, options)};
  if (!once) {
    texts.push_back(differing_tokens("queries", part.named, shown.tgt, other.tgt, options));
  }
  for (std::string& text : texts) {
    if (!text.empty()) shown.notes.push_back({std::move(text)});
  }
}

// Joins the masks: a query-key pair of the difference is masked if both files mask it.
void join_masks(const Shown& other, Shown& shown) {
  if (!shown.allowed.given() && !other.allowed.given()) return;
  const Index all = shown.weights.element_count();
  Tensor joined(DType::kBool, shown.weights.shape());
  Index differing = 0;
  for (Index n = 0; n < all; ++n) {
    const auto at = static_cast<std::size_t>(n);
    const bool ours = !shown.allowed.given() || shown.allowed.values<bool>()[at];
    const bool theirs = !other.allowed.given() || other.allowed.values<bool>()[at];
    joined.values<bool>()[at] = ours || theirs;
    differing += ours == theirs ? 0 : 1;
  }
  shown.allowed = std::move(joined);
  if (differing == 0) return;
  shown.notes.push_back({fmt::format(
      "masks differ: {} of {} pairs are masked in one file only, and drawn", differing, all)});
}

}  // namespace

void subtract(const Shown& part, const ViewOptions& options, Shown& shown) {
  const Selection& ours = shown.selection;
  const Selection& theirs = part.selection;
  check_same(options, "layers", ours.layers, theirs.layers);
  check_same(options, "heads", ours.heads, theirs.heads);
  check_same(options, "queries", ours.named, theirs.named);
  check_same(options, "keys", ours.keys, theirs.keys);

  shown.notes.insert(
      shown.notes.begin(),
      Note{fmt::format("{} minus {}", shown_name(options.input.spec), shown_name(options.minus))});
  note_tokens(part, options, shown);
  join_masks(part, shown);
  const bool wide =
      shown.weights.dtype() == DType::kFloat64 || part.weights.dtype() == DType::kFloat64;
  const Tensor exact = qkv::convert(part.weights.view(), DType::kFloat64);
  Tensor difference = qkv::convert(shown.weights.view(), DType::kFloat64);
  for (std::size_t n = 0; n < difference.values<double>().size(); ++n) {
    difference.values<double>()[n] -= exact.values<double>()[n];
  }
  shown.weights = wide ? std::move(difference) : qkv::convert(difference.view(), DType::kFloat32);
}
