// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PRODUCT_H_
#define QKV_BENCH_PRODUCT_H_

#include <string>

#include <qkv/layers/linear.h>
#include <qkv/tensor.h>

namespace qkv::bench {

// The result of a product of a layer y = x W^T + b.
enum class Gives {
  kOutput,          // y = x W^T + b
  kInputGradient,   // dx = dy W
  kWeightGradient,  // dW = dy^T x
};

// A product with its memory: x [rows,in], W [out,in], b [out], dy [rows,out], float32, random; the
// results have variance 1.
struct Product {
  Gives gives = Gives::kOutput;
  Index rows = 0;
  Index in = 0;
  Index out = 0;
  Linear layer{1, 1};
  Tensor x{};
  Tensor dy{};
  Tensor result{};                 // y or dx
  Linear::Parameters gradients{};  // dW alone

  Product(Gives which, Index row_count, Index inputs, Index outputs);
  View to() { return gives == Gives::kWeightGradient ? gradients.weight.view() : result.view(); }
};

// Floating-point operations: two for each multiply-add.
double work_of(const Product& product);

// Runs it with the layer, into to().
void run(Product& product, Context& context);

// Compares some rows of a result, the first and the last among them, with the path "reference".
// Returns the first difference, or "".
std::string fault_of(const Product& product, const ConstView& result);

}  // namespace qkv::bench

#endif  // QKV_BENCH_PRODUCT_H_
