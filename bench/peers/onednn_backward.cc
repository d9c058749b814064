// SPDX-License-Identifier: Apache-2.0
// The backward pass composed of oneDNN's primitives: five matrix products, the softmax and its
// gradient.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "onednn_parts.h"

namespace qkv::bench {
namespace {

using Product = dnnl::matmul::primitive_desc;

// Whether a product is scaled as scores are, and whether it is added to its destination.
enum class Scale { kNone, kScores };
enum class Store { kOverwrite, kAdd };

Product product_of(const dnnl::engine& engine, const Sizes& s, const Desc& a, const Desc& b,
                   const Desc& c, Scale scale, Store store) {
  dnnl::primitive_attr attributes;
  if (scale == Scale::kScores) attributes.set_output_scales(0, {scale_of(s)});
  if (store == Store::kAdd) {
    dnnl::post_ops add;
    add.append_sum();
    attributes.set_post_ops(add);
  }
  return {{a, b, c}, attributes, engine};
}

// The five products of a block of query rows.
struct Products {
  Products(const dnnl::engine& e, const Sizes& s)
      : scores(product_of(e, s, rows_of(s.block, s.D), any_of(s.D, s.Tk), rows_of(s.block, s.Tk),
                          Scale::kScores, Store::kOverwrite)),
        dweights(product_of(e, s, rows_of(s.block, s.D), any_of(s.D, s.Tk), rows_of(s.block, s.Tk),
                            Scale::kNone, Store::kOverwrite)),
        dq(product_of(e, s, rows_of(s.block, s.Tk), any_of(s.Tk, s.D), rows_of(s.block, s.D),
                      Scale::kScores, Store::kOverwrite)),
        dk(product_of(e, s, transposed_of(s.Tk, s.block), rows_of(s.block, s.D), rows_of(s.Tk, s.D),
                      Scale::kScores, Store::kAdd)),
        dv(product_of(e, s, transposed_of(s.Tk, s.block), rows_of(s.block, s.D), rows_of(s.Tk, s.D),
                      Scale::kNone, Store::kAdd)) {}
  Product scores, dweights, dq, dk, dv;
};

// Keys and values in the memory orders that the products prefer.
struct Packed {
  dnnl::memory keys_transposed;
  dnnl::memory values_transposed;
  dnnl::memory keys;
};

// Pointers to the first rows of a block of query rows.
struct Block {
  float* q;
  float* dout;
  float* dq;
};

// The primitives, created once, and the memory with which one thread computes blocks.
class Worker {
 public:
  // `dk` and `dv` [Tk,D] receive the sums of this thread alone; the caller owns this memory.
  Worker(const dnnl::engine& e, const Sizes& s, float* dk, float* dv)
      : stream_(e),
        products_(e, s),
        softmax_({dnnl::prop_kind::forward_training, rows_of(s.block, s.Tk), 1}, e),
        dsoftmax_({rows_of(s.block, s.Tk), rows_of(s.block, s.Tk), 1}, e, softmax_),
        q_(rows_of(s.block, s.D), e, nullptr),
        dout_(rows_of(s.block, s.D), e, nullptr),
        dq_(rows_of(s.block, s.D), e, nullptr),
        weights_(rows_of(s.block, s.Tk), e),
        dscores_(rows_of(s.block, s.Tk), e),
        weights_transposed_(transposed_of(s.Tk, s.block), e, weights_.get_data_handle()),
        dscores_transposed_(transposed_of(s.Tk, s.block), e, dscores_.get_data_handle()),
        dk_(rows_of(s.Tk, s.D), e, dk),
        dv_(rows_of(s.Tk, s.D), e, dv),
        scores_product_(products_.scores),
        dweights_product_(products_.dweights),
        dq_product_(products_.dq),
        dk_product_(products_.dk),
        dv_product_(products_.dv),
        normalise_(softmax_),
        undo_normalise_(dsoftmax_) {}

  const Products& products() const { return products_; }
  void put(dnnl::memory& from, dnnl::memory& to) { reorder(stream_, from, to); }

  void run(const Block& block, const Packed& packed) {
    q_.set_data_handle(block.q);
    dout_.set_data_handle(block.dout);
    dq_.set_data_handle(block.dq);
    multiply(scores_product_, q_, packed.keys_transposed, weights_);
    normalise_.execute(stream_, {{DNNL_ARG_SRC, weights_}, {DNNL_ARG_DST, weights_}});
    multiply(dv_product_, weights_transposed_, dout_, dv_);
    multiply(dweights_product_, dout_, packed.values_transposed, dscores_);
    undo_normalise_.execute(
        stream_,
        {{DNNL_ARG_DST, weights_}, {DNNL_ARG_DIFF_DST, dscores_}, {DNNL_ARG_DIFF_SRC, dscores_}});
    multiply(dq_product_, dscores_, packed.keys, dq_);
    multiply(dk_product_, dscores_transposed_, q_, dk_);
    stream_.wait();
  }

 private:
  void multiply(dnnl::matmul& product, const dnnl::memory& a, const dnnl::memory& b,
                const dnnl::memory& c) {
    product.execute(stream_, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
  }

  dnnl::stream stream_;
  Products products_;
  dnnl::softmax_forward::primitive_desc softmax_;
  dnnl::softmax_backward::primitive_desc dsoftmax_;
  dnnl::memory q_, dout_, dq_;
  dnnl::memory weights_, dscores_, weights_transposed_, dscores_transposed_;
  dnnl::memory dk_, dv_;
  dnnl::matmul scores_product_, dweights_product_, dq_product_, dk_product_, dv_product_;
  dnnl::softmax_forward normalise_;
  dnnl::softmax_backward undo_normalise_;
};

// A backward pass. A run first reorders keys and values for the primitives. Then the threads take
// blocks of query rows. Each thread has its own sums of dk and dv, which are added at the end.
class Composition {
 public:
  Composition(const Problem& problem, const std::vector<View>& results, int threads, Index block)
      : engine_(dnnl::engine::kind::cpu, 0),
        sizes_{problem.shape.Tq, problem.shape.Tk, problem.shape.D, block},
        first_{problem.q.as<float>(), problem.dout.as<float>(), results[0].as<float>()},
        threads_(threads),
        plain_keys_transposed_(transposed_of(sizes_.D, sizes_.Tk), engine_, problem.k.data()),
        plain_values_transposed_(transposed_of(sizes_.D, sizes_.Tk), engine_, problem.v.data()),
        plain_keys_(rows_of(sizes_.Tk, sizes_.D), engine_, problem.k.data()) {
    sums_.push_back({results[1].as<float>(), results[2].as<float>()});
    for (std::size_t n = 1; n < threads_.count(); ++n) {
      float* memory = memory_.emplace_back(2 * sum_size()).data();
      sums_.push_back({memory, memory + sum_size()});
    }
    for (const Sums& sums : sums_) {
      omp_set_num_threads(1);  // primitives are created for the current number of threads
      workers_.push_back(std::make_unique<Worker>(engine_, sizes_, sums.dk, sums.dv));
    }
    const Products& products = workers_[0]->products();
    packed_ = {dnnl::memory(products.scores.weights_desc(), engine_),
               dnnl::memory(products.dweights.weights_desc(), engine_),
               dnnl::memory(products.dq.weights_desc(), engine_)};
  }

  void run() {
    threads_.each([this](std::size_t n) {
      if (n == 0) workers_[n]->put(plain_keys_transposed_, packed_.keys_transposed);
      if (n + 1 == threads_.count()) {
        workers_[n]->put(plain_values_transposed_, packed_.values_transposed);
      }
      if (n == 0) workers_[n]->put(plain_keys_, packed_.keys);
    });
    next_ = 0;
    threads_.each([this](std::size_t n) {
      std::fill_n(sums_[n].dk, sum_size(), 0.0F);
      std::fill_n(sums_[n].dv, sum_size(), 0.0F);
      take_blocks(*workers_[n]);
    });
    if (threads_.count() > 1) threads_.each([this](std::size_t n) { add_sums(n); });
  }

 private:
  struct Sums {
    float* dk;
    float* dv;
  };

  std::size_t sum_size() const { return static_cast<std::size_t>(sizes_.Tk * sizes_.D); }

  void take_blocks(Worker& worker) {
    const Index blocks = sizes_.Tq / sizes_.block;
    for (Index n = next_++; n < blocks; n = next_++) {
      const Index start = n * sizes_.block * sizes_.D;
      worker.run({first_.q + start, first_.dout + start, first_.dq + start}, packed_);
    }
  }

  // Adds the sums of the other threads to those of the first thread, which are the results. Each
  // call of this function adds the elements of another range.
  void add_sums(std::size_t thread) {
    const std::size_t begin = thread * sum_size() / threads_.count();
    const std::size_t end = (thread + 1) * sum_size() / threads_.count();
    for (std::size_t other = 1; other < sums_.size(); ++other) {
      for (std::size_t n = begin; n < end; ++n) sums_[0].dk[n] += sums_[other].dk[n];
      for (std::size_t n = begin; n < end; ++n) sums_[0].dv[n] += sums_[other].dv[n];
    }
  }

  dnnl::engine engine_;
  Sizes sizes_;
  Block first_;
  Threads threads_;
  dnnl::memory plain_keys_transposed_, plain_values_transposed_, plain_keys_;
  Packed packed_;
  std::vector<std::vector<float>> memory_;
  std::vector<Sums> sums_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<Index> next_ = 0;
};

}  // namespace

std::function<void()> bind_backward(const Problem& problem, const std::vector<View>& results,
                                    int threads) {
  return fastest<Composition>(problem, results, threads);
}

}  // namespace qkv::bench
