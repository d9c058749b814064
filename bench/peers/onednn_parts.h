// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PEERS_ONEDNN_PARTS_H_
#define QKV_BENCH_PEERS_ONEDNN_PARTS_H_

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include <dnnl.hpp>
#include <omp.h>

#include "../measure.h"
#include "../problem.h"
#include "../session.h"

// The parts that the two passes and the products of layers share.
namespace qkv::bench {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;

inline constexpr auto kFloat = dnnl::memory::data_type::f32;

// A row-major matrix.
inline Desc rows_of(Index rows, Index columns) { return {{rows, columns}, kFloat, Tag::ab}; }
// A matrix in the order that the primitive prefers.
inline Desc any_of(Index rows, Index columns) { return {{rows, columns}, kFloat, Tag::any}; }
// A matrix that is stored as its row-major transpose.
inline Desc transposed_of(Index rows, Index columns) { return {{rows, columns}, kFloat, Tag::ba}; }

struct Sizes {
  Index Tq;
  Index Tk;
  Index D;
  Index block;  // query rows of a block
};

inline float scale_of(const Sizes& s) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(s.D)));
}

inline void reorder(dnnl::stream& stream, dnnl::memory& from, dnnl::memory& to) {
  dnnl::reorder(from, to).execute(stream, from, to);
  stream.wait();
}

// Threads that each run primitives of their own, since oneDNN's parallel products synchronise
// several times for each block.
class Threads {
 public:
  explicit Threads(int count)
      : executor_(count == 1 ? Executor() : Executor::threads(count)), count_(count) {}
  std::size_t count() const { return static_cast<std::size_t>(count_); }
  // Calls task(thread index) on each thread.
  template <class Task>
  void each(Task task) const {
    const auto body = [](void* state, Index n) {
      omp_set_num_threads(1);  // of this thread
      (*static_cast<Task*>(state))(static_cast<std::size_t>(n));
    };
    executor_.run(count_, body, &task);
  }

 private:
  Executor executor_;
  int count_;
};

// Binds a composition with the block of query rows that is fastest here, found by experiment.
template <class Composition>
std::function<void()> fastest(const Problem& problem, const std::vector<View>& results,
                              int threads) {
  std::shared_ptr<Composition> best;
  double best_time = std::numeric_limits<double>::infinity();
  for (const Index block : {16, 32, 64, 128, 256, 512, 1024, 2048}) {
    if (problem.shape.Tq % block != 0) continue;
    const auto candidate = std::make_shared<Composition>(problem, results, threads, block);
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

// The backward pass of problems that onednn_peer() supports.
std::function<void()> bind_backward(const Problem& problem, const std::vector<View>& results,
                                    int threads);

// The variants of a layer's product on one thread, by the order of the right side: as it is
// ("plain"), reordered for the primitive in each run ("blocked"), or reordered before ("packed",
// only for weights).
std::vector<Way> bind_product(const Product& product, const View& result, int threads);

}  // namespace qkv::bench

#endif  // QKV_BENCH_PEERS_ONEDNN_PARTS_H_
