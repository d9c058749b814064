// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_LAYER_CALL_H_
#define QKV_PYTHON_SRC_LAYER_CALL_H_

#include <optional>
#include <string>

#include <nanobind/nanobind.h>

#include <qkv/layers.h>

#include "options.h"

// What the Python layers add to those of the library: the names and shapes of a call.
namespace qkv::python {

// The arrays that a method takes.
enum class MethodArrays { kQueriesKeysValues, kX };

// A method, for messages: "SelfAttention.forward".
struct Method {
  std::string name;
  MethodArrays arrays = MethodArrays::kQueriesKeysValues;
};

// An error of the library or of an argument, with the method's names.
Error in_words_of(const Method& method, const Error& error);

// Calls f(); errors are thrown with the method's names.
template <class F>
auto as_method(const Method& method, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw in_words_of(method, error);
  }
}

// `arrays` is (q, k, v), or (x, None, None) for SelfAttention; `options` are those of qkv.attention
// (see _layer.py), of which layers use masks, the diagonal and bias.
CallArguments layer_arguments(const Method& method, const nanobind::tuple& arrays,
                              const nanobind::tuple& options);

// The run of a forward pass. `mode` is (train, seed): a seed restarts at step 0; without one the
// run continues from `last`.
RunState run_of(const Method& method, const nanobind::tuple& mode,
                const std::optional<RunState>& last, double dropout);

// The requested dtype of a layer, by name.
DType layer_dtype(const char* layer, nanobind::handle dtype);

// ---- shapes ---------------------------------------------------------------------------------

struct LayerShapes {
  Dims out;
  ResultShapes results;
};
// Absent for inputs that the layer rejects with an explanation.
std::optional<LayerShapes> shapes_of(const MultiHeadAttention& layer, const Inputs& inputs);
std::optional<LayerShapes> shapes_of(const SelfAttention& layer, const Inputs& inputs);
// For layers that are one call of attention(). Throws Error.
LayerShapes shapes_of(const Inputs& inputs);

// ---- work -----------------------------------------------------------------------------------

// Multiply-adds for one query and one key, roughly.
double pair_work(const Inputs& inputs);
double pair_work(const AdditiveAttention& layer);
double pair_work(const MultiHeadAttention& layer);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_LAYER_CALL_H_
