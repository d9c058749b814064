// SPDX-License-Identifier: Apache-2.0
// The matrix products of linear layers, computed by oneDNN's matmul.
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "onednn_parts.h"

namespace qkv::bench {
namespace {

// The operands of a matrix product c = a b (+ bias), in the memory layout of the layer's arrays.
struct Operands {
  Desc a, b, c;
  std::optional<Desc> bias{};  // [1,columns]
  const void* a_data = nullptr;
  const void* b_data = nullptr;
  const void* bias_data = nullptr;
};

Operands operands_of(const Product& p) {
  const Tensor& w = p.layer.parameters().weight;
  const Tensor& bias = p.layer.parameters().bias;
  switch (p.gives) {
    case Gives::kOutput:
      return {rows_of(p.rows, p.in), transposed_of(p.in, p.out), rows_of(p.rows, p.out),
              rows_of(1, p.out),     p.x.view().data(),          w.view().data(),
              bias.view().data()};
    case Gives::kInputGradient:
      return {.a = rows_of(p.rows, p.out),
              .b = rows_of(p.out, p.in),
              .c = rows_of(p.rows, p.in),
              .a_data = p.dy.view().data(),
              .b_data = w.view().data()};
    case Gives::kWeightGradient:
      break;
  }
  return {.a = transposed_of(p.out, p.rows),
          .b = rows_of(p.rows, p.in),
          .c = rows_of(p.out, p.in),
          .a_data = p.dy.view().data(),
          .b_data = p.x.view().data()};
}

// The memory order of b, and when b is reordered.
enum class Order {
  kPlain,    // b is used as it is
  kBlocked,  // each run reorders b for the primitive
  kPacked,   // b is reordered once, which is not timed
};

// A product c = a b (+ bias) with b in one of the orders.
class OneProduct {
 public:
  OneProduct(const Operands& o, float* result, Order order)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        order_(order),
        primitive_(primitive_of(engine_, o, order)),
        product_(primitive_),
        plain_b_(o.b, engine_, const_cast<void*>(o.b_data)),
        b_(order == Order::kPlain ? plain_b_ : dnnl::memory(primitive_.weights_desc(), engine_)) {
    arguments_ = {{DNNL_ARG_SRC, dnnl::memory(o.a, engine_, const_cast<void*>(o.a_data))},
                  {DNNL_ARG_WEIGHTS, b_},
                  {DNNL_ARG_DST, dnnl::memory(o.c, engine_, result)}};
    if (o.bias) {
      arguments_.insert(
          {DNNL_ARG_BIAS, dnnl::memory(*o.bias, engine_, const_cast<void*>(o.bias_data))});
    }
    if (order == Order::kPacked) reorder(stream_, plain_b_, b_);
  }

  void run() {
    omp_set_num_threads(1);
    if (order_ == Order::kBlocked) reorder(stream_, plain_b_, b_);
    product_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  static dnnl::matmul::primitive_desc primitive_of(const dnnl::engine& engine, const Operands& o,
                                                   Order order) {
    const Desc b = order == Order::kPlain ? o.b : any_of(o.b.dims()[0], o.b.dims()[1]);
    if (o.bias) return {{o.a, b, *o.bias, o.c}, engine};
    return {{o.a, b, o.c}, engine};
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  Order order_;
  dnnl::matmul::primitive_desc primitive_;
  dnnl::matmul product_;
  dnnl::memory plain_b_;
  dnnl::memory b_;
  std::unordered_map<int, dnnl::memory> arguments_{};
};

}  // namespace

std::vector<Way> bind_product(const Product& product, const View& result, int threads) {
  if (threads != 1) return {};
  std::vector<std::pair<const char*, Order>> orders = {{"plain", Order::kPlain},
                                                       {"blocked", Order::kBlocked}};
  // Operands of a weight gradient change in each training step, so b cannot be packed once.
  if (product.gives != Gives::kWeightGradient) orders.emplace_back("packed", Order::kPacked);
  std::vector<Way> ways;
  for (const auto& [form, order] : orders) {
    omp_set_num_threads(1);  // primitives are created for the current number of threads
    const auto one = std::make_shared<OneProduct>(operands_of(product), result.as<float>(), order);
    ways.push_back({form, [one] { one->run(); }});
  }
  return ways;
}

}  // namespace qkv::bench
