// SPDX-License-Identifier: Apache-2.0
#include "onednn.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <dnnl.hpp>
#include <fmt/format.h>
#include <omp.h>

#include "../measure.h"

namespace qkv::bench {
namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;

constexpr auto kFloat = dnnl::memory::data_type::f32;

// Row-major, and as the primitive likes it best.
Desc rows_of(Index rows, Index columns) { return {{rows, columns}, kFloat, Tag::ab}; }
Desc any_of(Index rows, Index columns) { return {{rows, columns}, kFloat, Tag::any}; }

struct Sizes {
  Index Tq;
  Index Tk;
  Index D;
  Index block;  // query rows at a time
};

// What one thread needs to compute blocks: primitives, made once, with their memory.
class Worker {
 public:
  Worker(const dnnl::engine& engine, const Sizes& sizes)
      : stream_(engine),
        sizes_(sizes),
        first_(first_of(engine, sizes)),
        second_(second_of(engine, sizes)),
        softmax_(softmax_of(engine, sizes)),
        queries_(rows_of(sizes.block, sizes.D), engine, nullptr),
        scores_(rows_of(sizes.block, sizes.Tk), engine),
        out_(rows_of(sizes.block, sizes.D), engine, nullptr),
        product_(first_),
        sum_(second_),
        normalise_(softmax_) {}

  Desc keys_desc() const { return first_.weights_desc(); }
  Desc values_desc() const { return second_.weights_desc(); }

  // `q` and `out` point at the block's first rows.
  void run(float* q, float* out, const dnnl::memory& keys, const dnnl::memory& values) {
    queries_.set_data_handle(q);
    out_.set_data_handle(out);
    product_.execute(stream_,
                     {{DNNL_ARG_SRC, queries_}, {DNNL_ARG_WEIGHTS, keys}, {DNNL_ARG_DST, scores_}});
    normalise_.execute(stream_, {{DNNL_ARG_SRC, scores_}, {DNNL_ARG_DST, scores_}});
    sum_.execute(stream_,
                 {{DNNL_ARG_SRC, scores_}, {DNNL_ARG_WEIGHTS, values}, {DNNL_ARG_DST, out_}});
    stream_.wait();
  }
  void reorder(dnnl::memory& from, dnnl::memory& to) {
    dnnl::reorder(from, to).execute(stream_, from, to);
    stream_.wait();
  }

 private:
  static dnnl::matmul::primitive_desc first_of(const dnnl::engine& engine, const Sizes& s) {
    dnnl::primitive_attr scaled;
    scaled.set_output_scales(0, {static_cast<float>(1 / std::sqrt(static_cast<double>(s.D)))});
    return {{rows_of(s.block, s.D), any_of(s.D, s.Tk), rows_of(s.block, s.Tk)}, scaled, engine};
  }
  static dnnl::matmul::primitive_desc second_of(const dnnl::engine& engine, const Sizes& s) {
    return {{rows_of(s.block, s.Tk), any_of(s.Tk, s.D), rows_of(s.block, s.D)}, engine};
  }
  static dnnl::softmax_forward::primitive_desc softmax_of(const dnnl::engine& engine,
                                                          const Sizes& s) {
    return {{dnnl::prop_kind::forward_inference, rows_of(s.block, s.Tk), 1}, engine};
  }

  dnnl::stream stream_;
  Sizes sizes_;
  dnnl::matmul::primitive_desc first_;
  dnnl::matmul::primitive_desc second_;
  dnnl::softmax_forward::primitive_desc softmax_;
  dnnl::memory queries_;
  dnnl::memory scores_;
  dnnl::memory out_;
  dnnl::matmul product_;
  dnnl::matmul sum_;
  dnnl::softmax_forward normalise_;
};

// One call: keys and values are put into the primitives' own order (which counts), then blocks
// are taken by the threads. Each thread runs its own primitives alone: oneDNN's own division of a
// product among threads waits at its end, three times for each block.
class Composition {
 public:
  Composition(const Problem& problem, const View& out, int threads, Index block)
      : engine_(dnnl::engine::kind::cpu, 0),
        sizes_{problem.shape.Tq, problem.shape.Tk, problem.shape.D, block},
        q_(problem.q.as<float>()),
        out_(out.as<float>()),
        executor_(threads == 1 ? Executor() : Executor::threads(threads)),
        threads_(threads),
        plain_keys_({{sizes_.D, sizes_.Tk}, kFloat, Tag::ba}, engine_, problem.k.data()),
        plain_values_(rows_of(sizes_.Tk, sizes_.D), engine_, problem.v.data()) {
    for (int n = 0; n < threads; ++n) {
      omp_set_num_threads(1);  // primitives are made for as many threads as there are now
      workers_.push_back(std::make_unique<Worker>(engine_, sizes_));
    }
    keys_ = dnnl::memory(workers_[0]->keys_desc(), engine_);
    values_ = dnnl::memory(workers_[0]->values_desc(), engine_);
  }

  void run() {
    each_thread([](Composition& c, Index n) {
      if (n == 0) c.workers_[0]->reorder(c.plain_keys_, c.keys_);
      if (n + 1 == c.threads_) {
        c.workers_[static_cast<std::size_t>(n)]->reorder(c.plain_values_, c.values_);
      }
    });
    next_ = 0;
    each_thread(
        [](Composition& c, Index n) { c.take_blocks(*c.workers_[static_cast<std::size_t>(n)]); });
  }

 private:
  template <class Task>
  void each_thread(Task) {
    const auto body = [](void* state, Index n) {
      omp_set_num_threads(1);  // of this thread
      Task{}(*static_cast<Composition*>(state), n);
    };
    executor_.run(threads_, body, this);
  }

  void take_blocks(Worker& worker) {
    const Index blocks = sizes_.Tq / sizes_.block;
    for (Index n = next_++; n < blocks; n = next_++) {
      const Index start = n * sizes_.block * sizes_.D;
      worker.run(q_ + start, out_ + start, keys_, values_);
    }
  }

  dnnl::engine engine_;
  Sizes sizes_;
  float* q_;
  float* out_;
  Executor executor_;
  int threads_;
  dnnl::memory plain_keys_;
  dnnl::memory plain_values_;
  dnnl::memory keys_;
  dnnl::memory values_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<Index> next_ = 0;
};

bool is_plain(const Problem& problem) {
  const Shape& s = problem.shape;
  const Options& o = problem.options;
  return s.B * s.H * s.G == 1 && s.dtype == DType::kFloat32 && o.masks.empty() && o.mods.empty() &&
         !o.bias.given() && !o.alibi.given() && !o.sinks.given() && o.softcap == 0 &&
         o.dropout.p == 0 && std::holds_alternative<ScaledDot>(o.score);
}

// The block of query rows that is fastest here, found by trying.
std::function<void()> bind(const Problem& problem, const std::vector<View>& results, int threads) {
  if (!is_plain(problem) || problem.pass != Pass::kForward) return nullptr;
  std::shared_ptr<Composition> best;
  double best_time = std::numeric_limits<double>::infinity();
  for (const Index block : {16, 32, 64, 128, 256, 512, 1024, 2048}) {
    if (problem.shape.Tq % block != 0) continue;
    const auto candidate = std::make_shared<Composition>(problem, results[0], threads, block);
    const Subject subject = {[&] { candidate->run(); }};
    const Effort effort = {.burst = 0.02, .seconds = 0.1, .rounds = 3};
    const double time = summarise(alternate({&subject, 1}, effort)[0], Clock::kWall).best;
    if (time >= best_time) continue;
    best_time = time;
    best = candidate;
  }
  if (best == nullptr) return nullptr;
  return [best] { best->run(); };
}

}  // namespace

Peer onednn_peer() {
  const dnnl_version_t* version = dnnl_version();
  return {fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch), bind};
}

}  // namespace qkv::bench
