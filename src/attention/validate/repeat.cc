// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <string_view>

#include "attention/validate/bind.h"

// Finds out which checks are left when a plan runs again, from what the new arrays share with those
// of the run before.
namespace qkv::attn {
namespace {

template <class AnyView>
bool same_layout(const AnyView& a, const AnyView& b) {
  if (!a.given() && !b.given()) return true;
  return a.dtype() == b.dtype() && a.shape() == b.shape() && a.strides() == b.strides();
}

// The structured binding names every member of Inputs, so that a new member does not compile until
// it is here. The shard is no array: compare() compares it.
auto views_of(const Inputs& inputs) {
  const auto& [q, k, v, cu_seqlens_q, cu_seqlens_k, block_tables, context_lens, shard] = inputs;
  static_cast<void>(shard);
  return std::array{&q, &k, &v, &cu_seqlens_q, &cu_seqlens_k, &block_tables, &context_lens};
}

// Lists buffers in the order of for_each_buffer and core::for_each_operand.
auto views_of(const Outputs& outputs) {
  std::array<const View*, kResultBuffers> views{};
  std::size_t n = 0;
  for_each_buffer(outputs, [&](std::string_view, const View& buffer) { views[n++] = &buffer; });
  return views;
}

// Whether an output lists rows, whose indices are checked in each run.
bool lists_rows(const Outputs& outputs) {
  bool any = false;
  for_each_row_list(outputs,
                    [&](std::string_view, const ConstView& rows) { any = any || rows.given(); });
  return any;
}

template <class Arrays>
bool same_layouts(const Arrays& now, const Arrays& before) {
  for (std::size_t n = 0; n < now.size(); ++n) {
    if (!same_layout(*now[n], *before[n])) return false;
  }
  return true;
}

template <class Arrays>
bool same_addresses(const Arrays& now, const Arrays& before) {
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
  if (!same_layouts(views_of(inputs), views_of(inputs_before)) ||
      !same_layouts(views_of(outputs), views_of(outputs_before)) ||
      inputs.shard != inputs_before.shard || outputs.top.count != outputs_before.top.count ||
      lists_rows(outputs)) {
    return Repeat::kNone;
  }
  return same_addresses(views_of(inputs), views_of(inputs_before)) &&
                 same_addresses(views_of(outputs), views_of(outputs_before))
             ? Repeat::kArrays
             : Repeat::kLayout;
}

void put_addresses(const Inputs& inputs, const Outputs& outputs, core::Problem& p,
                   core::Results& results) {
  p.q.data = inputs.q.data();
  p.k.data = inputs.k.data();
  p.v.data = inputs.v.data();
  const auto views = views_of(outputs);
  std::size_t n = 0;
  core::for_each_operand(results, [&](const auto&, core::ResultOperand& operand) {
    operand.data = views[n++]->data();
  });
}

}  // namespace qkv::attn
