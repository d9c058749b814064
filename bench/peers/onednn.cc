// SPDX-License-Identifier: Apache-2.0
#include "onednn.h"

#include <atomic>
#include <memory>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "onednn_parts.h"

namespace qkv::bench {
namespace {

// The primitives, created once, and the memory with which one thread computes blocks.
class Worker {
 public:
  Worker(const dnnl::engine& engine, const Sizes& sizes)
      : stream_(engine),
        sizes_(sizes),
        scores_desc_(scores_desc_of(engine, sizes)),
        out_desc_(out_desc_of(engine, sizes)),
        softmax_(softmax_of(engine, sizes)),
        queries_(rows_of(sizes.block, sizes.D), engine, nullptr),
        scores_(rows_of(sizes.block, sizes.Tk), engine),
        out_(rows_of(sizes.block, sizes.D), engine, nullptr),
        scores_product_(scores_desc_),
        out_product_(out_desc_),
        normalise_(softmax_) {}

  Desc keys_desc() const { return scores_desc_.weights_desc(); }
  Desc values_desc() const { return out_desc_.weights_desc(); }

  // Computes a block of query rows; `q` and `out` point to its first row.
  void run(float* q, float* out, const dnnl::memory& keys, const dnnl::memory& values) {
    queries_.set_data_handle(q);
    out_.set_data_handle(out);
    scores_product_.execute(
        stream_, {{DNNL_ARG_SRC, queries_}, {DNNL_ARG_WEIGHTS, keys}, {DNNL_ARG_DST, scores_}});
    normalise_.execute(stream_, {{DNNL_ARG_SRC, scores_}, {DNNL_ARG_DST, scores_}});
    out_product_.execute(
        stream_, {{DNNL_ARG_SRC, scores_}, {DNNL_ARG_WEIGHTS, values}, {DNNL_ARG_DST, out_}});
    stream_.wait();
  }
  void put(dnnl::memory& from, dnnl::memory& to) { reorder(stream_, from, to); }

 private:
  static dnnl::matmul::primitive_desc scores_desc_of(const dnnl::engine& engine, const Sizes& s) {
    dnnl::primitive_attr scaled;
    scaled.set_output_scales(0, {scale_of(s)});
    return {{rows_of(s.block, s.D), any_of(s.D, s.Tk), rows_of(s.block, s.Tk)}, scaled, engine};
  }
  static dnnl::matmul::primitive_desc out_desc_of(const dnnl::engine& engine, const Sizes& s) {
    return {{rows_of(s.block, s.Tk), any_of(s.Tk, s.D), rows_of(s.block, s.D)}, engine};
  }
  static dnnl::softmax_forward::primitive_desc softmax_of(const dnnl::engine& engine,
                                                          const Sizes& s) {
    return {{dnnl::prop_kind::forward_inference, rows_of(s.block, s.Tk), 1}, engine};
  }

  dnnl::stream stream_;
  Sizes sizes_;
  dnnl::matmul::primitive_desc scores_desc_;
  dnnl::matmul::primitive_desc out_desc_;
  dnnl::softmax_forward::primitive_desc softmax_;
  dnnl::memory queries_;
  dnnl::memory scores_;
  dnnl::memory out_;
  dnnl::matmul scores_product_;
  dnnl::matmul out_product_;
  dnnl::softmax_forward normalise_;
};

// A forward pass. A run first reorders keys and values for the primitives. Then the threads take
// blocks of query rows.
class Composition {
 public:
  Composition(const Problem& problem, const std::vector<View>& results, int threads, Index block)
      : engine_(dnnl::engine::kind::cpu, 0),
        sizes_{problem.shape.Tq, problem.shape.Tk, problem.shape.D, block},
        q_(problem.q.as<float>()),
        out_(results[0].as<float>()),
        threads_(threads),
        plain_keys_(transposed_of(sizes_.D, sizes_.Tk), engine_, problem.k.data()),
        plain_values_(rows_of(sizes_.Tk, sizes_.D), engine_, problem.v.data()) {
    for (std::size_t n = 0; n < threads_.count(); ++n) {
      omp_set_num_threads(1);  // primitives are created for the current number of threads
      workers_.push_back(std::make_unique<Worker>(engine_, sizes_));
    }
    keys_ = dnnl::memory(workers_[0]->keys_desc(), engine_);
    values_ = dnnl::memory(workers_[0]->values_desc(), engine_);
  }

  void run() {
    threads_.each([this](std::size_t n) {
      if (n == 0) workers_[n]->put(plain_keys_, keys_);
      if (n + 1 == threads_.count()) workers_[n]->put(plain_values_, values_);
    });
    next_ = 0;
    threads_.each([this](std::size_t n) { take_blocks(*workers_[n]); });
  }

 private:
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
  Threads threads_;
  dnnl::memory plain_keys_;
  dnnl::memory plain_values_;
  dnnl::memory keys_;
  dnnl::memory values_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<Index> next_ = 0;
};

// Whether the problem is one that onednn_peer() supports.
bool is_plain(const Problem& problem) {
  const Shape& s = problem.shape;
  return s.B * s.H * s.G == 1 && s.dtype == DType::kFloat32 && s.value_width() == s.D &&
         std::holds_alternative<ScaledDot>(problem.options.score) && has_score_alone(problem);
}

std::function<void()> bind(const Problem& problem, const std::vector<View>& results, int threads) {
  if (!is_plain(problem)) return nullptr;
  if (problem.pass == Pass::kBackward) return bind_backward(problem, results, threads);
  return fastest<Composition>(problem, results, threads);
}

}  // namespace

Peer onednn_peer() {
  const dnnl_version_t* version = dnnl_version();
  return {fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch), bind,
          bind_product};
}

}  // namespace qkv::bench
