// SPDX-License-Identifier: Apache-2.0
#include "cuda/additive_gradient_launch.h"

#include <cstdint>

#include "cuda/additive_launch.h"
#include "cuda/device/additive_shape.h"
#include "cuda/forward_arguments.h"
#include "cuda/gradient_launch.h"

namespace qkv::cuda {
namespace {

using core::Problem;

// The kernels by name, in the order of their launch.
struct AdditiveGradients {
#define QKV_KERNEL(NAME, SHAPE, BLOCKS)                                            \
  TileKernel NAME = untiled("additive_gradients", "qkv_additive_gradients_" #NAME, \
                            SHAPE::kThreads, SHAPE::kSharedBytes);
  QKV_FOR_EACH_ADDITIVE_GRADIENT(QKV_KERNEL)
#undef QKV_KERNEL
};
constexpr AdditiveGradients kAdditiveGradients;

DeviceArray array_of(const core::GradientTarget& x) {
  return x.given() ? device_array(x.direct) : DeviceArray();
}

// Returns the name of a requested gradient that the kernels do not compute, or null.
const char* unsupported_additive_gradient(const core::GradientResults& to) {
  core::GradientResults rest = to;
  rest.q = rest.k = rest.v = rest.query.w = rest.query.b = rest.key.w = rest.score_v = {};
  if (rest.bias.given()) return "the gradient of a bias of an additive score";
  if (rest.alibi.given()) return "the gradient of alibi of an additive score";
  if (rest.sinks.given()) return "the gradient of sinks of an additive score";
  for (const core::GradientTarget* one : rest.all()) {
    if (one->given()) return "gradients of input transforms";
  }
  return nullptr;
}

// Calls f(address, count) for each part of a call's scratch memory. `address` is the pointer to the
// part in the arguments, and `count` is the part's size in float32 numbers, a multiple of 4.
template <class F>
void for_each_additive_part(AdditiveGradientArguments& g, const Problem& p, const F& f) {
  const bool of_queries = is_given(g.dq) || is_given(g.dwq) || is_given(g.db) || is_given(g.du);
  const bool of_keys = is_given(g.dk) || is_given(g.dwk);
  const std::int64_t left = float_count(p, g.pairs, g.pairs.left);
  const std::int64_t right = float_count(p, g.pairs, g.pairs.right);
  f(g.pairs.left.data, left);
  f(g.pairs.right.data, right);
  if (of_queries) {
    f(g.dleft.data, left);
    f(g.units.data, left);
  }
  if (of_keys) f(g.dright.data, right);
  if (is_given(g.dv) && g.adds) {
    f(g.value_sums.data, (entries_of(p) * p.G * p.k_rows * p.E + 3) / 4 * 4);
  }
  f(g.pairs.call.statistics, entries_of(p) * p.H * p.q_rows * 4);
}

}  // namespace

std::string additive_gradients_unsupported(const Problem& p, const core::GradientSources& from,
                                           const core::GradientResults& to) {
  std::string reason = additive_call_unsupported(p);
  if (!reason.empty()) return reason;
  if (from.dweights.given()) return "gradients of weights (output_gradients.weights)";
  const char* gradient = unsupported_additive_gradient(to);
  if (gradient != nullptr) return gradient;
  return broadcast_unsupported(p, to);
}

AdditiveGradientLaunches additive_gradient_launches(const Problem& p,
                                                    const core::GradientSources& from,
                                                    const core::GradientResults& to) {
  using Shape = FloatGradientShape;
  AdditiveGradientLaunches launches;
  AdditiveGradientArguments& g = launches.arguments;
  AdditiveArguments& x = g.pairs;
  g.dq = array_of(to.q);
  g.dk = array_of(to.k);
  g.dv = array_of(to.v);
  g.dwq = array_of(to.query.w);
  g.dwk = array_of(to.key.w);
  g.db = array_of(to.query.b);
  g.du = array_of(to.score_v);
  g.adds = to.q.accumulate;  // equal for all gradients
  x = additive_arguments(p, {}, g.dwk.head != 0);
  ForwardArguments& a = x.call;
  a.out = device_array(from.out);
  a.lse = device_array(from.lse);
  g.dout = device_array(from.dout);
  g.dlse = device_array(from.dlse);
  g.dleft = g.units = x.left;
  g.dright = x.right;
  g.value_sums = g.dv;
  if (is_given(g.dv) && g.adds) g.value_sums = rows_in_c_order(p, p.G, p.k_rows, p.E);
  const bool of_queries = is_given(g.dq) || is_given(g.dwq) || is_given(g.db) || is_given(g.du);
  const bool of_keys = is_given(g.dk) || is_given(g.dwk);
  a.row_blocks = static_cast<int>(blocks_of(p, p.q_rows, Shape::kRows));
  a.key_blocks = static_cast<int>(blocks_of(p, p.k_rows, Shape::kKeys));

  const auto launch = [&](const TileKernel& kernel, std::int64_t blocks) {
    if (blocks > 0) launches.kernels.push_back({&kernel, blocks});
  };
  const Index query_blocks = entries_of(p) * p.H * a.row_blocks;
  const Index key_blocks = entries_of(p) * p.G * a.key_blocks;
  const auto blocks_of_64 = [](Index size) { return (size + 63) / 64; };
  launch(kAdditiveGradients.project, x.left_blocks + projecting_blocks(p, x, x.right));
  launch(kAdditiveGradients.prepare, query_blocks);
  if (of_queries) launch(kAdditiveGradients.queries, query_blocks);
  if (of_keys || is_given(g.dv)) launch(kAdditiveGradients.keys, key_blocks);
  g.query_blocks = is_given(g.dq) ? query_blocks * blocks_of_64(p.Dq) : 0;
  launch(kAdditiveGradients.rows,
         g.query_blocks + (is_given(g.dk) ? key_blocks * blocks_of_64(p.Dk) : 0));
  const auto matrices = [&](const DeviceArray& w, Index width) {
    return is_given(w) ? (w.head == 0 ? 1 : p.H) * x.unit_blocks * blocks_of_64(width) : 0;
  };
  g.query_matrix_blocks = matrices(g.dwq, p.Dq);
  launch(kAdditiveGradients.matrices, g.query_matrix_blocks + matrices(g.dwk, p.Dk));
  const auto vectors = [&](const DeviceArray& v) {
    return is_given(v) ? (v.head == 0 ? 1 : p.H) * Index{x.quads} : 0;
  };
  g.unit_vector_blocks = vectors(g.du);
  launch(kAdditiveGradients.units, g.unit_vector_blocks + vectors(g.db));
  for_each_additive_part(g, p, [&](const auto&, std::int64_t count) {
    launches.bytes += static_cast<std::size_t>(count) * sizeof(float);
  });
  return launches;
}

// NOLINTNEXTLINE(readability-non-const-parameter): kernels write there.
void set_memory(AdditiveGradientLaunches& launches, const Problem& p, float* memory) {
  for_each_additive_part(launches.arguments, p,
                         [&]<class Address>(Address& address, std::int64_t count) {
                           address = reinterpret_cast<Address>(memory);
                           memory += count;
                         });
}

}  // namespace qkv::cuda
