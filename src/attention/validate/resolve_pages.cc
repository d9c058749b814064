// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <new>

#include "attention/validate/resolve.h"
#include "attention/validate/shapes.h"
#include "core/head_rows.h"
#include "core/integers.h"
#include "core/message.h"

// Resolves keys and values in pages, as serving engines lay them out (Kwon et al. 2023, section 4).
namespace qkv::attn {
namespace {

using core::kPageMultiple;
using core::shown;
using core::text;

Index stride_between(const ConstView& x, int axis) {
  return x.size(axis) == 1 ? 0 : x.stride(axis);
}

void check_paged_ranks(const Inputs& inputs, const Problem& p) {
  const auto check = [&](const char* name, const ConstView& x, const char* letters) {
    if (!x.given() || x.rank() == 4) return;
    throw Error(p.function, name,
                text("must have the shape ", letters, " with block_tables, got ", describe(x)));
  };
  check("q", inputs.q, "[B,H,Tq,D]");
  check("k", inputs.k, "[pages,page,G,D]");
  check("v", inputs.v, "[pages,page,G,E]");
}

void check_pages(const Inputs& inputs, const Problem& p) {
  const ConstView& k = inputs.k;
  const ConstView& v = inputs.v;
  const Index page = k.size(1);
  if (page < 1 || page % kPageMultiple != 0) {
    throw Error(p.function, "k",
                text("must have pages of a multiple of ", kPageMultiple, " keys, got ", page,
                     " of [pages,page,G,D] = ", to_string(k.shape())));
  }
  constexpr const char* kLetters[] = {"pages", "page", "G"};
  for (int axis = 0; v.given() && axis < 3; ++axis) {
    if (v.size(axis) == k.size(axis)) continue;
    throw Error(p.function, "v",
                text("has ", kLetters[axis], " = ", v.size(axis), " but k has ", kLetters[axis],
                     " = ", k.size(axis), " (", shown("k", k), ", ", shown("v", v), ")"));
  }
}

void resolve_paged_sizes(const Inputs& inputs, Problem& p) {
  p.batch = Dims(inputs.q.size(0));
  p.B = inputs.q.size(0);
  p.head_axis = true;
  p.H = inputs.q.size(1);
  p.G = inputs.k.size(2);
  p.Tq = p.q_rows = inputs.q.size(2);
  p.Dq = width_of(p, "q", inputs.q);
  p.Dk = width_of(p, "k", inputs.k);
  p.key_chunk = core::key_chunk(p.Dk);
  p.E = inputs.v.given() ? width_of(p, "v", inputs.v) : 0;
  if (p.G == 0 ? p.H != 0 : p.H % p.G != 0) {
    throw Error(p.function, "q",
                text("has H = ", p.H, ", which is not a multiple of G = ", p.G, " (",
                     shown("q", inputs.q), ", ", shown("k", inputs.k), ")"));
  }
}

// The most indices that a vector can hold; for more it throws std::length_error.
constexpr Index kMostIndices = std::numeric_limits<Index>::max() / Index{sizeof(Index)};

// Reads the number of keys of each entry, once, into memory of the problem; the largest is Tk.
void read_context_lens(const Inputs& inputs, core::ResolvedProblem& p) {
  const ConstView& x = inputs.context_lens;
  expect_integer(p, "context_lens", x);
  expect_shape(p, "context_lens", x, Dims(p.B), "[B]");
  const Index page = inputs.k.size(1);
  const Index most = inputs.block_tables.size(1) * page;
  // Without queries nothing is computed, and there may be any number of entries.
  const bool keeps = p.q_rows > 0 && p.H > 0;
  p.own_context_lens.clear();
  if (keeps && p.B > kMostIndices) throw std::bad_alloc();
  if (keeps) p.own_context_lens.reserve(static_cast<std::size_t>(p.B));
  p.Tk = 0;
  for (Index b = 0; b < p.B; ++b) {
    p.stop();
    const Index length = integer_at(x, b * x.stride(0));
    if (length < 0 || length > most) {
      throw Error(p.function, "context_lens",
                  text("must be in 0 to ", most, ", the keys of ", inputs.block_tables.size(1),
                       " pages of ", page, ", got ", integer_text(x, b * x.stride(0)),
                       " for batch entry ", b));
    }
    p.Tk = std::max(p.Tk, length);
    if (keeps) p.own_context_lens.push_back(length);
  }
  p.k_rows = p.Tk;
  p.context_lens = keeps ? Operand{p.own_context_lens.data(), DType::kInt64, {}, 0, 1, 0}
                         : Operand{x.data(), x.dtype(), {}, 0, x.stride(0), 0};
}

// Reads the block tables: of each batch entry's row, only the pages that hold keys.
void read_block_tables(const Inputs& inputs, core::ResolvedProblem& p) {
  const ConstView& x = inputs.block_tables;
  const Index page = inputs.k.size(1);
  const Index pages = inputs.k.size(0);
  p.own_block_tables.clear();
  p.table_pages = core::divide_up(p.Tk, page);
  if (!p.own_context_lens.empty()) {
    if (p.table_pages > kMostIndices / p.B) throw std::bad_alloc();
    p.own_block_tables.resize(p.own_context_lens.size() * static_cast<std::size_t>(p.table_pages));
  }
  for (Index b = 0; b < p.B && !p.own_context_lens.empty(); ++b) {
    const Index used = (p.sequence(b).Tk + page - 1) / page;
    for (Index n = 0; n < used; ++n) {
      p.stop();
      const Index offset = b * x.stride(0) + n * x.stride(1);
      const Index named = integer_at(x, offset);
      if (named < 0 || named >= pages) {
        throw Error(p.function, "block_tables",
                    text("must be 0 or more and below ", pages, ", the pages of k, got ",
                         integer_text(x, offset), " at entry ", n, " for batch entry ", b,
                         ", which has ", p.sequence(b).Tk, " keys"));
      }
      p.own_block_tables[static_cast<std::size_t>(b * p.table_pages + n)] = named;
    }
  }
  p.block_tables = p.own_block_tables;
}

Operand pages_operand(const ConstView& x) {
  if (!x.given()) return {};
  Operand to{x.data(), x.dtype(), {}, x.stride(2), x.stride(1), x.stride(3)};
  to.batch_strides.push_back(0);
  to.page_rows = x.size(1);
  to.page_stride = stride_between(x, 0);
  return to;
}

}  // namespace

void resolve_paged_inputs(const Inputs& inputs, core::ResolvedProblem& p) {
  expect_both(p, "block_tables", inputs.block_tables, "context_lens", inputs.context_lens,
              "keys in pages");
  if (inputs.cu_seqlens_q.given() || inputs.cu_seqlens_k.given()) {
    throw Error(p.function, inputs.cu_seqlens_q.given() ? "cu_seqlens_q" : "cu_seqlens_k",
                "is not available with keys in pages (block_tables)");
  }
  p.cu_seqlens_q = p.cu_seqlens_k = {};
  check_paged_ranks(inputs, p);
  check_pages(inputs, p);
  resolve_paged_sizes(inputs, p);
  const ConstView& tables = inputs.block_tables;
  expect_integer(p, "block_tables", tables);
  if (tables.rank() != 2 || tables.size(0) != p.B) {
    throw Error(p.function, "block_tables",
                text("must have the shape [B,pages of an entry] where B = ", p.B, " (",
                     shown("q", inputs.q), "), got ", describe(tables)));
  }
  if (tables.size(1) > std::numeric_limits<Index>::max() / inputs.k.size(1)) {
    throw Error(p.function, "block_tables",
                text("must name fewer than 2^63 keys, got ", describe(tables), " of pages of ",
                     inputs.k.size(1)));
  }
  read_context_lens(inputs, p);
  read_block_tables(inputs, p);
  p.q = {inputs.q.data(),   inputs.q.dtype(), {}, inputs.q.stride(1), stride_between(inputs.q, 2),
         inputs.q.stride(3)};
  p.q.batch_strides.push_back(stride_between(inputs.q, 0));
  p.k = in_numbers(pages_operand(inputs.k));
  p.v = in_numbers(pages_operand(inputs.v));
}

}  // namespace qkv::attn
