// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_ATTENTION_H_
#define QKV_PYTHON_SRC_ATTENTION_H_

#include <functional>
#include <vector>

#include <qkv/attention.h>

#include "arrays.h"
#include "options.h"
#include "results.h"

namespace qkv::python {

// The results of a forward pass besides `out`: buffers in `outputs`, arrays for Python in order.
class Extras {
 public:
  // The tuple `wanted` has the arguments of qkv.attention from `return_weights` to `rows`, in
  // order, and the function that builds the result from names and values (see _functions.py).
  Extras(const char* function, const nb::tuple& wanted, const ResultMaker& maker);
  // Makes the requested buffers and sets them in `outputs`. `sequences`: how many, if packed.
  void make(const ResultShapes& shapes, Index sequences, DType q, Outputs& outputs);
  // Once all are filled: `first` (out as returned by the maker; may be invalid) alone, or with the
  // requested results.
  nb::object with(const nb::object& first) const;
  // The queries whose rows matrices contain; absent for all.
  const Array& rows() const { return rows_; }

 private:
  nb::handle at(int place) const { return PyTuple_GET_ITEM(wanted_.ptr(), place); }
  void add(const char* name, DType dtype, const Dims& shape, View& view);
  void add_matrix(const char* name, DType dtype, const Dims& shape, Rows& rows);
  void make_weights(const Dims& shape, DType dtype, Outputs& outputs);
  void make_scores(const Dims& shape, DType dtype, Outputs& outputs);
  void make_column_sums(const Dims& keys, DType dtype, Outputs& outputs);
  void make_top(const Dims& rows, DType dtype, Outputs& outputs);
  void make_pooled(const ResultShapes& shapes, Index sequences, DType dtype, Outputs& outputs);

  const char* function_;
  const nb::tuple& wanted_;
  const ResultMaker& maker_;
  Array rows_;
  Array column_rows_;  // the queries of column_sums and value_sums
  std::vector<const char*> names_;
  std::vector<nb::object> results_;  // as returned by the maker
  std::size_t top_ = 0;  // if not 0, one after the weights of the top, a pair with the keys
};

// Makes the results of a call, of the type of `like`, has run(work, outputs) fill them and returns
// them to Python. `wanted` as in Extras.
nb::object attend(const char* function, const CallArguments& call, nb::handle like,
                  const nb::tuple& wanted,
                  const std::function<void(double work, const Outputs&)>& run);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_ATTENTION_H_
