// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "attention/validate/resolve.h"
#include "attention/validate/shapes.h"

// Calls whose arrays lie in device memory accept only inputs and options whose numbers the CPU need
// not read. Everything is listed by name, so that a new input, option, score, diagonal or mask does
// not compile until it is accepted or refused.
namespace qkv::attn {
namespace {

void accept(const ScaledDot&, const Problem&) {}
void accept(const Dot&, const Problem&) {}
void accept(const Bilinear&, const Problem&) {}
void accept(const Additive&, const Problem&) {}
void accept(const Cosine&, const Problem&) {}

void accept(const BottomRight&, const Problem&) {}
void accept(const TopLeft&, const Problem&) {}
void accept(const Offset&, const Problem&) {}
void accept(const Offsets&, const Problem&) {}

void accept(const Causal&, const Problem&) {}
void accept(const Window&, const Problem&) {}
void accept(const Keep&, const Problem&) {}
void accept(const Padding&, const Problem&) {}
void accept(const KeyLengths&, const Problem&) {}
void accept(const MaskMod&, const Problem& p) { refuse_on_device(p, MaskMod::kName); }

template <class... Any>
void accept_values(const Any&...) {}

}  // namespace

void resolve_device(const Inputs& inputs, const Options& options, const Problem& p) {
  const auto& [q, k, v, cu_seqlens_q, cu_seqlens_k, block_tables, context_lens, shard] = inputs;
  accept_values(q, k, v, cu_seqlens_q, cu_seqlens_k);
  if (block_tables.given()) refuse_on_device(p, "block_tables");
  if (context_lens.given()) refuse_on_device(p, "context_lens");
  if (shard) refuse_on_device(p, "shard");

  const auto& [qk_norm, rotary, score, scale, softcap, mods, bias, diagonal, alibi, masks, sinks,
               dropout] = options;
  accept_values(scale, softcap, bias, alibi, sinks, dropout);
  if (qk_norm) refuse_on_device(p, QkNorm::kName);
  if (rotary) refuse_on_device(p, Rotary::kName);
  if (!mods.empty()) refuse_on_device(p, "mods");
  const auto accept_one = [&](const auto& one) { accept(one, p); };
  std::visit(accept_one, score);
  std::visit(accept_one, diagonal);
  for (const Mask& mask : masks) std::visit(accept_one, mask);
}

}  // namespace qkv::attn
