// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "attention/validate/resolve.h"
#include "attention/validate/shapes.h"
#include "core/integers.h"
#include "core/message.h"

namespace qkv::attn {
namespace {

using core::shown;
using core::text;

struct Named {
  const char* name;
  const ConstView* view;
};
using Three = std::array<Named, 3>;

Three named(const Inputs& inputs) {
  return {{{"q", &inputs.q}, {"k", &inputs.k}, {"v", &inputs.v}}};
}

// Checks that a row's q8 blocks are contiguous, since the kernels read whole rows of blocks.
void check_q8(const Named& x, const Problem& p) {
  const ConstView& view = *x.view;
  if (view.dtype() != DType::kQ8 || view.rank() == 0) return;
  if (view.size(-1) < 2 || view.stride(-1) == 1) return;
  throw Error(p.function, x.name,
              text("must have the blocks of a row next to each other, got ", describe(view),
                   " with strides ", to_string(view.strides())));
}

void check_dtypes(const Inputs& inputs, Complex complex, Problem& p) {
  for (const Named& x : named(inputs)) {
    if (!x.view->given()) {
      if (x.view == &inputs.v) continue;
      throw Error(p.function, x.name, "is absent but q and k are always needed");
    }
    const DType dtype = x.view->dtype();
    const bool q8 = dtype == DType::kQ8 && x.view != &inputs.q;
    if (q8 && p.on_device()) {
      throw Error(p.function, x.name, "is q8, which is not available for arrays in device memory",
                  ErrorKind::kType);
    }
    const bool allowed =
        is_real(dtype) || q8 || (complex == Complex::kAllowed && dtype == DType::kComplex128);
    if (!allowed) {
      throw Error(p.function, x.name,
                  text("must be float64, float32, ",
                       x.view == &inputs.q ? "bfloat16 or float16" : "bfloat16, float16 or q8",
                       ", got ", describe(*x.view)),
                  ErrorKind::kType);
    }
    check_q8(x, p);
  }
  p.dtype = inputs.q.dtype();
  p.accumulator = p.dtype == DType::kComplex128 ? p.dtype : accumulator_of(p.dtype);
  const DType keys = inputs.k.dtype();
  const bool mixed = p.dtype == DType::kFloat32 &&
                     (keys == DType::kBFloat16 || keys == DType::kFloat16 || keys == DType::kQ8);
  if (keys != p.dtype && !mixed) {
    const bool several = p.dtype == DType::kFloat32;
    throw Error(p.function, "k",
                text("must be ", name_of(p.dtype), several ? ", bfloat16, float16 or q8" : "",
                     " where q is ", name_of(p.dtype), ", got ", describe(inputs.k)),
                ErrorKind::kType);
  }
  if (inputs.v.given() && inputs.v.dtype() != keys) {
    throw Error(p.function, "v",
                text("must be ", name_of(keys), " where k is ", name_of(keys), ", got ",
                     describe(inputs.v)),
                ErrorKind::kType);
  }
}

void check_ranks(const Inputs& inputs, const Problem& p) {
  for (const Named& x : named(inputs)) {
    if (!x.view->given() || x.view->rank() >= 2) continue;
    throw Error(p.function, x.name, text("must have rank 2 or more, got ", describe(*x.view)));
  }
}

int widest_rank(const Inputs& inputs) {
  int rank = 0;
  for (const Named& x : named(inputs)) rank = std::max(rank, x.view->rank());
  return rank;
}

bool ranks_differ(const Inputs& inputs, int rank) {
  for (const Named& x : named(inputs)) {
    if (x.view->given() && x.view->rank() != rank) return true;
  }
  return false;
}

// Size of axis `from_end` counted from the end, 1 if the view has fewer axes.
Index size_or_one(const ConstView& view, int from_end) {
  return view.rank() >= from_end ? view.size(-from_end) : 1;
}

// Resolves `count` batch axes, of which the first is axis `first_from_end` counted from the end:
// the axes before the head axis or, without a head axis, before T.
void resolve_batch(const Inputs& inputs, int first_from_end, int count, Problem& p) {
  p.batch = {};
  for (int axis = 0; axis < count; ++axis) {
    const int from_end = first_from_end - axis;
    Index size = 1;
    const Named* owner = nullptr;
    const Three all = named(inputs);
    for (const Named& x : all) {
      const Index other = size_or_one(*x.view, from_end);
      if (!x.view->given() || other == 1 || other == size) continue;
      if (size != 1) {
        throw Error(p.function, x.name,
                    text("has B = ", other, " but ", owner->name, " has B = ", size, " (",
                         shown(owner->name, *owner->view), ", ", shown(x.name, *x.view), ")"));
      }
      size = other;
      owner = &x;
    }
    p.batch.push_back(size);
  }
  p.B = 1;
  for (const Index size : p.batch) {
    const auto product = core::checked_multiply(p.B, size);
    if (!product) {
      throw Error(p.function, "inputs",
                  text("must have fewer than 2^63 batch entries, got ", to_string(p.batch)));
    }
    p.B = *product;
  }
}

void resolve_heads(const Inputs& inputs, bool mixed, Problem& p) {
  const auto heads = [&](const ConstView& x) { return size_or_one(x, 3); };
  const auto complain = [&](const char* name, const char* rule) {
    throw Error(p.function, name,
                text("has ", rule, " (", shown("q", inputs.q), ", ", shown("k", inputs.k),
                     inputs.v.given() ? ", " + shown("v", inputs.v) : std::string(), ")"));
  };
  p.H = heads(inputs.q);
  p.G = heads(inputs.k);
  if (inputs.v.given() && heads(inputs.v) != p.G) {
    const Index other = heads(inputs.v);
    if (!mixed || (other != 1 && p.G != 1)) {
      complain("v", text("G = ", other, " but k has G = ", p.G).c_str());
    }
    if (p.G == 1) p.G = other;
  }
  if (mixed && p.H == 1) p.H = p.G;
  if (p.G == 0 ? p.H != 0 : p.H % p.G != 0) {
    complain("q", text("H = ", p.H, ", which is not a multiple of G = ", p.G).c_str());
  }
}

void resolve_sizes(const Inputs& inputs, Problem& p) {
  p.Tq = p.q_rows = inputs.q.size(-2);
  p.Tk = p.k_rows = inputs.k.size(-2);
  p.Dq = width_of(p, "q", inputs.q);
  p.Dk = width_of(p, "k", inputs.k);
  p.key_chunk = core::key_chunk(p.Dk);
  p.E = inputs.v.given() ? width_of(p, "v", inputs.v) : 0;
}

void check_keys_and_values(const Inputs& inputs, const Problem& p, int key_axis) {
  if (!inputs.v.given() || inputs.v.size(key_axis) == inputs.k.size(key_axis)) return;
  throw Error(
      p.function, "v",
      text("has Tk = ", inputs.v.size(key_axis), " but k has Tk = ", inputs.k.size(key_axis), " (",
           shown("k", inputs.k), ", ", shown("v", inputs.v), ")"));
}

// The stride between rows. It is 0 for a single row, whose stride may be any number, so that its
// multiples do not overflow.
Index row_stride_of(const ConstView& x, int axis) { return x.size(axis) == 1 ? 0 : x.stride(axis); }

// Makes the operand of an input: strides along batch axes, head, row and column; 0 for axes that
// are missing, and for batch axes and rows of size 1.
Operand input_operand(const Problem& p, const ConstView& x, Index heads) {
  if (!x.given()) return {};
  Operand to{x.data(), x.dtype(), {}, 0, row_stride_of(x, -2), x.stride(-1)};
  const int after_batch = p.head_axis ? 3 : 2;  // from the end: the axis after the batch axes
  for (int axis = 0; axis < p.batch.rank(); ++axis) {
    const int from_end = after_batch + p.batch.rank() - axis;
    const bool own = x.rank() >= from_end && x.size(-from_end) != 1;
    to.batch_strides.push_back(own ? x.stride(-from_end) : 0);
  }
  if (p.head_axis && x.rank() >= 3 && x.size(-3) == heads) to.head_stride = x.stride(-3);
  return to;
}

// Checks that the arrays lie in the sequences of which they are a part, and that head numbers are
// below 2^31.
void resolve_shard(const std::optional<Shard>& shard, Problem& p) {
  p.shard = shard;
  if (!shard) return;
  struct Side {
    const char* first_name;
    const char* letter;
    const char* all_name;
    Index first, rows, all;
  };
  const Side sides[] = {{"first_query", "Tq", "queries", shard->first_query, p.Tq, shard->queries},
                        {"first_key", "Tk", "keys", shard->first_key, p.Tk, shard->keys}};
  for (const Side& x : sides) {
    constexpr Index kMost = Index{1} << 53;
    const auto fail = [&](const std::string& rule) {
      throw Error(p.function, "shard",
                  text("must have ", rule, ", got ", x.first_name, " = ", x.first, ", ", x.letter,
                       " = ", x.rows, ", ", x.all_name, " = ", x.all));
    };
    if (x.all < 0 || x.all > kMost) fail(text(x.all_name, " of 0 to 2^53"));
    if (x.first < 0 || x.first > x.all - x.rows) {
      fail(text(x.first_name, " of 0 or more, and ", x.first_name, " + ", x.letter, " of at most ",
                x.all_name));
    }
  }
  constexpr Index kMostHeads = Index{1} << 31;
  if (shard->first_head < 0 || shard->first_head >= kMostHeads || shard->head_step < 1 ||
      shard->head_step > kMostHeads / std::max<Index>(p.H, 1) ||
      shard->first_head + (p.H - 1) * shard->head_step >= kMostHeads) {
    throw Error(p.function, "shard",
                text("must have a first_head of 0 or more and a head_step of 1 or more, with all "
                     "heads below 2^31, got ",
                     shard->first_head, " and ", shard->head_step, " for H = ", p.H));
  }
}

// Refuses a shard of arrays whose entries have lengths of their own.
void refuse_shard(const Inputs& inputs, const char* with, Problem& p) {
  p.shard = {};
  if (!inputs.shard) return;
  throw Error(p.function, "shard", text("is not available with ", with));
}

}  // namespace

void resolve_inputs(const Inputs& inputs, Complex complex, core::ResolvedProblem& p) {
  check_dtypes(inputs, complex, p);
  p.context_lens = {};
  p.block_tables = {};
  if (inputs.block_tables.given() || inputs.context_lens.given()) {
    refuse_shard(inputs, "keys in pages (block_tables)", p);
    return resolve_paged_inputs(inputs, p);
  }
  if (inputs.cu_seqlens_q.given() || inputs.cu_seqlens_k.given()) {
    refuse_shard(inputs, "packed sequences (cu_seqlens)", p);
    return resolve_packed_inputs(inputs, p);
  }
  p.cu_seqlens_q = p.cu_seqlens_k = {};
  check_ranks(inputs, p);
  const int rank = widest_rank(inputs);
  const bool mixed = ranks_differ(inputs, rank);
  p.head_axis = rank >= 4 || (rank == 3 && mixed);
  p.H = p.G = 1;
  if (p.head_axis) {
    resolve_batch(inputs, rank, rank - 3, p);
    resolve_heads(inputs, mixed, p);
  } else {
    resolve_batch(inputs, rank, rank - 2, p);
  }
  resolve_sizes(inputs, p);
  check_keys_and_values(inputs, p, -2);
  resolve_shard(inputs.shard, p);
  p.q = input_operand(p, inputs.q, p.H);
  p.k = in_numbers(input_operand(p, inputs.k, p.G));
  p.v = in_numbers(input_operand(p, inputs.v, p.G));
}

namespace {

// The sequences of a cu_seqlens array: integers [B+1] that start with 0, never decrease and end
// with the number of rows.
struct Sequences {
  Operand starts;  // the numbers of the array, along rows
  Index longest = 0;
};

void check_cu_seqlens(const char* name, const ConstView& x, const Problem& p) {
  expect_integer(p, name, x);
  if (x.rank() != 1 || x.size(0) < 1) {
    throw Error(p.function, name, text("must have the shape [B+1], got ", describe(x)));
  }
}

// The sequences of an array in device memory, whose numbers stay unread. `longest` is then the
// number of all rows, an upper bound.
Sequences sequences_on_device(const char* name, const ConstView& x, Index total, const char* rows,
                              const Problem& p) {
  check_cu_seqlens(name, x, p);
  if (x.dtype() != DType::kInt32 && x.dtype() != DType::kInt64) {
    throw Error(p.function, name,
                text("must be int32 or int64 in device memory, got ", describe(x)),
                ErrorKind::kType);
  }
  if (x.size(0) == 1 && total > 0) {
    throw Error(p.function, name,
                text("must have the shape [B+1] with B = 1 or more where ", rows, " has ", total,
                     " rows, got ", describe(x)));
  }
  return {{x.data(), x.dtype(), {}, 0, row_stride_of(x, 0), 0}, total};
}

// Sequences in host memory are read, checked and copied to `own`, to which `starts` refers, since
// the caller may change the array.
Sequences resolve_cu_seqlens(const char* name, const ConstView& x, Index total, const char* rows,
                             const Problem& p, std::vector<Index>& own) {
  if (p.on_device()) return sequences_on_device(name, x, total, rows, p);
  check_cu_seqlens(name, x, p);
  const auto at = [&](Index n) { return integer_at(x, n * x.stride(0)); };
  const auto text_at = [&](Index n) { return integer_text(x, n * x.stride(0)); };
  const Index last = x.size(0) - 1;
  Index before = at(0);
  if (before != 0) throw Error(p.function, name, text("must start with 0, got ", text_at(0)));
  if (at(last) != total) {
    throw Error(p.function, name,
                text("must end with ", total, ", the rows of ", rows, ", got ", text_at(last)));
  }
  // Without rows there may be any number of sequences, all empty: a single 0 serves all of them.
  const bool keeps = total > 0;
  own.clear();
  own.reserve(keeps ? static_cast<std::size_t>(x.size(0)) : 1);
  own.push_back(0);
  Sequences result{{own.data(), DType::kInt64, {}, 0, keeps ? 1 : 0, 0}};
  for (Index n = 1; n <= last; ++n) {
    p.stop();
    const Index now = at(n);
    if (now < before) {
      throw Error(
          p.function, name,
          text("must not decrease, got ", text_at(n), " after ", text_at(n - 1), " at entry ", n));
    }
    result.longest = std::max(result.longest, now - before);
    if (keeps) own.push_back(now);
    before = now;
  }
  if (before != total) throw Error(p.function, name, "was changed while it was read");
  return result;
}

}  // namespace

void resolve_packed_inputs(const Inputs& inputs, core::ResolvedProblem& p) {
  expect_both(p, "cu_seqlens_q", inputs.cu_seqlens_q, "cu_seqlens_k", inputs.cu_seqlens_k,
              "packed sequences");
  for (const Named& x : named(inputs)) {
    if (!x.view->given() || x.view->rank() == 3) continue;
    throw Error(
        p.function, x.name,
        text("must have rank 3 with packed sequences (cu_seqlens), got ", describe(*x.view)));
  }
  p.batch = {};
  p.head_axis = true;
  p.H = inputs.q.size(1);
  p.G = inputs.k.size(1);
  resolve_sizes(inputs, p);
  if (inputs.v.given() && inputs.v.size(1) != p.G) {
    throw Error(p.function, "v",
                text("has G = ", inputs.v.size(1), " but k has G = ", p.G, " (",
                     shown("k", inputs.k), ", ", shown("v", inputs.v), ")"));
  }
  if (p.G == 0 ? p.H != 0 : p.H % p.G != 0) {
    throw Error(p.function, "q",
                text("has H = ", p.H, ", which is not a multiple of G = ", p.G, " (",
                     shown("q", inputs.q), ", ", shown("k", inputs.k), ")"));
  }
  p.q_rows = inputs.q.size(0);
  p.k_rows = inputs.k.size(0);
  check_keys_and_values(inputs, p, 0);
  const Sequences queries =
      resolve_cu_seqlens("cu_seqlens_q", inputs.cu_seqlens_q, p.q_rows, "q", p, p.own_cu_seqlens_q);
  const Sequences keys =
      resolve_cu_seqlens("cu_seqlens_k", inputs.cu_seqlens_k, p.k_rows, "k", p, p.own_cu_seqlens_k);
  if (inputs.cu_seqlens_q.size(0) != inputs.cu_seqlens_k.size(0)) {
    throw Error(p.function, "cu_seqlens_k",
                text("has B = ", inputs.cu_seqlens_k.size(0) - 1,
                     " but cu_seqlens_q has B = ", inputs.cu_seqlens_q.size(0) - 1, " (",
                     shown("cu_seqlens_q", inputs.cu_seqlens_q), ", ",
                     shown("cu_seqlens_k", inputs.cu_seqlens_k), ")"));
  }
  p.B = inputs.cu_seqlens_q.size(0) - 1;
  const auto packed = [](const ConstView& x) {
    if (!x.given()) return Operand{};
    return Operand{x.data(), x.dtype(), {}, x.stride(1), row_stride_of(x, 0), x.stride(2)};
  };
  p.q = packed(inputs.q);
  p.k = in_numbers(packed(inputs.k));
  p.v = in_numbers(packed(inputs.v));
  p.cu_seqlens_q = queries.starts;
  p.cu_seqlens_k = keys.starts;
  p.Tq = queries.longest;
  p.Tk = keys.longest;
}

}  // namespace qkv::attn
