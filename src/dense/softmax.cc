// SPDX-License-Identifier: Apache-2.0
// softmax and masked_softmax: check their arguments, then divide rows among a context's workers.
#include "reference/softmax.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <qkv/error.h>
#include <qkv/softmax.h>
#include <qkv/tensor.h>

#include "core/integers.h"
#include "core/shapes.h"
#include "core/stop.h"
#include "core/storage.h"
#include "dense/array_arguments.h"
#include "dense/row_softmax.h"
#include "dense/rows.h"
#include "dense/target_in_use.h"
#include "runtime/task_order.h"
#include "runtime/tasks.h"

namespace qkv::dense {
namespace {

using core::kKeyChunk;
using runtime::Arena;
using runtime::Call;
using runtime::TaskOrder;

// ---- checks ---------------------------------------------------------------------------------

void check_rows(std::string_view function, const ConstView& x, const ConstView& out) {
  require_given(function, "x", x);
  require_given(function, "out", out);
  require_real(function, "x", x);
  require_dtype(function, "out", out, "x", x);
}

template <class Integer>
[[noreturn]] void refuse_length(Integer length, const Dims& index, const ConstView& x) {
  std::string place = "batch entry " + std::to_string(index[0]);
  if (index.rank() > 1) place += ", row " + std::to_string(index[1]);
  throw Error("masked_softmax", "lengths",
              "must be in 0 to N = " + std::to_string(x.size(-1)) + ", got " +
                  std::to_string(length) + " for " + place + " (x " + describe(x) + ")");
}

void check_lengths(const ConstView& x, const ConstView& lengths) {
  if (!is_integer(lengths.dtype())) {
    throw Error("masked_softmax", "lengths", "must be integers, got " + describe(lengths),
                ErrorKind::kType);
  }
  const Dims rows = leading(x.shape(), 1);
  const Dims batch = core::sub_dims(rows, 0, 1);
  if (!(lengths.shape() == batch) && !(lengths.shape() == rows)) {
    const std::string either = rows.rank() > 1 ? " or " + to_string(rows) : "";
    throw Error("masked_softmax", "lengths",
                "must have the shape " + to_string(batch) + either + ", got " + describe(lengths) +
                    " (x " + describe(x) + ")");
  }
  core::visit_dtype(lengths.dtype(), [&]<class Stored>(Stored*) {
    if constexpr (is_integer(dtype_of<Stored>)) {
      const Stored* values = lengths.as<Stored>();
      core::for_each_offset<1>(
          lengths.shape(), {lengths.strides()}, [&](const auto& offset, const Dims& index) {
            const Stored length = values[offset[0]];
            if (std::cmp_less(length, 0) || std::cmp_greater(length, x.size(-1))) {
              refuse_length(length, index, x);
            }
          });
    }
  });
}

// Expands lengths [B] or [B,T] to one per row of x [B,T,N] or [B,N].
ConstView length_of_rows(const ConstView& x, const ConstView& lengths) {
  const Dims rows = leading(x.shape(), 1);
  if (lengths.rank() == rows.rank()) return lengths;
  return {lengths.data(), lengths.dtype(), rows, Dims(lengths.stride(0), 0)};
}

// ---- plain loops ----------------------------------------------------------------------------

// Calls f(0) .. f(count - 1), and polls `stop` at intervals.
template <class F>
void for_each_index(Index count, const core::StopPoint& stop, const F& f) {
  for (Index begin = 0; begin < count; begin += core::kStepsBetweenStops) {
    stop();
    const Index end = std::min(count, begin + core::kStepsBetweenStops);
    for (Index j = begin; j < end; ++j) f(j);
  }
}

// One row of numbers, of which the first `length` take part, in the form that the reference's
// softmax reads.
template <class T>
struct PlainRow {
  explicit PlainRow(Index count)
      : s(static_cast<std::size_t>(count)), live(static_cast<std::size_t>(count)) {}

  template <class Stored>
  void load(const Stored* x, Index stride, Index length, const core::StopPoint& stop) {
    for_each_index(static_cast<Index>(s.size()), stop, [&](Index j) {
      s[static_cast<std::size_t>(j)] = core::to_accumulator<T>(x[j * stride]);
      live[static_cast<std::size_t>(j)] = j < length;
    });
  }
  reference::Scores<T> scores() const {
    return {s.data(), live.data(), static_cast<Index>(s.size()), kKeyChunk,
            core::kNormalExponent<T>};
  }

  std::vector<T> s;
  std::vector<std::uint8_t> live;
};

template <class T, class Stored>
void plain_softmax(const SoftmaxRow<Stored>& row, PlainRow<T>& scratch,
                   const core::StopPoint& stop) {
  scratch.load(row.x, row.x_stride, row.length, stop);
  const reference::Softmax<T> state = reference::softmax_row(scratch.scores(), {}, stop);
  for_each_index(row.count, stop, [&](Index j) {
    row.out[j * row.out_stride] =
        core::from_accumulator<Stored>(reference::weight(scratch.scores(), state, j));
  });
}

// ---- rows for workers -----------------------------------------------------------------------

// The numbers of a task, in whole rows: about twenty microseconds of work, more than the ten that
// waking a worker takes.
constexpr Index kNumbersPerTask = Index{1} << 15;
// Rows longer than this are split into parts if there are few rows.
constexpr Index kLongRow = Index{1} << 15;

// x [..,N] as rows, after all checks. lengths is absent or has x's leading shape, with values in
// 0..N.
template <class Stored>
class RowsOfCall {
 public:
  RowsOfCall(const ConstView& x, const ConstView& lengths, const View& out)
      : x_(x), out_(out), lengths_(lengths) {}

  Index count() const { return x_.count(); }
  Index numbers() const { return x_.channels(); }
  SoftmaxRow<Stored> row(Index index) const {
    return {.x = x_.row(index),
            .out = out_.row(index),
            .x_stride = x_.stride(),
            .out_stride = out_.stride(),
            .length = lengths_.given() ? length(index) : numbers(),
            .count = numbers()};
  }

 private:
  // The clamp keeps the length valid even if another thread writes to the array after the check.
  Index length(Index index) const {
    Index offset = 0;
    for (int axis = lengths_.rank() - 1; axis >= 0; --axis) {
      offset += index % lengths_.size(axis) * lengths_.stride(axis);
      index /= lengths_.size(axis);
    }
    const auto given = core::load<Index>(lengths_.dtype(), lengths_.data(), offset);
    return std::clamp<Index>(given, 0, numbers());
  }

  Rows<const Stored> x_;
  Rows<Stored> out_;
  const ConstView& lengths_;
};

// Computes rows begin .. end-1.
template <class Stored>
void softmax_of_rows(const RowSoftmax<Stored>& softmax, const RowsOfCall<Stored>& rows, Index begin,
                     Index end, Arena& arena, const core::StopPoint& stop) {
  using T = typename RowSoftmax<Stored>::T;
  T* const scratch = arena.take<T>(softmax.kScratch).data();
  if (rows.numbers() > kKeyChunk) {
    for (Index r = begin; r < end; ++r) softmax.row(rows.row(r), scratch, stop);
    return;
  }
  const Index together = softmax.rows_together(rows.numbers());
  const std::span<SoftmaxRow<Stored>> some = arena.take<SoftmaxRow<Stored>>(together);
  for (Index r = begin; r < end; r += together) {
    stop();
    const Index n = std::min(together, end - r);
    for (Index i = 0; i < n; ++i) some[static_cast<std::size_t>(i)] = rows.row(r + i);
    softmax.rows(some.data(), n, scratch);
  }
}

// Computes few long rows, each in parts: first the sums of all parts, merged in order, then the
// results. One call of for_each_task() does both, since waking the workers twice would cost as much
// time as thousands of numbers.
template <class Stored>
class SoftmaxOfParts {
 public:
  using T = typename RowSoftmax<Stored>::T;

  SoftmaxOfParts(const RowSoftmax<Stored>& softmax, const RowsOfCall<Stored>& rows)
      : softmax_(softmax), rows_(rows), parts_(core::divide_up(rows.numbers(), kPart)) {}

  template <class AnyArena>
  void take_shared(AnyArena& arena) {
    totals_ = arena.template take<ExpSum<T>>(rows_.count());
    merged_ = TaskOrder::take(arena, rows_.count());
  }
  std::size_t worker_bytes() const { return Arena::cost<T>(softmax_.kScratch); }

  void run(Call& call) {
    take_shared(call.shared());
    for (Index r = 0; r < rows_.count(); ++r) {
      total(r) = {};
      merged_.begin(r, 0);
    }
    const Index half = rows_.count() * parts_;
    call.for_each_task(2 * half, [&](Index task, Arena& arena) {
      T* const scratch = arena.take<T>(softmax_.kScratch).data();
      const Index r = task % half / parts_;
      if (task < half) {
        add_part(call, r, task % parts_, scratch);
      } else {
        put_part(call, r, task % parts_, scratch);
      }
    });
  }

 private:
  static constexpr Index kChunks = 32;  // chunks of a part
  static constexpr Index kPart = kChunks * kKeyChunk;

  ExpSum<T>& total(Index r) const { return totals_[static_cast<std::size_t>(r)]; }
  Index end(Index part) const { return std::min(rows_.numbers(), (part + 1) * kPart); }

  void add_part(const Call& call, Index r, Index part, T* scratch) const {
    const SoftmaxRow<Stored> row = rows_.row(r);
    const Index last = std::min(end(part), row.length);
    ExpSum<T> sums[kChunks];
    softmax_.chunk_sums(row, part * kPart, last, sums, scratch, call.stop_point());
    if (!merged_.wait(call, r, part)) return;
    softmax_.merge(total(r), sums,
                   core::divide_up(std::max<Index>(0, last - part * kPart), kKeyChunk));
    merged_.pass_on(r, part);
  }
  void put_part(const Call& call, Index r, Index part, T* scratch) const {
    if (!merged_.wait(call, r, parts_)) return;
    softmax_.put(rows_.row(r), part * kPart, end(part), total(r), scratch, call.stop_point());
  }

  const RowSoftmax<Stored>& softmax_;
  const RowsOfCall<Stored>& rows_;
  Index parts_;
  std::span<ExpSum<T>> totals_{};
  TaskOrder merged_{};
};

// Computes the softmax after all checks.
template <class Stored>
void run_softmax(std::string_view function, const ConstView& x, const ConstView& lengths,
                 const View& out, Context& context) {
  using T = typename RowSoftmax<Stored>::T;
  const Kernels<T> by = kernels_in_use<T>(context, function);
  const RowsOfCall<Stored> rows(x, lengths, out);
  const Index N = rows.numbers();
  const Index each = std::max<Index>(1, kNumbersPerTask / N);
  const Index tasks = core::divide_up(rows.count(), each);
  const auto of_task = [&](Index task, const auto& f) {
    f(task * each, std::min(rows.count(), (task + 1) * each));
  };
  if (!by.given()) {
    Call call(context, function, 0, 0);
    call.for_each_task(tasks, [&](Index task, Arena&) {
      PlainRow<T> scratch(N);
      of_task(task, [&](Index begin, Index end) {
        for (Index r = begin; r < end; ++r) plain_softmax(rows.row(r), scratch, call.stop_point());
      });
    });
    return;
  }
  const RowSoftmax<Stored> softmax(by);
  const std::size_t own =
      Arena::cost<T>(softmax.kScratch) + Arena::cost<SoftmaxRow<Stored>>(softmax.rows_together(N));
  const Index workers = context.executor().concurrency();
  if (workers > 1 && N > kLongRow && rows.count() < 4 * workers) {
    SoftmaxOfParts<Stored> parts(softmax, rows);
    const core::ScratchSize scratch = core::measure(parts);
    Call call(context, function, scratch.shared, scratch.per_worker);
    parts.run(call);
    return;
  }
  Call call(context, function, 0, own);
  call.for_each_task(tasks, [&](Index task, Arena& arena) {
    of_task(task, [&](Index begin, Index end) {
      softmax_of_rows(softmax, rows, begin, end, arena, call.stop_point());
    });
  });
}

void softmax_of(std::string_view function, const ConstView& x, const ConstView& lengths,
                const View& out, Context& context) {
  require_apart(function, out, "x", x);
  if (lengths.given()) require_apart(function, out, "lengths", lengths);
  require_distinct_elements(function, out);
  if (x.element_count() == 0) return;
  visit_real(x.dtype(), [&]<class Stored>(Stored*) {
    run_softmax<Stored>(function, x, lengths, out, context);
  });
}

void checked_softmax(const ConstView& x, const View& out, Context& context) {
  constexpr std::string_view kFunction = "softmax";
  check_rows(kFunction, x, out);
  if (x.rank() < 1) throw Error(kFunction, "x", "must have at least one axis, got " + describe(x));
  require_shape(kFunction, out, x.shape());
  softmax_of(kFunction, x, {}, out, context);
}

void checked_masked_softmax(const ConstView& x, const ConstView& lengths, const View& out,
                            Context& context) {
  constexpr std::string_view kFunction = "masked_softmax";
  check_rows(kFunction, x, out);
  if (x.rank() != 2 && x.rank() != 3) {
    throw Error(kFunction, "x", "must be [B,T,N] or [B,N], got " + describe(x));
  }
  require_shape(kFunction, out, x.shape());
  if (lengths.given()) check_lengths(x, lengths);
  softmax_of(kFunction, x, lengths.given() ? length_of_rows(x, lengths) : lengths, out, context);
}

}  // namespace
}  // namespace qkv::dense

namespace qkv {

void softmax(const ConstView& x, const View& out) {
  Context context;
  dense::checked_softmax(x, out, context);
}

void softmax(const ConstView& x, const View& out, Context& context) {
  dense::checked_softmax(x, out, context);
}

void masked_softmax(const ConstView& x, const ConstView& lengths, const View& out) {
  Context context;
  dense::checked_masked_softmax(x, lengths, out, context);
}

void masked_softmax(const ConstView& x, const ConstView& lengths, const View& out,
                    Context& context) {
  dense::checked_masked_softmax(x, lengths, out, context);
}

}  // namespace qkv
