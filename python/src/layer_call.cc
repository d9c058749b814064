// SPDX-License-Identifier: Apache-2.0
#include "layer_call.h"

#include <algorithm>
#include <array>

#include "arguments.h"

namespace qkv::python {
namespace {

Inputs self_inputs(const Inputs& inputs) { return {inputs.q, inputs.q, inputs.q}; }

// A view with the shape that attention() gets inside the layer: [..,H,T,width] for x [..,T,.], and
// [1,H,T,width] for x [T,.]. Only its shape is used; `more_rows` is added to T.
ConstView with_heads(const ConstView& x, Index heads, Index width, Index more_rows = 0) {
  Dims shape;
  if (x.rank() == 2) shape.push_back(1);
  for (int axis = 0; axis < x.rank() - 2; ++axis) shape.push_back(x.size(axis));
  shape.push_back(heads);
  shape.push_back(x.size(-2) + more_rows);
  shape.push_back(width);
  Dims strides;
  for (int axis = 0; axis < shape.rank(); ++axis) strides.push_back(0);
  return {x.data(), x.dtype(), shape, strides};
}

bool may_have_heads(const ConstView& x) { return x.rank() >= 2 && x.rank() < kMaxRank; }

std::optional<ResultShapes> accepted_shapes(const Inputs& inputs) {
  try {
    return result_shapes(inputs);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

Error in_words_of(const Method& method, const Error& error) {
  std::string detail = error.what();
  detail.erase(0, std::min(detail.size(), error.function().size() + 2 +  // ": "
                                              error.argument().size() + 1));
  std::string argument = error.argument();
  if (argument == "q" && method.arrays == MethodArrays::kX) argument = "x";
  return {method.name, argument, detail, error.kind()};
}

CallArguments layer_arguments(const Method& method, const nb::tuple& arrays,
                              const nb::tuple& options) {
  if (nb::len(arrays) != 3)
    throw nb::type_error("qkv: the package and its extension are of different versions (arrays)");
  const char* const function = method.name.c_str();
  CallArguments call = call_arguments(function, nb::object(arrays[0]), nb::object(arrays[1]),
                                      nb::object(arrays[2]), options);
  const std::array<ConstView, 3> views{call.inputs.q, call.inputs.k, call.inputs.v};
  constexpr std::array kNames = {"q", "k", "v"};
  const std::size_t needed = method.arrays == MethodArrays::kX ? 1 : views.size();
  for (std::size_t n = 0; n < needed; ++n) {
    if (!views[n].given()) throw_value_error({function, kNames[n]}, "must be given, got None");
    if (views[n].dtype() == DType::kQ8) {
      throw_type_error({function, kNames[n]}, "must not be q8, got " + qkv::describe(views[n]));
    }
  }
  return call;
}

RunState run_of(const Method& method, const nb::tuple& mode, const std::optional<RunState>& last,
                double dropout) {
  if (nb::len(mode) != 2)
    throw nb::type_error("qkv: the package and its extension are of different versions (mode)");
  const char* const function = method.name.c_str();
  const nb::object train = mode[0], seed = mode[1];
  std::optional<RunState> run = last;
  if (!seed.is_none()) run = RunState{Mode::kTrain, seed_of(seed, {function, "seed"})};
  if (!flag_of(train, {function, "train"})) return {};
  if (!run && dropout > 0) {
    throw_value_error({function, "seed"},
                      "must be given with the first train=True: the layer drops weights");
  }
  RunState result = run.value_or(RunState{});
  result.mode = Mode::kTrain;
  return result;
}

DType layer_dtype(const char* layer, nb::handle dtype) {
  constexpr std::array kTypes = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                 DType::kBFloat16};
  for (const DType type : kTypes) {
    const std::string_view name = name_of(type);
    if (nb::isinstance<nb::str>(dtype) && dtype.equal(nb::str(name.data(), name.size()))) {
      return type;
    }
  }
  throw_type_error({layer, "dtype"}, "must be float32 or float64, got " + describe(dtype));
}

// ---- shapes ---------------------------------------------------------------------------------

std::optional<LayerShapes> shapes_of(const MultiHeadAttention& layer, const Inputs& inputs) {
  if (!may_have_heads(inputs.q) || !may_have_heads(inputs.k) || !may_have_heads(inputs.v)) {
    return std::nullopt;
  }
  const MultiHeadConfig& c = layer.config();
  const Index D = c.form == HeadForm::kSplit ? c.width / c.heads : c.width;
  const Index more = c.bias_kv ? 1 : 0;
  if (inputs.k.size(-2) != inputs.v.size(-2)) return std::nullopt;
  const auto results =
      accepted_shapes({with_heads(inputs.q, c.heads, D), with_heads(inputs.k, c.key_heads, D, more),
                       with_heads(inputs.v, c.key_heads, D, more)});
  if (!results) return std::nullopt;
  // The result has the leading axes before the head axis, or none if all inputs have rank 2.
  const bool batch = std::max({inputs.q.rank(), inputs.k.rank(), inputs.v.rank()}) > 2;
  Dims out;
  for (int axis = 0; batch && axis < results->rows.rank() - 2; ++axis) {
    out.push_back(results->rows[axis]);
  }
  out.push_back(inputs.q.size(-2));
  out.push_back(layer.config().width);
  return LayerShapes{out, *results};
}

std::optional<LayerShapes> shapes_of(const SelfAttention& /*layer*/, const Inputs& inputs) {
  const auto results = accepted_shapes(self_inputs(inputs));
  if (!results) return std::nullopt;
  return LayerShapes{results->out, *results};
}

LayerShapes shapes_of(const Inputs& inputs) {
  const ResultShapes results = result_shapes(inputs);
  return {results.out, results};
}

// ---- work -----------------------------------------------------------------------------------

double pair_work(const Inputs& inputs) { return 2 * static_cast<double>(inputs.q.size(-1)); }

double pair_work(const AdditiveAttention& layer) {
  return 10 * static_cast<double>(layer.parameters().v.element_count());
}

double pair_work(const MultiHeadAttention& layer) {
  return 2 * static_cast<double>(layer.parameters().q.weight.size(0));
}

}  // namespace qkv::python
