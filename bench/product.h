// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PRODUCT_H_
#define QKV_BENCH_PRODUCT_H_

#include <string>

#include <qkv/layers/linear.h>
#include <qkv/tensor.h>

namespace qkv::bench {

// The result that a product of a linear layer gives.
enum class Gives {
  kOutput,          // y = x W^T + b
  kInputGradient,   // dx = dy W
  kWeightGradient,  // dW = dy^T x
};

// A product of a linear layer with its memory: x [rows,in], W [out,in], b [out] and dy [rows,out]
// are random and float32. W is scaled such that dy W (for kInputGradient) or x W^T (else) has
// variance 1.
struct Product {
  Gives gives = Gives::kOutput;
  Index rows = 0;
  Index in = 0;
  Index out = 0;
  Linear layer{1, 1};
  Tensor x{};
  Tensor dy{};
  Tensor result{};                 // y or dx; empty for dW
  Linear::Parameters gradients{};  // has dW alone, and only for kWeightGradient

  Product(Gives which, Index row_count, Index inputs, Index outputs);
  // The array to which the product is written.
  View to() { return gives == Gives::kWeightGradient ? gradients.weight.view() : result.view(); }
};

// The floating-point operations of a product, two for each multiply-add.
double work_of(const Product& product);

// Computes a product by the library's layer and writes it to to().
void run(Product& product, Context& context);

// Compares some rows of a result, the first and the last among them, with the path "reference".
// Returns the first difference, or "".
std::string fault_of(const Product& product, const ConstView& result);

}  // namespace qkv::bench

#endif  // QKV_BENCH_PRODUCT_H_
