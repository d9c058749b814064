// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_LAYER_CALL_H_
#define QKV_PYTHON_SRC_LAYER_CALL_H_

#include <optional>
#include <string>

#include <nanobind/nanobind.h>

#include <qkv/layers.h>

#include "options.h"

// Calls of layers from Python: the words of errors, the arguments, and the shapes of results.
namespace qkv::python {

// The arrays that a method takes.
enum class MethodArrays { kQueriesKeysValues, kX };

// A method of a layer, as messages name it: "SelfAttention.forward".
struct Method {
  std::string name;
  MethodArrays arrays = MethodArrays::kQueriesKeysValues;
};

// Returns the error with the method's name as its function, and with "x" in place of the argument
// "q" if the method takes x.
Error in_words_of(const Method& method, const Error& error);

// Returns f(); its errors are thrown as in_words_of() gives them.
template <class F>
auto as_method(const Method& method, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw in_words_of(method, error);
  }
}

// Reads the arguments of a forward pass. `arrays` is (q, k, v), or (x, None, None) for
// SelfAttention; `options` is the tuple of qkv.attention's options (see _layer.py), of which layers
// use the masks, score_mod, the diagonal and bias.
CallArguments layer_arguments(const Method& method, const nanobind::tuple& arrays,
                              const nanobind::tuple& options);

// The mode, seed and step of a forward pass. `mode` is (train, seed): a seed starts at step 0; with
// None the run continues from `last`.
RunState run_of(const Method& method, const nanobind::tuple& mode,
                const std::optional<RunState>& last, double dropout);

// The DType that the argument `dtype` of the constructor of `layer` names. Throws Error.
DType layer_dtype(const char* layer, nanobind::handle dtype);

// ---- shapes ---------------------------------------------------------------------------------

struct LayerShapes {
  Dims out;
  ResultShapes results;
};
// The shapes of a layer's results; absent for inputs that the layer will reject with an error.
std::optional<LayerShapes> shapes_of(const MultiHeadAttention& layer, const Inputs& inputs);
std::optional<LayerShapes> shapes_of(const SelfAttention& layer, const Inputs& inputs);
// The shapes of results of layers that are one call of attention(). Throws Error.
LayerShapes shapes_of(const Inputs& inputs);

// ---- work -----------------------------------------------------------------------------------

// An estimate of the multiply-adds for one query-key pair.
double pair_work(const Inputs& inputs);
double pair_work(const AdditiveAttention& layer);
double pair_work(const MultiHeadAttention& layer);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_LAYER_CALL_H_
