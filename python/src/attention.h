// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_ATTENTION_H_
#define QKV_PYTHON_SRC_ATTENTION_H_

#include <array>
#include <functional>
#include <string_view>
#include <vector>

#include <qkv/attention.h>

#include "arrays.h"
#include "options.h"
#include "results.h"

namespace qkv::python {

// The list of Python's arguments that request results, in the order in which Python takes them
// (_core.REQUESTS) and returns the results. The last one names the queries of the matrices' rows.
inline constexpr std::array<const char*, 10> kRequests = {
    "return_weights", "return_scores",  "return_lse",        "return_row_max", "return_column_sums",
    "return_top",     "return_entropy", "return_value_sums", "return_pooled",  "rows"};

// Whether the request is "return_" and this name.
constexpr bool is_request_for(std::string_view request, std::string_view name) {
  constexpr std::string_view kStart = "return_";
  return request.starts_with(kStart) && request.substr(kStart.size()) == name;
}

// The argument that requests a result: "return_" and its name; "return_weights" and
// "return_scores" for matrices.
template <class Member>
constexpr std::string_view request_of(const Result<Member>& result) {
  const bool matrix = result.axes == ResultAxes::kMatrix;
  const std::string_view tail = !matrix                            ? result.name
                                : result.name.ends_with("weights") ? "weights"
                                                                   : "scores";
  for (const std::string_view request : kRequests) {
    if (is_request_for(request, tail)) return request;
  }
  return {};
}

// The results of a forward pass besides `out`: the buffers that the pass fills, and their arrays in
// the order in which Python gets them.
class Extras {
 public:
  // The tuple `wanted` has the arguments in kRequests, and the function that builds the result from
  // names and values (see _results.py).
  Extras(const char* function, const nb::tuple& wanted, const ResultMaker& maker);
  // Makes the requested buffers and sets them in `outputs`. `sequences` is the number of packed
  // sequences, or -1.
  void make(const ResultShapes& shapes, Index sequences, DType q, Outputs& outputs);
  // The object to return to Python once all buffers are filled: `first` (out as returned by the
  // maker; may be invalid) alone, or a named tuple of it and the requested results.
  nb::object with(const nb::object& first) const;
  // The queries whose rows matrices contain; absent for all.
  const Array& rows() const { return rows_; }

 private:
  // An element of `wanted` by its index.
  nb::handle at(std::size_t place) const {
    return NB_TUPLE_GET_ITEM(wanted_.ptr(), static_cast<Py_ssize_t>(place));
  }
  void add(const char* name, DType dtype, const Dims& shape, View& view);
  void add_matrix(const char* name, DType dtype, const Dims& shape, Rows& rows);
  template <std::size_t place>
  void make_request(const ResultShapes& shapes, Index sequences, DType dtype, Outputs& outputs);
  void make_weights(const Dims& shape, DType dtype, Outputs& outputs);
  void make_scores(const Dims& shape, DType dtype, Outputs& outputs);
  void make_column_sums(const Dims& keys, DType dtype, Outputs& outputs);
  void make_top(const Dims& rows, DType dtype, Outputs& outputs);
  void make_pooled(const ResultShapes& shapes, Index sequences, DType dtype, Outputs& outputs);

  const char* function_;
  const nb::tuple& wanted_;
  const ResultMaker& maker_;
  Array rows_;
  Array column_rows_;  // the listed queries over which column sums are taken
  std::vector<const char*> names_;
  std::vector<nb::object> results_;  // as returned by the maker
  std::size_t top_ = 0;  // the index in results_ of the keys of `top`; 0 if there are none
};

// Makes the results of a call, of the type of `like`, has run(work, outputs) fill them and returns
// them to Python. `wanted` is as in Extras.
nb::object attend(const char* function, const CallArguments& call, nb::handle like,
                  const nb::tuple& wanted,
                  const std::function<void(double work, const Outputs&)>& run);

// The shapes of the results of a call. Throws Error for invalid inputs.
ResultShapes shapes_of(const char* function, const CallArguments& call);

// attend() of arrays on a GPU: `make` is as in ResultMaker::on_device().
nb::object attend_on_device(const char* function, const CallArguments& call, nb::object make,
                            const nb::tuple& wanted,
                            const std::function<void(double work, const Outputs&)>& run);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_ATTENTION_H_
