// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include <qkv/error.h>
#include <qkv/ring.h>

#include "core/message.h"
#include "core/order.h"
#include "core/storage.h"
#include "ranks/collective.h"
#include "ranks/ring.h"

namespace qkv {
namespace {

using ranks::Channel;
using ranks::Part;
using ranks::Ring;

constexpr std::string_view kBackward = "ring_attention_backward";

// The arguments of the call.
struct Call {
  const Inputs& inputs;
  const Options& options;
  const Saved& saved;
  const OutputGradients& outputs;
  const InputGradients& wanted;
  Context& context;

  DType wide() const { return accumulator_of(inputs.q.dtype()); }
  Tensor zeros_like(const ConstView& x) const { return {wide(), x.shape()}; }
};

// Calls f(name, buffer, source) for each gradient that all queries share, except that of bias, with
// the array of which it is the gradient.
template <class F>
void for_each_shared(InputGradients& wanted, const Options& options, const F& f) {
  const QkNorm norm = options.qk_norm.value_or(QkNorm{});
  f("qk_norm.q", wanted.qk_norm.q, norm.q);
  f("qk_norm.k", wanted.qk_norm.k, norm.k);
  f("alibi", wanted.alibi, options.alibi);
  f("sinks", wanted.sinks, options.sinks);
  std::visit(
      [&]<class S>(const S& score) {
        S::for_each_parameter([&](const char* name, auto parameter, auto gradient) {
          auto* const all = std::get_if<typename S::Gradient>(&wanted.score);
          if constexpr (!std::is_same_v<typename S::Gradient, std::monostate>) {
            if (all != nullptr) f(name, all->*gradient, score.*parameter);
          }
        });
      },
      options.score);
  for (CapturedGradient& one : wanted.captured) {
    const std::string name = core::text("input_gradients.captured of ", one.of.name());
    f(name, one.to, one.of.view());
  }
}

bool is_dot(const Score& score) {
  struct Visit {
    bool operator()(const ScaledDot&) const { return true; }
    bool operator()(const Dot&) const { return true; }
    bool operator()(const Cosine&) const { return false; }
    bool operator()(const Bilinear&) const { return false; }
    bool operator()(const Additive&) const { return false; }
  };
  return std::visit(Visit{}, score);
}

// Whether the gradients can have the bits of one process.
bool continues_sums(const Call& call) {
  const Options& o = call.options;
  return call.inputs.q.size(1) > 0 && call.inputs.k.size(1) > 0 && is_dot(o.score) && !o.qk_norm &&
         !o.rotary;
}

// ---- sums of terms --------------------------------------------------------------------------

// A gradient that all queries share, summed over the calls of this rank and then over ranks. Its
// dtype is that of `to`; sums are in float64.
struct SharedSum {
  View to;
  Tensor sum;
  Tensor term;
};

// A list of the gradients that all queries share.
class SharedSums {
 public:
  // `buffer` is replaced by the memory of a call's term.
  void add(View& buffer) {
    if (!buffer.given()) return;
    SharedSum& one = sums_.emplace_back(SharedSum{buffer, Tensor(DType::kFloat64, buffer.shape()),
                                                  Tensor(buffer.dtype(), buffer.shape())});
    buffer = one.term.view();
  }
  void add_terms() {
    for (SharedSum& one : sums_) ranks::add(one.sum.view(), one.term);
  }
  // Sums over ranks in ascending order, on every rank.
  void finish(Ranks& ranks) {
    for (SharedSum& one : sums_) {
      const auto bytes = ranks::bytes_of(ConstView(one.sum.view()));
      const std::vector<std::string> all =
          ranks::all_texts(ranks, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      Tensor total(DType::kFloat64, one.to.shape());
      for (const std::string& text : all) {
        Tensor of_rank(DType::kFloat64, one.to.shape());
        if (text.size() != bytes.size()) {
          throw std::logic_error("ranks have shared gradients of other sizes");
        }
        std::ranges::copy(std::as_bytes(std::span(text.data(), text.size())),
                          ranks::bytes_of(of_rank.view()).begin());
        ranks::add(total.view(), of_rank);
      }
      copy(total, one.to);
    }
  }

 private:
  std::deque<SharedSum> sums_{};
};

// Adds up, over parts of the keys and over ranks in ascending order, each call's gradients.
void sum_terms(Ring& ring, const Call& call) {
  const Inputs& in = call.inputs;
  Tensor dq = call.zeros_like(in.q);
  Tensor dk = call.zeros_like(in.k);
  Tensor dv = call.zeros_like(in.v);
  const bool has_values = call.outputs.out.given();
  SharedSums shared;
  SharedSums sinks;  // complete in the call of one part of the keys
  InputGradients per_call = call.wanted;
  for_each_shared(per_call, call.options, [&](std::string_view name, View& buffer, ConstView) {
    (name == "sinks" ? sinks : shared).add(buffer);
  });
  const View sinks_term = per_call.sinks;
  // A bias that has rows of its own for the queries of a rank, or is shared by all.
  std::optional<Tensor> bias;
  if (call.wanted.bias.given()) bias = Tensor(DType::kFloat64, call.wanted.bias.shape());
  std::vector<Part> with_sinks;
  ring.for_each_keys(in.k, in.v, [&](const Part& keys, const ConstView& k, const ConstView& v) {
    const bool is_own = keys.rank == ring.ranks().rank();
    auto dk_part = std::make_shared<Tensor>(call.zeros_like(k));
    auto dv_part = std::make_shared<Tensor>(call.zeros_like(v));
    for (const Part& queries : ring.own()) {
      if (!ring.meets(queries, keys)) continue;
      const auto of_rows = [&](const ConstView& x) { return ranks::rows(x, queries); };
      InputGradients terms = per_call;
      Tensor q_term(in.q.dtype(), of_rows(in.q).shape());
      Tensor k_term(k.dtype(), k.shape());
      Tensor v_term(v.dtype(), v.shape());
      terms.q = q_term;
      terms.k = k_term;
      terms.v = has_values ? v_term.view() : View();
      const bool takes_sinks = std::ranges::none_of(
          with_sinks, [&](const Part& part) { return part.begin == queries.begin; });
      if (takes_sinks) with_sinks.push_back(queries);
      terms.sinks = takes_sinks ? sinks_term : View();
      Tensor bias_term;
      if (bias) {
        const View part = ring.pairs(bias->view(), queries, keys);
        bias_term = Tensor(call.wanted.bias.dtype(), part.shape());
        terms.bias = bias_term;
      }
      attention_backward(ring.inputs(queries, k, v, keys), ring.options(queries, keys),
                         {of_rows(call.saved.out), of_rows(call.saved.lse)},
                         {of_rows(call.outputs.out), of_rows(call.outputs.lse), {}}, terms,
                         call.context);
      ring.forget_sent();
      ranks::add(ranks::rows(dq.view(), queries), q_term);
      ranks::add(dk_part->view(), k_term);
      if (has_values) ranks::add(dv_part->view(), v_term);
      if (bias) ranks::add(ring.pairs(bias->view(), queries, keys), bias_term);
      shared.add_terms();
      if (takes_sinks) sinks.add_terms();
    }
    if (!is_own) {
      ring.send(dk_part, keys.rank, Channel::kSums);
      ring.send(dv_part, keys.rank, Channel::kSums);
      return;
    }
    for (const int rank : ring.ranks_of(keys)) {
      if (rank != keys.rank) {
        auto dk_other = Tensor(call.wide(), k.shape());
        auto dv_other = Tensor(call.wide(), v.shape());
        const std::unique_ptr<Transfer> transfers[] = {
            ring.receive(dk_other, rank, Channel::kSums),
            ring.receive(dv_other, rank, Channel::kSums)};
        ranks::wait_for(transfers);
        ranks::add(ranks::rows(dk.view(), keys), dk_other);
        ranks::add(ranks::rows(dv.view(), keys), dv_other);
      } else {
        ranks::add(ranks::rows(dk.view(), keys), *dk_part);
        ranks::add(ranks::rows(dv.view(), keys), *dv_part);
      }
    }
  });
  ring.finish();
  for (const auto& [from, to] : {std::pair<const Tensor&, const View&>(dq, call.wanted.q),
                                 {dk, call.wanted.k},
                                 {dv, call.wanted.v}}) {
    if (to.given()) copy(from, to);
  }
  shared.finish(ring.ranks());
  sinks.finish(ring.ranks());
  if (bias) {
    // Shared by all queries unless a rank has rows of its own.
    const View& to = call.wanted.bias;
    const bool is_of_rows = ranks::any(ring.ranks(), to.rank() >= 2 && to.size(to.rank() - 2) > 1);
    if (is_of_rows) {
      copy(*bias, to);
    } else {
      SharedSums all;
      View buffer = to;
      all.add(buffer);
      copy(*bias, buffer);
      all.add_terms();
      all.finish(ring.ranks());
    }
  }
}

// ---- gradients with the bits of one process -------------------------------------------------

// The keys of a piece that goes from rank to rank.
constexpr Index kPiece = 2 * kShardKeys;
static_assert(kPiece % kShardKeys == 0);

// A place that each piece of the keys visits: a part of the queries, and every R-th head.
struct Station {
  std::size_t number = 0;
  Index first_head = 0;
  Part queries;
};

// One piece of the keys at one station, between the stations before and after it on its path.
struct Task {
  std::size_t piece = 0;
  const Station* station = nullptr;
  const Station* before = nullptr;
  const Station* after = nullptr;
};

// Keys, values and the sums of their gradients as they go from station to station. A piece visits
// the queries that it meets in ascending order; the queries add the pieces in ascending order.
class Pipeline {
 public:
  Pipeline(Ring& ring, const Call& call)
      : ring_(ring),
        call_(call),
        me_(ring.ranks().rank()),
        heads_(call.inputs.q.size(1)),
        ratio_(heads_ / call.inputs.k.size(1)) {
    for (const Part& part : ring.parts()) {
      for (Index begin = part.begin; begin < part.end; begin += kPiece) {
        pieces_.push_back({begin, std::min(begin + kPiece, part.end), part.rank,
                           part.local + begin - part.begin});
      }
    }
    for (Index head = 0; head < ratio_; ++head) {
      for (const Part& part : ring.parts()) stations_.push_back({stations_.size(), head, part});
    }
    for (int rank = 0; rank < ring.ranks().count(); ++rank) tasks_.push_back(tasks_of(rank));
  }

  void run() {
    const Inputs& in = call_.inputs;
    dq_ = call_.zeros_like(in.q);
    dk_ = call_.zeros_like(in.k);
    dv_ = call_.zeros_like(in.v);
    find_weight_sums();
    send_first_keys();
    begin_last_sums();
    std::deque<Coming> coming;
    const std::vector<Task>& tasks = tasks_[static_cast<std::size_t>(me_)];
    for (std::size_t n = 0; n <= tasks.size(); ++n) {
      if (n < tasks.size()) coming.push_back(receive(tasks[n]));
      if (n == 0) continue;
      compute(tasks[n - 1], std::move(coming.front()));
      coming.pop_front();
      ring_.forget_sent();
    }
    for (Last& last : last_) {
      ranks::wait_for(last.transfers);
      keep(last.piece, last.rows);
    }
    ring_.finish();
    copy(dq_, call_.wanted.q);
    copy(dk_, call_.wanted.k);
    copy(dv_, call_.wanted.v);
  }

 private:
  // The tensors of a piece, and the messages that bring them.
  struct Coming {
    std::optional<ranks::KeyRows> rows{};  // none if they are on this rank
    std::vector<std::unique_ptr<Transfer>> transfers{};
  };
  struct Last {
    Part piece;
    ranks::KeyRows rows;
    std::vector<std::unique_ptr<Transfer>> transfers{};
  };

  std::vector<const Station*> path(const Part& piece) const {
    std::vector<const Station*> path;
    for (const Station& station : stations_) {
      if (ring_.meets(station.queries, piece)) path.push_back(&station);
    }
    return path;
  }

  // A rank's tasks, in an order in which every rank can wait for the others: a task needs the one
  // of the station before, and queries add the pieces in ascending order. Both have a smaller sum
  // of piece and station.
  std::vector<Task> tasks_of(int rank) const {
    std::vector<Task> tasks;
    for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
      const std::vector<const Station*> all = path(pieces_[piece]);
      for (std::size_t n = 0; n < all.size(); ++n) {
        if (all[n]->queries.rank != rank) continue;
        tasks.push_back({piece, all[n], n == 0 ? nullptr : all[n - 1],
                         n + 1 == all.size() ? nullptr : all[n + 1]});
      }
    }
    std::ranges::sort(tasks, {}, [](const Task& task) {
      return std::tuple(task.piece + task.station->number, task.piece);
    });
    return tasks;
  }

  ranks::KeyRows room(const Part& piece) const {
    const auto some = [&](const ConstView& like, DType dtype) {
      return Tensor(dtype, {like.size(0), like.size(1), piece.size(), like.size(3)});
    };
    const ConstView& k = call_.inputs.k;
    const ConstView& v = call_.inputs.v;
    return {some(k, k.dtype()), some(v, v.dtype()), some(k, call_.wide()), some(v, call_.wide())};
  }
  ranks::KeyRows own_rows(const Part& piece) const {
    ranks::KeyRows own = room(piece);
    copy(rows(call_.inputs.k, piece), own.k.view());
    copy(rows(call_.inputs.v, piece), own.v.view());
    return own;
  }
  void keep(const Part& piece, const ranks::KeyRows& sums) {
    copy(sums.dk, ranks::rows(dk_.view(), piece));
    copy(sums.dv, ranks::rows(dv_.view(), piece));
  }
  void send(Tensor tensor, int to, Channel channel) {
    ring_.send(std::make_shared<const Tensor>(std::move(tensor)), to, channel);
  }

  // Sends the keys of this rank to the first station of each.
  void send_first_keys() {
    for (const Part& piece : pieces_) {
      const int first = path(piece).front()->queries.rank;
      if (piece.rank != me_ || first == me_) continue;
      ranks::KeyRows own = own_rows(piece);
      send(std::move(own.k), first, Channel::kKeys);
      send(std::move(own.v), first, Channel::kKeys);
    }
  }

  // Begins to receive the sums of this rank's keys from the ranks of their last stations, in the
  // order in which these send them.
  void begin_last_sums() {
    for (int rank = 0; rank < std::ssize(tasks_); ++rank) {
      for (const Task& task : tasks_[static_cast<std::size_t>(rank)]) {
        const Part& piece = pieces_[task.piece];
        if (task.after != nullptr || piece.rank != me_ || rank == me_) continue;
        Last& last = last_.emplace_back(Last{piece, room(piece)});
        last.transfers.push_back(ring_.receive(last.rows.dk, rank, Channel::kSums));
        last.transfers.push_back(ring_.receive(last.rows.dv, rank, Channel::kSums));
      }
    }
  }

  // Begins to receive what a task needs.
  Coming receive(const Task& task) {
    const Part& piece = pieces_[task.piece];
    const int source = task.before == nullptr ? piece.rank : task.before->queries.rank;
    if (source == me_) return {};
    if (task.before == nullptr) {
      Coming coming{room(piece)};
      coming.transfers.push_back(ring_.receive(coming.rows->k, source, Channel::kKeys));
      coming.transfers.push_back(ring_.receive(coming.rows->v, source, Channel::kKeys));
      return coming;
    }
    // The pieces come in the order of the tasks at their source, which may be another one than
    // that of the tasks here.
    auto& early = early_[source];
    const bool is_new = !order_.contains(source);
    auto& order = order_[source];
    if (is_new) order = pieces_from(source);
    const std::pair wanted(task.piece, task.station->number);
    while (!early.contains(wanted)) {
      const auto next = order.front();
      order.pop_front();
      Coming coming{room(pieces_[next.first])};
      ranks::KeyRows& rows = *coming.rows;
      for (Tensor* tensor : {&rows.k, &rows.v, &rows.dk, &rows.dv}) {
        coming.transfers.push_back(ring_.receive(*tensor, source, Channel::kPieces));
      }
      early.emplace(next, std::move(coming));
    }
    return std::move(early.extract(wanted).mapped());
  }
  // The pieces that a rank sends this one, with the stations for which they are, in order.
  std::deque<std::pair<std::size_t, std::size_t>> pieces_from(int source) const {
    std::deque<std::pair<std::size_t, std::size_t>> pieces;
    for (const Task& task : tasks_[static_cast<std::size_t>(source)]) {
      if (task.after != nullptr && task.after->queries.rank == me_) {
        pieces.emplace_back(task.piece, task.after->number);
      }
    }
    return pieces;
  }

  void compute(const Task& task, Coming coming) {
    const Part& piece = pieces_[task.piece];
    ranks::wait_for(coming.transfers);
    ranks::KeyRows keys;
    if (coming.rows) {
      keys = std::move(*coming.rows);
    } else if (task.before == nullptr) {
      keys = own_rows(piece);
    } else {
      keys = std::move(held_.extract(task.piece).mapped());
    }
    const Part& queries = task.station->queries;
    const auto some = [&](const auto& view) {
      const auto part = ranks::rows(view, queries);
      return part.given() ? slice(part, 1, task.station->first_head, heads_, ratio_) : part;
    };
    Inputs inputs = ring_.inputs(queries, keys.k, keys.v, piece);
    Options options = ring_.options(queries, piece);
    ring_.take_heads(inputs, options, task.station->first_head, ratio_);
    attention_backward_step(
        inputs, options,
        {some(call_.saved.out), some(call_.saved.lse), some(ConstView(weight_sums_.view()))},
        {some(call_.outputs.out), some(call_.outputs.lse), {}},
        {some(dq_.view()), keys.dk.view(), keys.dv.view()}, call_.context);
    if (task.after == nullptr && piece.rank == me_) {
      keep(piece, keys);
    } else if (task.after == nullptr) {
      send(std::move(keys.dk), piece.rank, Channel::kSums);
      send(std::move(keys.dv), piece.rank, Channel::kSums);
    } else if (task.after->queries.rank == me_) {
      held_.emplace(task.piece, std::move(keys));
    } else {
      for (Tensor* tensor : {&keys.k, &keys.v, &keys.dk, &keys.dv}) {
        send(std::move(*tensor), task.after->queries.rank, Channel::kPieces);
      }
    }
  }

  // The sums that correct the rounding of large lse, if a rank has one.
  void find_weight_sums() {
    const ConstView& lse = call_.saved.lse;
    weight_sums_ = Tensor(DType::kFloat64, lse.shape());
    bool is_large = false;
    core::dispatch(lse.dtype(), [&]<class T>() {
      const Tensor all = contiguous(lse);
      is_large = std::ranges::any_of(
          all.values<T>(), [](T x) { return std::isfinite(x) && std::abs(x) > core::kLargeLse; });
    });
    if (!ranks::any(ring_.ranks(), is_large)) return;
    ring_.for_each_keys(
        call_.inputs.k, {}, [&](const Part& keys, const ConstView& k, const ConstView& v) {
          for (const Part& queries : ring_.own()) {
            if (!ring_.meets(queries, keys)) continue;
            add_weight_sums(ring_.inputs(queries, k, v, keys), ring_.options(queries, keys),
                            ranks::rows(lse, queries), ranks::rows(weight_sums_.view(), queries),
                            call_.context);
            ring_.forget_sent();
          }
        });
    ring_.finish();
  }

  Ring& ring_;
  const Call& call_;
  int me_;
  Index heads_;
  Index ratio_;
  std::vector<Part> pieces_{};
  std::vector<Station> stations_{};
  std::vector<std::vector<Task>> tasks_{};  // of each rank
  Tensor dq_{}, dk_{}, dv_{}, weight_sums_{};
  std::map<std::size_t, ranks::KeyRows> held_{};  // pieces that go on to a station of this rank
  std::map<int, std::map<std::pair<std::size_t, std::size_t>, Coming>> early_{};
  std::map<int, std::deque<std::pair<std::size_t, std::size_t>>> order_{};
  std::deque<Last> last_{};
};

// Tries the gradients of captured arrays with one pair of this rank's rows: an error that the first
// call would find while other ranks wait for this one is found here.
void try_captured(const Ring& ring, const Call& call) {
  if (call.wanted.captured.empty() || ring.own().empty()) return;
  Part one = ring.own().front();
  one.end = one.begin + 1;
  const auto row = [&](const ConstView& x) { return ranks::rows(x, one); };
  try {
    attention_backward(ring.inputs(one, row(call.inputs.k), row(call.inputs.v), one),
                       ring.options(one, one), {row(call.saved.out), row(call.saved.lse)},
                       {row(call.outputs.out), row(call.outputs.lse), {}},
                       {.captured = call.wanted.captured}, call.context);
  } catch (const Error& error) {
    throw ranks::of_function(error, kBackward);
  }
}

void check(const Call& call) {
  const auto check_like = [](const char* name, const ConstView& x, DType dtype, const Dims& shape) {
    if (x.given() && (x.dtype() != dtype || x.shape() != shape)) {
      throw Error(
          kBackward, name,
          core::text("must be ", name_of(dtype), " ", to_string(shape), ", got ", describe(x)));
    }
  };
  const Inputs& in = call.inputs;
  const Dims rows{in.q.size(0), in.q.size(1), in.q.size(2)};
  const Dims out{rows[0], rows[1], rows[2], in.v.size(3)};
  if (!call.saved.lse.given()) throw Error(kBackward, "saved.lse", "must be given");
  if (call.outputs.out.given() && !call.saved.out.given()) {
    throw Error(kBackward, "saved.out", "must be given with the gradient of out");
  }
  check_like("saved.lse", call.saved.lse, call.wide(), rows);
  check_like("saved.out", call.saved.out, in.q.dtype(), out);
  check_like("output_gradients.out", call.outputs.out, in.q.dtype(), out);
  check_like("output_gradients.lse", call.outputs.lse, call.wide(), rows);
  if (!call.outputs.out.given() && !call.outputs.lse.given()) {
    throw Error(kBackward, "output_gradients", "must have that of out or of lse");
  }
  if (call.outputs.weights.matrix.given()) {
    throw Error(kBackward, "output_gradients.weights", "must be absent with several ranks");
  }
  check_like("input_gradients.q", call.wanted.q, in.q.dtype(), in.q.shape());
  check_like("input_gradients.k", call.wanted.k, in.k.dtype(), in.k.shape());
  check_like("input_gradients.v", call.wanted.v, in.v.dtype(), in.v.shape());
  check_like("input_gradients.bias", call.wanted.bias, call.options.bias.dtype(),
             call.options.bias.shape());
  InputGradients wanted = call.wanted;
  for_each_shared(wanted, call.options,
                  [&](std::string_view name, const View& buffer, const ConstView& source) {
                    if (!buffer.given()) return;
                    if (!source.given()) {
                      throw Error(kBackward, name, "has no gradient, because it is absent");
                    }
                    check_like(std::string(name).c_str(), buffer, source.dtype(), source.shape());
                  });
  const bool is_of_score = std::visit(
      [&]<class S>(const S&) {
        return std::holds_alternative<std::monostate>(call.wanted.score) ||
               std::holds_alternative<typename S::Gradient>(call.wanted.score);
      },
      call.options.score);
  if (!is_of_score) {
    throw Error(kBackward, "input_gradients.score", "must be those of the call's score");
  }
  if (call.wanted.write != Write::kOverwrite) {
    throw Error(kBackward, "input_gradients.write", "must be kOverwrite");
  }
}

// The gradients that are requested.
struct Requested {
  std::vector<Index> numbers{};  // equal on all ranks: which ones, and the shapes of shared ones
  bool has_rows = true;          // those of q, k and v
  bool rows_alone = true;        // no others

  Requested(InputGradients wanted, const Options& options) {
    for (const View* view : {&wanted.q, &wanted.k, &wanted.v}) {
      numbers.push_back(view->given() ? 1 : 0);
      has_rows = has_rows && view->given();
    }
    const auto add = [&](const ConstView& buffer, int axes) {
      numbers.push_back(buffer.given() ? buffer.rank() : -1);
      if (!buffer.given()) return;
      rows_alone = false;
      for (int axis = 0; axis < axes; ++axis) numbers.push_back(buffer.size(axis));
    };
    add(wanted.bias, std::max(wanted.bias.rank() - 2, 0));
    for_each_shared(wanted, options, [&](std::string_view, const View& buffer, const ConstView&) {
      add(buffer, buffer.rank());
    });
  }
};

}  // namespace

void ring_attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                             const OutputGradients& output_gradients,
                             const InputGradients& input_gradients, Ranks& ranks,
                             Sharding sharding) {
  Context context;
  ring_attention_backward(inputs, options, saved, output_gradients, input_gradients, ranks,
                          sharding, context);
}

void ring_attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                             const OutputGradients& output_gradients,
                             const InputGradients& input_gradients, Ranks& ranks, Sharding sharding,
                             Context& context) {
  Requested requested(input_gradients, options);
  requested.numbers.push_back(output_gradients.out.given() ? 1 : 0);
  requested.numbers.push_back(output_gradients.lse.given() ? 1 : 0);
  Ring ring(kBackward, inputs, options, ranks, sharding, requested.numbers, context);
  const Call call{inputs, options, saved, output_gradients, input_gradients, context};
  ranks::agreed(ranks, [&] {
    check(call);
    try_captured(ring, call);
  });
  if (requested.rows_alone && requested.has_rows && continues_sums(call)) {
    Pipeline(ring, call).run();
  } else {
    sum_terms(ring, call);
  }
}

}  // namespace qkv
