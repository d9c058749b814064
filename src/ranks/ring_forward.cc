// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <qkv/error.h>
#include <qkv/ring.h>

#include "core/message.h"
#include "core/overlap.h"
#include "core/storage.h"
#include "ranks/collective.h"
#include "ranks/ring.h"

namespace qkv {
namespace {

using ranks::Part;
using ranks::Ring;

constexpr std::string_view kForward = "ring_attention";

// The softmax of a part of the queries over the keys so far.
struct State {
  Part queries;
  Part last;  // the last keys that meet the queries
  Tensor max;
  Tensor sum;
  Tensor acc;
};

State begin(const Ring& ring, const Inputs& inputs, const Part& queries) {
  const DType wide = accumulator_of(inputs.q.dtype());
  const Dims shape{inputs.q.size(0), inputs.q.size(1), queries.size()};
  State state{queries, queries, Tensor(wide, shape), Tensor(wide, shape),
              Tensor(wide, {shape[0], shape[1], shape[2], inputs.v.size(3)})};
  core::dispatch(wide, [&]<class T>() {
    std::ranges::fill(state.max.values<T>(), -std::numeric_limits<T>::infinity());
  });
  for (const Part& keys : ring.parts()) {
    if (ring.meets(queries, keys)) state.last = keys;
  }
  return state;
}

void check_outputs(const Inputs& inputs, const Options& options, const Outputs& outputs) {
  for_each_buffer(outputs, [](std::string_view name, const View& buffer) {
    if (buffer.given() && name != "out" && name != "lse") {
      throw Error(kForward, name, "must be absent: out and lse are the results of several ranks");
    }
  });
  const Dims rows{inputs.q.size(0), inputs.q.size(1), inputs.q.size(2)};
  const auto check = [&](const char* name, const View& buffer, DType dtype, const Dims& shape) {
    if (buffer.given() && (buffer.dtype() != dtype || buffer.shape() != shape)) {
      throw Error(kForward, name,
                  core::text("must be ", name_of(dtype), " ", to_string(shape), ", got ",
                             describe(buffer)));
    }
  };
  check("out", outputs.out, inputs.q.dtype(), {rows[0], rows[1], rows[2], inputs.v.size(3)});
  check("lse", outputs.lse, accumulator_of(inputs.q.dtype()), rows);
  const std::pair<const char*, ConstView> read[] = {
      {"q", inputs.q},        {"k", inputs.k},          {"v", inputs.v},
      {"bias", options.bias}, {"alibi", options.alibi}, {"sinks", options.sinks}};
  for (const auto& [name, result] : {std::pair("out", outputs.out), {"lse", outputs.lse}}) {
    if (core::self_overlaps(result)) throw Error(kForward, name, "must not overlap itself");
    for (const auto& [other, array] : read) {
      if (core::may_overlap(result, array)) {
        throw Error(kForward, name, core::text("must not share memory with ", other));
      }
    }
  }
  if (core::may_overlap(outputs.out, outputs.lse)) {
    throw Error(kForward, "out", "must not share memory with lse");
  }
}

}  // namespace

void ring_attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                    Ranks& ranks, Sharding sharding) {
  Context context;
  ring_attention(inputs, options, outputs, ranks, sharding, context);
}

void ring_attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                    Ranks& ranks, Sharding sharding, Context& context) {
  Ring ring(kForward, inputs, options, ranks, sharding, {}, context);
  ranks::agreed(ranks, [&] { check_outputs(inputs, options, outputs); });
  std::vector<State> states;
  for (const Part& queries : ring.own_parts()) states.push_back(begin(ring, inputs, queries));
  ring.for_each_keys(
      inputs.k, inputs.v, [&](const Part& keys, const ConstView& k, const ConstView& v) {
        for (State& state : states) {
          if (!ring.meets(state.queries, keys)) continue;
          Outputs results;
          if (keys.begin == state.last.begin) {
            results.out = rows(outputs.out, state.queries);
            results.lse = rows(outputs.lse, state.queries);
          }
          attention_step(ring.inputs(state.queries, k, v, keys), ring.options(state.queries, keys),
                         {state.max, state.sum, state.acc}, results, context);
          ring.forget_sent();
        }
      });
  ring.finish();
}

}  // namespace qkv
