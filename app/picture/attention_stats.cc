// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/attention_stats.h>
#include <qkv/error.h>

#include "picture/head_scan.h"
#include "text/special_tokens.h"

namespace qkv::app {
namespace {

constexpr std::string_view kFaultNames[] = {"not_finite",   "negative", "row_sums", "transposed",
                                            "masked",       "padding",  "one_key",  "next_key",
                                            "previous_key", "leak",     "uniform"};

// The row [Tk] of a view [N,L,H,Tq,Tk] at the indices `at` of its first four axes.
ConstView row_of(const ConstView& maps, const Dims& at) {
  const Index element_bytes = static_cast<Index>(size_of(maps.dtype()));
  Index offset = 0;
  for (int axis = 0; axis < 4; ++axis) offset += at[axis] * maps.stride(axis);
  return {static_cast<const char*>(maps.data()) + offset * element_bytes, maps.dtype(),
          Dims(maps.size(4)), Dims(maps.stride(4))};
}

void check_index(const AttentionFile& file, std::string_view name, int axis, Index index) {
  if (index >= 0 && index < file.attn.size(axis)) return;
  throw Error("head_report", name,
              fmt::format("must be 0 to {}, got {}", file.attn.size(axis) - 1, index));
}

// Returns 1 for each padding token, else 0; an empty list if `tokens` is null.
std::vector<char> padding_of(const Tokens* tokens) {
  std::vector<char> padding;
  if (tokens == nullptr) return padding;
  std::transform(tokens->begin(), tokens->end(), std::back_inserter(padding),
                 [](const std::string& token) { return is_padding(token) ? char{1} : char{0}; });
  return padding;
}

picture::MapFacts facts_of(const AttentionFile& file, std::size_t example) {
  picture::MapFacts facts;
  facts.queries = file.attn.size(3);
  facts.keys = file.attn.size(4);
  facts.tolerance = row_sum_tolerance(file.attn.dtype());
  facts.has_mask = file.mask.given();
  facts.rows = file.rows;
  if (!file.tgt.empty()) facts.tgt = &file.tgt[example];
  if (!file.src.empty()) facts.src = &file.src[example];
  facts.padding_queries = padding_of(facts.tgt);
  facts.padding = padding_of(facts.src);
  return facts;
}

}  // namespace

std::string_view name_of(Fault fault) { return kFaultNames[static_cast<std::size_t>(fault)]; }

double row_sum_tolerance(DType dtype) { return size_of(dtype) == 2 ? 1e-2 : 1e-4; }

HeadReport head_report(const AttentionFile& file, Index example, Index layer, Index head) {
  check_index(file, "example", 0, example);
  check_index(file, "layer", 1, layer);
  check_index(file, "head", 2, head);
  picture::HeadScan scan(facts_of(file, static_cast<std::size_t>(example)));
  Tensor weights(DType::kFloat64, {file.attn.size(4)});
  Tensor allowed;
  if (file.mask.given()) allowed = Tensor(DType::kBool, {file.attn.size(4)});
  for (Index i = 0; i < file.attn.size(3); ++i) {
    const Dims at{example, layer, head, i};
    copy(row_of(file.attn, at), weights);
    if (allowed.given()) copy(row_of(file.mask, at), allowed);
    scan.add(weights.values<double>(),
             allowed.given() ? std::as_const(allowed).values<bool>() : std::span<const bool>());
  }
  return scan.report({example, layer, head});
}

std::vector<HeadReport> attention_statistics(const AttentionFile& file) {
  std::vector<HeadReport> reports;
  for (Index example = 0; example < file.attn.size(0); ++example) {
    for (Index layer = 0; layer < file.attn.size(1); ++layer) {
      for (Index head = 0; head < file.attn.size(2); ++head) {
        reports.push_back(head_report(file, example, layer, head));
      }
    }
  }
  return reports;
}

}  // namespace qkv::app
