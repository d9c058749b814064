// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>

#include "attention/validate/bind.h"

// What is left of validation where a plan runs again on arrays of the layout that it ran on before.
namespace qkv::attn {
namespace {

template <class AnyView>
bool same_layout(const AnyView& a, const AnyView& b) {
  if (!a.given() && !b.given()) return true;
  return a.dtype() == b.dtype() && a.shape() == b.shape() && a.strides() == b.strides();
}

// All members, by structured bindings: one more does not compile until it is here.
auto views_of(const Inputs& inputs) {
  const auto& [q, k, v, cu_seqlens_q, cu_seqlens_k, block_tables, context_lens] = inputs;
  return std::array{&q, &k, &v, &cu_seqlens_q, &cu_seqlens_k, &block_tables, &context_lens};
}

auto views_of(const Outputs& outputs) {
  const auto& [out, lse, row_max, entropy, column_sums, value_sums, pooled, top, weights, dropped,
               raw, capped, masked] = outputs;
  return std::array{
      &out,           &lse,          &row_max,  &entropy,        &column_sums.sums, &value_sums,
      &pooled,        &top.weights,  &top.keys, &weights.matrix, &dropped.matrix,   &raw.matrix,
      &capped.matrix, &masked.matrix};
}

// In the order of views_of(outputs).
auto operands_of(core::Results& results) {
  auto& [out, lse, row_max, entropy, columns, pooled, top, top_weights, top_keys, weights, dropped,
         raw, capped, masked] = results;
  static_cast<void>(top);
  return std::array{&out,
                    &lse,
                    &row_max,
                    &entropy,
                    &columns.sums,
                    &columns.value_sums,
                    &pooled.cells,
                    &top_weights,
                    &top_keys,
                    &weights.matrix,
                    &dropped.matrix,
                    &raw.matrix,
                    &capped.matrix,
                    &masked.matrix};
}

// Lists of rows have values, which are checked in each run.
bool lists_rows(const Outputs& outputs) {
  const auto& [out, lse, row_max, entropy, column_sums, value_sums, pooled, top, weights, dropped,
               raw, capped, masked] = outputs;
  if (column_sums.rows.given()) return true;
  for (const Rows* rows : {&weights, &dropped, &raw, &capped, &masked}) {
    if (rows->rows.given()) return true;
  }
  return false;
}

template <class Arrays>
bool all_alike(const Arrays& now, const Arrays& before) {
  for (std::size_t n = 0; n < now.size(); ++n) {
    if (!same_layout(*now[n], *before[n])) return false;
  }
  return true;
}

template <class Arrays>
bool all_there(const Arrays& now, const Arrays& before) {
  for (std::size_t n = 0; n < now.size(); ++n) {
    if (now[n]->data() != before[n]->data()) return false;
  }
  return true;
}

}  // namespace

bool has_values_to_check(const Inputs& inputs, const Options& options, const Outputs& outputs) {
  return inputs.cu_seqlens_q.given() || inputs.cu_seqlens_k.given() ||
         inputs.block_tables.given() || inputs.context_lens.given() || lists_rows(outputs) ||
         reads_arrays(options);
}

Repeat compare(const Inputs& inputs, const Outputs& outputs, const Inputs& inputs_before,
               const Outputs& outputs_before) {
  if (!all_alike(views_of(inputs), views_of(inputs_before)) ||
      !all_alike(views_of(outputs), views_of(outputs_before)) ||
      outputs.top.count != outputs_before.top.count || lists_rows(outputs)) {
    return Repeat::kNone;
  }
  return all_there(views_of(inputs), views_of(inputs_before)) &&
                 all_there(views_of(outputs), views_of(outputs_before))
             ? Repeat::kArrays
             : Repeat::kLayout;
}

void put_addresses(const Inputs& inputs, const Outputs& outputs, core::Problem& p,
                   core::Results& results) {
  p.q.data = inputs.q.data();
  p.k.data = inputs.k.data();
  p.v.data = inputs.v.data();
  const auto views = views_of(outputs);
  const auto operands = operands_of(results);
  static_assert(views.size() == operands.size());
  for (std::size_t n = 0; n < views.size(); ++n) operands[n]->data = views[n]->data();
}

}  // namespace qkv::attn
