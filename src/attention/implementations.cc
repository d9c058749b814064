// SPDX-License-Identifier: Apache-2.0
#include "attention/implementations.h"

#include <algorithm>
#include <optional>

#include <qkv/error.h>

#include "attention/fused_paths.h"
#include "attention/reference_path.h"
#include "core/message.h"
#include "dense/target_in_use.h"
#include "kernels/target.h"

namespace qkv::attn {
namespace {

// The implementations in order of preference.
constexpr auto kImplementations = [] {
  std::array<const Implementation*, kFused.size() + 3> all{};
  for (std::size_t n = 0; n < kFused.size(); ++n) all[n] = &kFused[n];
  all[kFused.size()] = &kReference;
  // The other references run only if they are forced, since kReference supports every problem.
  all[kFused.size() + 1] = &kDot2Reference;
  all[kFused.size() + 2] = &kAmxReference;
  return all;
}();

const char* name_of(core::PairProduct product) {
  switch (product) {
    case core::PairProduct::kDot:
      return "dot products";
    case core::PairProduct::kTanh:
      break;
  }
  return "the additive score";
}

template <class T>
bool contains(std::span<const T> list, const T& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// Returns what the implementation does not support, for an error message; null if it supports the
// pass over the problem.
const char* unsupported(const Implementation& x, const core::Problem& p, Pass pass) {
  if (!x.has(pass)) return pass == Pass::kForward ? "the forward pass" : "the backward pass";
  if (!contains(x.products, p.product)) return name_of(p.product);
  if (!contains(x.sums, p.accumulator)) return "this type of sums";
  if (!x.target) return nullptr;
  return dense::unsupported(*x.target);
}

const Implementation& choose_forced(const core::Problem& p, std::string_view forced, Pass pass) {
  for (const Implementation* candidate : kImplementations) {
    if (candidate->name != forced) continue;
    const char* reason = unsupported(*candidate, p, pass);
    if (reason == nullptr) return *candidate;
    dense::fail_unsupported_path(p.function, forced, reason);
  }
  dense::fail_unknown_path(p.function, forced);
}

}  // namespace

std::span<const Implementation* const> implementations() { return kImplementations; }

const Implementation& choose(const core::Problem& p, std::string_view forced, Pass pass) {
  const std::optional<kernels::Target> in_use = dense::target_in_use(p.function);
  if (!forced.empty()) return choose_forced(p, forced, pass);
  for (const Implementation* candidate : kImplementations) {
    if (candidate->target && candidate->target != in_use) continue;
    if (unsupported(*candidate, p, pass) == nullptr) return *candidate;
  }
  throw Error(p.function, "options",
              core::text("need what no path has: ", unsupported(kReference, p, pass)));
}

}  // namespace qkv::attn
