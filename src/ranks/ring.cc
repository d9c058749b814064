// SPDX-License-Identifier: Apache-2.0
#include "ranks/ring.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <qkv/alternatives.h>
#include <qkv/error.h>

#include "core/message.h"
#include "core/storage.h"
#include "ranks/collective.h"

namespace qkv::ranks {
namespace {

constexpr DType kTypes[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16};

Index bits_of(double value) { return std::bit_cast<Index>(value); }

// A number that must be equal on all ranks, and its name in messages.
struct Equal {
  const char* name;
  Index value;
};

// ---- masks ----------------------------------------------------------------------------------

// The last axes of an array: queries and keys (each of which may be broadcast), keys, or queries.
enum class Axes : std::uint8_t { kPairs, kKeys, kQueries };

// Calls f(name, array, axes) for the array of a mask, if that array has an axis of queries or keys.
template <class F>
void visit_array(Causal&, const F&) {}
template <class F>
void visit_array(Window&, const F&) {}
template <class F>
void visit_array(MaskMod&, const F&) {}
template <class F>
void visit_array(Keep& mask, const F& f) {
  f("keep", mask.keep, Axes::kPairs);
}
template <class F>
void visit_array(Padding& mask, const F& f) {
  f("padding", mask.padding, Axes::kKeys);
}
template <class F>
void visit_array(KeyLengths& mask, const F& f) {
  if (mask.lengths.rank() == 2) f("lengths", mask.lengths, Axes::kQueries);
}

// Adds to `all` the numbers of a mask that must be equal on all ranks.
void add_numbers(const Causal&, std::vector<Equal>&) {}
void add_numbers(const Keep&, std::vector<Equal>&) {}
void add_numbers(const Padding&, std::vector<Equal>&) {}
void add_numbers(const KeyLengths&, std::vector<Equal>&) {}
void add_numbers(const MaskMod&, std::vector<Equal>&) {}
void add_numbers(const Window& mask, std::vector<Equal>& all) {
  all.push_back({"window.left", mask.left});
  all.push_back({"window.right", mask.right});
}

// How many keys before and after its diagonal a query may attend to, where a mask limits them.
struct Reach {
  std::optional<Index> before{};
  std::optional<Index> after{};
};

constexpr Index kLargest = Index{1} << 53;  // of offsets and windows; calls refuse larger ones

Reach reach_of(const Keep&) { return {}; }
Reach reach_of(const Padding&) { return {}; }
Reach reach_of(const KeyLengths&) { return {}; }
Reach reach_of(const MaskMod&) { return {}; }
Reach reach_of(const Causal&) { return {.after = 0}; }
Reach reach_of(const Window& mask) {
  const auto limit = [](Index keys) {
    return keys >= 0 && keys <= kLargest ? std::optional(keys) : std::nullopt;
  };
  return {limit(mask.left), limit(mask.right)};
}

// ---- numbers that are equal on all ranks ----------------------------------------------------

std::vector<Equal> equal_numbers(const Inputs& in, const Options& o, Sharding sharding) {
  std::vector<Equal> all{
      {"B", in.q.size(0)},
      {"H", in.q.size(1)},
      {"G", in.k.size(1)},
      {"D", in.q.size(3)},
      {"E", in.v.size(3)},
      {"the dtype of q", static_cast<Index>(in.q.dtype())},
      {"the dtype of k", static_cast<Index>(in.k.dtype())},
      {"sharding", sharding.zigzags},
      {"score", static_cast<Index>(o.score.index())},
      {"scale", o.scale ? bits_of(*o.scale) : -1},
      {"softcap", bits_of(o.softcap)},
      {"qk_norm", o.qk_norm ? bits_of(o.qk_norm->eps) : -1},
      {"rotary", o.rotary ? bits_of(o.rotary->base) : -1},
      {"the number of mods", std::ssize(o.mods)},
      {"whether there is a bias", o.bias.given() ? 1 : 0},
      {"diagonal", static_cast<Index>(o.diagonal.index())},
      {"diagonal.o",
       std::holds_alternative<Offset>(o.diagonal) ? std::get<Offset>(o.diagonal).o : 0},
      {"the width of k", in.k.size(3)},
      {"rotary.width", o.rotary ? o.rotary->width : 0},
      {"rotary.pairs", o.rotary ? static_cast<Index>(o.rotary->pairs) : 0},
      {"whether there are slopes", o.alibi.given() ? 1 : 0},
      {"whether there are sinks", o.sinks.given() ? 1 : 0},
      {"dropout.p", bits_of(o.dropout.p)},
      {"dropout.seed", static_cast<Index>(o.dropout.seed.value_or(0))},
      {"the number of masks", std::ssize(o.masks)},
  };
  for (const Mask& mask : o.masks) {
    all.push_back({"masks", static_cast<Index>(mask.index())});
    std::visit([&](const auto& of_kind) { add_numbers(of_kind, all); }, mask);
  }
  return all;
}

std::string as_text(std::span<const Index> numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()};
}

std::vector<Index> as_numbers(const std::string& text) {
  std::vector<Index> numbers(text.size() / sizeof(Index));
  std::memcpy(numbers.data(), text.data(), numbers.size() * sizeof(Index));
  return numbers;
}

}  // namespace

void add(const View& sums, const ConstView& terms) {
  if (sums.rank() > 1) {
    for (Index n = 0; n < sums.size(0); ++n) {
      const auto nth = [n](const auto& view) {
        const auto part = slice(view, 0, n, n + 1);
        Dims shape;
        Dims strides;
        for (int axis = 1; axis < part.rank(); ++axis) {
          shape.push_back(part.size(axis));
          strides.push_back(part.stride(axis));
        }
        return std::remove_cvref_t<decltype(view)>(part.data(), part.dtype(), shape, strides);
      };
      add(nth(sums), nth(terms));
    }
    return;
  }
  const Index count = sums.element_count();
  const auto stride_of = [](const auto& view) { return view.rank() == 0 ? 0 : view.stride(0); };
  const Index to_stride = stride_of(sums);
  const Index from_stride = stride_of(terms);
  core::dispatch(sums.dtype(), [&]<class T>() {
    core::visit_dtype(terms.dtype(), [&]<class Stored>(Stored*) {
      T* const to = sums.as<T>();
      const auto* const from = static_cast<const Stored*>(terms.data());
      const auto add_row = [&](Index to_step, Index from_step) {
        for (Index n = 0; n < count; ++n) {
          to[n * to_step] += core::to_accumulator<T>(from[n * from_step]);
        }
      };
      if (to_stride == 1 && from_stride == 1) return add_row(1, 1);  // compilers vectorise it
      add_row(to_stride, from_stride);
    });
  });
}

Error of_function(const Error& error, std::string_view function) {
  const std::string_view text = error.what();
  const std::size_t rule = error.function().size() + 2 + error.argument().size() + 1;
  return {function, error.argument(), text.substr(std::min(rule, text.size())), error.kind()};
}

// ---- the parts ------------------------------------------------------------------------------

Ring::Ring(std::string_view function, const Inputs& inputs, const Options& options, Ranks& ranks,
           Sharding sharding, const std::vector<Index>& more, Context& context)
    : function_(function), inputs_(inputs), options_(options), ranks_(ranks), context_(context) {
  std::vector<Index> mine;
  std::vector<Equal> equal;
  agreed(ranks_, [&] {
    check(inputs);
    equal = equal_numbers(inputs, options, sharding);
    for (const Index number : more) equal.push_back({"the arguments", number});
    mine.push_back(inputs.q.size(2));
    for (const Equal& number : equal) mine.push_back(number.value);
  });
  std::vector<Index> lengths;
  std::vector<std::vector<Index>> all;
  for (const std::string& text : all_texts(ranks_, as_text(mine))) {
    all.push_back(as_numbers(text));
    lengths.push_back(all.back()[0]);
  }
  agreed(ranks_, [&] {
    for (std::size_t n = 0; n < equal.size(); ++n) {
      if (n + 1 < all[0].size() && all[0][n + 1] == mine[n + 1]) continue;
      throw Error(
          function_, equal[n].name,
          core::text("must be equal on all ranks, but differs on ranks 0 and ", ranks_.rank()));
    }
  });
  divide(lengths, sharding);  // throws on all ranks alike
  agreed(ranks_, [&] { check_sizes(); });
}

// Checks the inputs here, since the error of a call on a part would describe that part.
void Ring::check(const Inputs& inputs) const {
  const std::pair<const char*, const ConstView&> arrays[] = {
      {"q", inputs.q}, {"k", inputs.k}, {"v", inputs.v}};
  for (const auto& [name, x] : arrays) {
    if (!x.given() || x.rank() != 4) {
      throw Error(function_, name,
                  core::text("must be [B,heads,T,channels], got ", to_string(x.shape())));
    }
    if (std::ranges::find(kTypes, x.dtype()) == std::end(kTypes)) {
      throw Error(function_, name, core::text("must be of a real type, got ", describe(x)),
                  ErrorKind::kType);
    }
    if (x.size(2) != inputs.q.size(2) || x.size(0) != inputs.q.size(0)) {
      throw Error(function_, name,
                  core::text("must have the rows and the batch of q, got ", core::shown(name, x),
                             " and ", core::shown("q", inputs.q)));
    }
  }
  const std::pair<const char*, bool> without[] = {{"cu_seqlens_q", inputs.cu_seqlens_q.given()},
                                                  {"cu_seqlens_k", inputs.cu_seqlens_k.given()},
                                                  {"block_tables", inputs.block_tables.given()},
                                                  {"context_lens", inputs.context_lens.given()},
                                                  {"shard", inputs.shard.has_value()}};
  for (const auto& [name, given] : without) {
    if (given) throw Error(function_, name, "must be absent where ranks divide the sequence");
  }
}

// Checks the arrays of the options, which have the queries of this rank and the keys of all ranks.
void Ring::check_sizes() const {
  const Index t = inputs_.q.size(2);
  const auto check_axis = [&](const char* name, const ConstView& x, int from_end, Index size,
                              const char* what, bool may_broadcast = false) {
    if (!x.given()) return;
    const Index got = x.rank() < from_end ? 1 : x.size(x.rank() - from_end);
    if (got == size && x.rank() >= from_end) return;
    if (got == 1 && may_broadcast) return;
    throw Error(
        function_, name,
        core::text("must have ", what, ", which are ", size, ", got ", to_string(x.shape())));
  };
  const auto check_pairs = [&](const char* name, const ConstView& x) {
    check_axis(name, x, 2, t, "the queries of this rank on the axis before the last", true);
    check_axis(name, x, 1, total_, "all keys of the sequence on the last axis", true);
  };
  check_pairs("bias", options_.bias);
  const auto check_array = [&](const char* name, const ConstView& x, Axes axes) {
    switch (axes) {
      case Axes::kPairs:
        return check_pairs(name, x);
      case Axes::kKeys:
        return check_axis(name, x, 1, total_, "all keys of the sequence on the last axis");
      case Axes::kQueries:
        return check_axis(name, x, 1, t, "the queries of this rank on the last axis");
    }
  };
  for (Mask mask : options_.masks) {
    std::visit([&](auto& of_kind) { visit_array(of_kind, check_array); }, mask);
  }
  if (options_.rotary) {
    check_array("q_positions", options_.rotary->q_positions, Axes::kQueries);
    check_array("k_positions", options_.rotary->k_positions, Axes::kKeys);
  }
  // Tries one query with the keys of a part, and the queries of a part with one key, so that errors
  // are found here, not by the call of a part, while other ranks wait for this rank.
  const auto first_row = [](Part part) {
    part.end = part.begin + 1;
    return part;
  };
  for (const Part& part : own_parts()) {
    try_call(first_row(part), part);
    try_call(part, first_row(part));
  }
}

void Ring::try_call(const Part& queries, const Part& keys) const {
  const DType wide = accumulator_of(inputs_.q.dtype());
  const Dims shape{inputs_.q.size(0), inputs_.q.size(1), queries.size()};
  Tensor max(wide, shape);
  Tensor sum(wide, shape);
  Tensor acc(wide, {shape[0], shape[1], shape[2], inputs_.v.size(3)});
  try {
    attention_step(inputs(queries, rows(inputs_.k, keys), rows(inputs_.v, keys), keys),
                   options(queries, keys), {max, sum, acc}, {}, context_);
  } catch (const Error& error) {
    throw of_function(error, function_);
  }
}

void Ring::divide(const std::vector<Index>& lengths, Sharding sharding) {
  std::vector<Part> pieces;  // with sizes in `end`
  const int count = ranks_.count();
  if (sharding.zigzags == 0) {
    for (int r = 0; r < count; ++r) pieces.push_back({0, lengths[static_cast<std::size_t>(r)], r});
  } else {
    constexpr Index kMostZigzags = Index{1} << 40;
    if (sharding.zigzags < 0 || sharding.zigzags > kMostZigzags) {
      throw Error(function_, "sharding",
                  core::text("must have 0 to 2^40 zigzags, got ", sharding.zigzags));
    }
    const Index size = lengths[0] / (2 * sharding.zigzags);
    if (std::ranges::any_of(lengths,
                            [&](Index rows) { return rows != 2 * sharding.zigzags * size; })) {
      std::string got;
      for (const Index rows : lengths) got += core::text(got.empty() ? "" : ",", rows);
      throw Error(function_, "q",
                  core::text("must have the same number of rows on every rank, a multiple of ",
                             2 * sharding.zigzags, ", with zigzags = ", sharding.zigzags, ", got [",
                             got, "]"));
    }
    for (Index n = 0; size > 0 && n < sharding.zigzags; ++n) {
      for (int r = 0; r < count; ++r) pieces.push_back({0, size, r, 2 * n * size});
      for (int r = count - 1; r >= 0; --r) pieces.push_back({0, size, r, (2 * n + 1) * size});
    }
  }
  for (const Part& piece : pieces) {
    if (piece.end == 0) continue;
    if (total_ % kShardKeys != 0) {
      throw Error(function_, "q",
                  core::text("must have parts that begin at multiples of ", kShardKeys,
                             " rows of the sequence, but rank ", piece.rank, " has rows from ",
                             total_, " on"));
    }
    parts_.push_back({total_, total_ + piece.end, piece.rank, piece.local});
    total_ += piece.end;
  }
  // Computes before_ and after_ from causal masks and windows. There are no limits if each batch
  // entry has an offset of its own.
  Index offset = 0;
  if (const auto* given = std::get_if<Offset>(&options_.diagonal)) offset = given->o;
  if (std::holds_alternative<Offsets>(options_.diagonal)) return;
  if (offset < -kLargest || offset > kLargest) return;
  const auto narrow = [](std::optional<Index>& limit, std::optional<Index> to, Index shift) {
    if (to) limit = limit ? std::min(*limit, *to + shift) : *to + shift;
  };
  for (const Mask& mask : options_.masks) {
    const Reach reach = std::visit([](const auto& of_kind) { return reach_of(of_kind); }, mask);
    narrow(before_, reach.before, -offset);
    narrow(after_, reach.after, offset);
  }
}

std::vector<Part> Ring::own_parts() const {
  std::vector<Part> parts;
  for (const Part& part : parts_) {
    if (part.rank == ranks_.rank()) parts.push_back(part);
  }
  return parts;
}

// Queries meet the keys of the same rows, whatever the masks, so that some call writes the results
// of each query.
bool Ring::meets(const Part& queries, const Part& keys) const {
  if (queries.begin <= keys.begin && keys.end <= queries.end) return true;
  return (!after_ || keys.begin <= queries.end - 1 + *after_) &&
         (!before_ || keys.end - 1 >= queries.begin - *before_);
}

std::vector<int> Ring::ranks_of(const Part& keys) const {
  std::vector<int> all;
  for (const Part& part : parts_) {
    if (meets(part, keys) && std::ranges::find(all, part.rank) == all.end()) {
      all.push_back(part.rank);
    }
  }
  std::ranges::sort(all);
  return all;
}

// ---- the call of a part ---------------------------------------------------------------------

namespace {

// Returns entries begin .. end - 1 of the axis number `from_end`, counted from the end (1 is the
// last), or the whole view if that axis is missing or has size 1.
template <class AnyView>
AnyView part_of_axis(const AnyView& view, int from_end, Index begin, Index end) {
  if (!view.given() || view.rank() < from_end) return view;
  const int axis = view.rank() - from_end;
  return view.size(axis) == 1 ? view : slice(view, axis, begin, end);
}

}  // namespace

template <class AnyView>
AnyView Ring::pairs(const AnyView& view, const Part& queries, const Part& keys) const {
  return part_of_axis(part_of_axis(view, 2, queries.local, queries.local + queries.size()), 1,
                      keys.begin, keys.end);
}
template View Ring::pairs(const View&, const Part&, const Part&) const;
template ConstView Ring::pairs(const ConstView&, const Part&, const Part&) const;

Inputs Ring::inputs(const Part& queries, const ConstView& k, const ConstView& v,
                    const Part& keys) const {
  Inputs inputs{rows(inputs_.q, queries), k, v};
  inputs.shard = Shard{queries.begin, total_, keys.begin, total_};
  return inputs;
}

Options Ring::options(const Part& queries, const Part& keys) const {
  Options options = options_;
  options.bias = pairs(options_.bias, queries, keys);
  const auto of_queries = [&](const ConstView& x) {
    return x.given() ? slice(x, x.rank() - 1, queries.local, queries.local + queries.size()) : x;
  };
  const auto of_keys = [&](const ConstView& x) {
    return x.given() ? slice(x, x.rank() - 1, keys.begin, keys.end) : x;
  };
  if (options.rotary) {
    options.rotary->q_positions = of_queries(options.rotary->q_positions);
    options.rotary->k_positions = of_keys(options.rotary->k_positions);
  }
  const auto take_part = [&](const char*, ConstView& x, Axes axes) {
    switch (axes) {
      case Axes::kPairs:
        x = pairs(x, queries, keys);
        return;
      case Axes::kKeys:
        x = of_keys(x);
        return;
      case Axes::kQueries:
        x = of_queries(x);
        return;
    }
  };
  for (Mask& mask : options.masks) {
    std::visit([&](auto& of_kind) { visit_array(of_kind, take_part); }, mask);
  }
  return options;
}

void Ring::take_heads(Inputs& inputs, Options& options, Index first, Index step) const {
  const Index heads = inputs_.q.size(1);
  const auto take = [&](ConstView& x, int from_end) {
    if (!x.given() || x.rank() < from_end) return;
    const int axis = x.rank() - from_end;
    if (x.size(axis) != 1) x = slice(x, axis, first, heads, step);
  };
  take(inputs.q, 3);
  inputs.shard->first_head = first;
  inputs.shard->head_step = step;
  take(options.alibi, 1);
  take(options.sinks, 1);
  take(options.bias, 3);
  const auto take_of_mask = [&](const char*, ConstView& x, Axes axes) {
    if (axes == Axes::kPairs) take(x, 3);
  };
  for (Mask& mask : options.masks) {
    std::visit([&](auto& of_kind) { visit_array(of_kind, take_of_mask); }, mask);
  }
}

// ---- messages -------------------------------------------------------------------------------

Ring::~Ring() {
  // After an error the transport may still read tensors that are being sent. These are never freed.
  if (sent_.empty()) return;
  static std::mutex mutex;
  static std::deque<std::shared_ptr<const Tensor>> never_freed;
  const std::lock_guard lock(mutex);
  for (Sent& sent : sent_) never_freed.push_back(std::move(sent.tensor));
}

void Ring::send(std::shared_ptr<const Tensor> tensor, int to, Channel channel) {
  if (tensor->element_count() == 0) return;
  std::unique_ptr<Transfer> transfer =
      ranks_.send(bytes_of(ConstView(tensor->view())), to, static_cast<int>(channel));
  sent_.push_back({std::move(tensor), std::move(transfer)});
}

std::unique_ptr<Transfer> Ring::receive(Tensor& tensor, int from, Channel channel) {
  if (tensor.element_count() == 0) return nullptr;
  return ranks_.receive(bytes_of(tensor.view()), from, static_cast<int>(channel));
}

void Ring::forget_sent() {
  std::erase_if(sent_, [](const Sent& sent) { return sent.transfer->is_done(); });
}

void Ring::finish() {
  for (const Sent& sent : sent_) sent.transfer->wait();
  sent_.clear();
  agreed(ranks_, [&] {
    if (error_ == nullptr) return;
    try {
      std::rethrow_exception(error_);
    } catch (const Error& error) {
      throw of_function(error, function_);
    } catch (const Cancelled&) {
      throw Cancelled(function_);
    }
  });
}

void Ring::for_each_keys(
    const ConstView& k, const ConstView& v,
    const std::function<void(const Part&, const ConstView&, const ConstView&)>& f) {
  const int me = ranks_.rank();
  const std::vector<Part> mine = own_parts();
  for (const Part& part : mine) {
    std::shared_ptr<const Tensor> copies[2];
    for (const int rank : ranks_of(part)) {
      if (rank == me) continue;
      if (copies[0] == nullptr) {
        copies[0] = std::make_shared<Tensor>(contiguous(rows(k, part)));
        if (v.given()) copies[1] = std::make_shared<Tensor>(contiguous(rows(v, part)));
      }
      send(copies[0], rank, Channel::kKeys);
      if (v.given()) send(copies[1], rank, Channel::kKeys);
    }
  }
  struct Coming {
    const Part* part;
    Tensor k{};
    Tensor v{};
    std::unique_ptr<Transfer> transfers[2]{};
  };
  std::deque<Coming> coming;
  std::size_t next = 0;
  const auto begin_next = [&] {
    const auto is_needed = [&](const Part& keys) {
      return std::ranges::any_of(mine, [&](const Part& queries) { return meets(queries, keys); });
    };
    while (next < parts_.size() && !is_needed(parts_[next])) ++next;
    if (next == parts_.size()) return;
    Coming& added = coming.emplace_back(Coming{&parts_[next++]});
    if (added.part->rank == me) return;
    const auto room = [&](const ConstView& like) {
      return Tensor(like.dtype(), {like.size(0), like.size(1), added.part->size(), like.size(3)});
    };
    added.k = room(k);
    added.transfers[0] = receive(added.k, added.part->rank, Channel::kKeys);
    if (!v.given()) return;
    added.v = room(v);
    added.transfers[1] = receive(added.v, added.part->rank, Channel::kKeys);
  };
  begin_next();
  while (!coming.empty()) {
    Coming now = std::move(coming.front());
    coming.pop_front();
    begin_next();
    wait_for(now.transfers);
    attempt([&] {
      if (now.part->rank == me) {
        f(*now.part, rows(k, *now.part), rows(v, *now.part));
      } else {
        f(*now.part, now.k, now.v);
      }
    });
    forget_sent();
  }
}

}  // namespace qkv::ranks
