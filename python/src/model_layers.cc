// SPDX-License-Identifier: Apache-2.0
// Binds the layers Linear, Embedding and GRU.
#include <memory>
#include <optional>
#include <utility>

#include <qkv/layers.h>

#include "areas.h"
#include "arguments.h"
#include "call.h"
#include "errors.h"
#include "held_layer.h"
#include "layer_call.h"
#include "layer_pass.h"

namespace qkv::python {
namespace {

const Method kLinearForward{"Linear.forward", MethodArrays::kX};
const Method kLinearBackward{"Linear.backward", MethodArrays::kX};
const Method kEmbeddingForward{"Embedding.forward", MethodArrays::kX};
const Method kEmbeddingBackward{"Embedding.backward", MethodArrays::kX};
const Method kGruForward{"GRU.forward", MethodArrays::kX};
const Method kGruBackward{"GRU.backward", MethodArrays::kX};

// The shape with another size of its last axis; nothing if it has no axes.
std::optional<Dims> with_last(Dims shape, Index size) {
  if (shape.rank() == 0) return std::nullopt;
  shape[shape.rank() - 1] = size;
  return shape;
}
// The shape with a further axis at the end; nothing if the rank would exceed kMaxRank.
std::optional<Dims> with_one_more(Dims shape, Index size) {
  if (shape.rank() == kMaxRank) return std::nullopt;
  shape.push_back(size);
  return shape;
}

template <class L>
double count_of_parameters(const L& layer) {
  return static_cast<double>(parameter_count(layer));
}

// Returns the gradients of a layer's parameters by name, filled by backward(gradients, context).
template <class L, class F>
nb::dict parameter_gradients(const L& layer, int threads, double work, const F& backward) {
  const auto gradients = std::make_shared<typename L::Parameters>(layer.zero_gradients());
  run_call(threads, 2 * work, [&](Context& context) { backward(*gradients, context); });
  return arrays_of(parameter_list(*gradients), gradients);
}

// ---- linear ---------------------------------------------------------------------------------

class BoundLinear {
 public:
  explicit BoundLinear(Linear layer) : layer_(std::move(layer)) {}
  const HeldLayer<Linear>& held() const { return layer_; }

  nb::object forward(nb::handle x, nb::handle threads) {
    return as_method(kLinearForward, [&] {
      return passes_.run([&](Pass& pass) {
        const char* const function = kLinearForward.name.c_str();
        pass.array = array_of(x, {function, "x", kLayerReals});
        pass.like = nb::borrow(x);
        const ConstView& from = pass.array.view;
        const Tensor& weight = layer_->parameters().weight;
        const ResultMaker maker(x);
        View y;
        const nb::object made =
            make_result(maker, weight.dtype(), with_last(from.shape(), weight.size(0)), y);
        pass.work = count_of(from) * static_cast<double>(weight.size(0));
        run_call(threads_of(function, threads), pass.work,
                 [&](Context& context) { layer_->forward(from, pass.saved, y, context); });
        return maker.finish(made);
      });
    });
  }

  // Returns (dx, gradients of the parameters by name).
  nb::tuple backward(nb::handle dout, nb::handle threads) {
    return as_method(kLinearBackward, [&] {
      const char* const function = kLinearBackward.name.c_str();
      const auto pass = last_pass(passes_, function);
      const Array dy = array_of(dout, {function, "dout", kLayerReals});
      const ResultMaker maker(pass->like);
      View dx;
      const nb::object made = maker.make(pass->saved.x.dtype(), pass->saved.x.shape(), dx);
      const nb::dict gradients = parameter_gradients(
          *layer_, threads_of(function, threads), pass->work, [&](auto& d, Context& context) {
            layer_->backward(pass->saved, dy.view, dx, d, Write::kOverwrite, context);
          });
      return nb::make_tuple(maker.finish(made), gradients);
    });
  }

 private:
  using Pass = LayerPass<Linear>;
  HeldLayer<Linear> layer_;
  Passes<Pass> passes_;
};

void make_linear(BoundLinear* self, nb::handle in, nb::handle out, nb::handle bias,
                 nb::handle dtype) {
  constexpr const char* kName = "Linear";
  const Index width = index_of(in, {kName, "in_features"});
  const Index outputs = index_of(out, {kName, "out_features"});
  try {
    new (self) BoundLinear(
        Linear(width, outputs, flag_of(bias, {kName, "bias"}), layer_dtype(kName, dtype)));
  } catch (const Error& error) {
    throw with_names(error, kName,
                     {{"in", "in_features"},
                      {"out", "out_features"},
                      {"in or out", "in_features or out_features"}});
  }
}

// ---- embedding ------------------------------------------------------------------------------

class BoundEmbedding {
 public:
  explicit BoundEmbedding(Embedding layer) : layer_(std::move(layer)) {}
  const HeldLayer<Embedding>& held() const { return layer_; }

  nb::object forward(nb::handle ids, nb::handle threads) {
    return as_method(kEmbeddingForward, [&] {
      return passes_.run([&](Pass& pass) {
        const char* const function = kEmbeddingForward.name.c_str();
        const Integers array = integers_of(ids, {function, "ids"});
        const ResultMaker maker(ids);
        View out;
        const nb::object made =
            make_result(maker, layer_->parameters().weight.dtype(),
                        with_one_more(array.view.shape(), layer_->width()), out);
        pass.work = count_of(array.view) * static_cast<double>(layer_->width());
        run_call(threads_of(function, threads), pass.work,
                 [&](Context& context) { layer_->forward(array.view, pass.saved, out, context); });
        return maker.finish(made);
      });
    });
  }

  // Returns the gradients of the parameters by name.
  nb::dict backward(nb::handle dout, nb::handle threads) {
    return as_method(kEmbeddingBackward, [&] {
      const char* const function = kEmbeddingBackward.name.c_str();
      const auto pass = last_pass(passes_, function);
      const Array array = array_of(dout, {function, "dout", kLayerReals});
      return parameter_gradients(
          *layer_, threads_of(function, threads), pass->work, [&](auto& d, Context& context) {
            layer_->backward(pass->saved, array.view, d, Write::kOverwrite, context);
          });
    });
  }

 private:
  using Pass = LayerPass<Embedding>;
  HeldLayer<Embedding> layer_;
  Passes<Pass> passes_;
};

void make_embedding(BoundEmbedding* self, nb::handle tokens, nb::handle width, nb::handle padding,
                    nb::handle dtype) {
  constexpr const char* kName = "Embedding";
  const Index count = index_of(tokens, {kName, "num_embeddings"});
  const Index channels = index_of(width, {kName, "embedding_dim"});
  std::optional<Index> without_gradient;
  if (!padding.is_none()) {
    const Index given = index_of(padding, {kName, "padding_idx"});
    without_gradient = given < 0 && given >= -count ? given + count : given;
  }
  try {
    new (self)
        BoundEmbedding(Embedding(count, channels, without_gradient, layer_dtype(kName, dtype)));
  } catch (const Error& error) {
    throw with_names(error, kName,
                     {{"tokens", "num_embeddings"},
                      {"width", "embedding_dim"},
                      {"tokens or width", "num_embeddings or embedding_dim"},
                      {"padding", "padding_idx"}});
  }
}

// ---- GRU ------------------------------------------------------------------------------------

// A view of x with a further axis, of size 1, before `axis`; an absent view stays absent.
template <class AnyView>
AnyView with_one(const AnyView& x, int axis) {
  if (!x.given()) return x;
  Dims shape, strides;
  for (int n = 0; n <= x.rank(); ++n) {
    if (n == axis) {
      shape.push_back(1);
      strides.push_back(0);
    }
    if (n == x.rank()) break;
    shape.push_back(x.size(n));
    strides.push_back(x.stride(n));
  }
  return AnyView(x.data(), x.dtype(), shape, strides);
}

// For a call whose x has no batch axis: throws Error unless `array` has 2 axes or is absent.
void expect_no_batch(const Name& name, const ConstView& array) {
  if (!array.given() || array.rank() == 2) return;
  throw_value_error(name, "must have 2 axes, as x has no batch axis, got " + qkv::describe(array));
}

class BoundGru {
 public:
  explicit BoundGru(GruStack layer) : layer_(std::move(layer)) {}
  const HeldLayer<GruStack>& held() const { return layer_; }

  // Returns (out, state after the last step).
  nb::tuple forward(nb::handle x, nb::handle valid_len, nb::handle state, nb::handle threads) {
    return as_method(kGruForward, [&] {
      return passes_.run([&](Pass& pass) {
        const char* const function = kGruForward.name.c_str();
        const Array sequences = array_of(x, {function, "x", kLayerReals});
        const Integers lengths = integers_of(valid_len, {function, "valid_len"});
        const Array first = array_of(state, {function, "state", kLayerReals});
        pass.like = nb::borrow(x);
        const GruConfig& config = layer_->config();
        const bool batch = sequences.view.rank() != 2;
        const ConstView from = batch ? sequences.view : with_one(sequences.view, 0);
        if (sequences.view.rank() < 2 || sequences.view.rank() > 3 ||
            (!batch && sequences.view.size(1) != config.input)) {
          const std::string width = std::to_string(config.input);
          throw_value_error({function, "x"}, "must have the shape [B,T," + width + "] or [T," +
                                                 width + "], got " + qkv::describe(sequences.view));
        }
        if (!batch) expect_no_batch({function, "state"}, first.view);
        const Index states = layer_->layers() * layer_->directions();
        const Index width = layer_->directions() * config.hidden;
        std::optional<Dims> out_shape;
        std::optional<Dims> state_shape;
        if (from.rank() == 3) {
          out_shape = batch ? Dims(from.size(0), from.size(1), width) : Dims(from.size(1), width);
          state_shape =
              batch ? Dims(states, from.size(0), config.hidden) : Dims(states, config.hidden);
        }
        const ResultMaker maker(x);
        GruOutputs outputs;
        const nb::object out = make_result(maker, config.dtype, out_shape, outputs.out);
        const nb::object last = make_result(maker, config.dtype, state_shape, outputs.state);
        const ConstView before = batch ? first.view : with_one(first.view, 1);
        if (!batch) {
          outputs.out = with_one(outputs.out, 0);
          outputs.state = with_one(outputs.state, 1);
        }
        pass.batch = batch;
        pass.work =
            count_of(from) / static_cast<double>(config.input) * count_of_parameters(*layer_);
        run_call(threads_of(function, threads), pass.work, [&](Context& context) {
          layer_->forward({from, lengths.view, before}, pass.saved, outputs, context);
        });
        return nb::make_tuple(maker.finish(out), maker.finish(last));
      });
    });
  }

  // Returns (dx, gradient of the initial state, gradients of the parameters by name).
  nb::tuple backward(nb::handle dout, nb::handle dstate, nb::handle threads) {
    return as_method(kGruBackward, [&] {
      const char* const function = kGruBackward.name.c_str();
      const auto pass = last_pass(passes_, function);
      const Array of_out = array_of(dout, {function, "dout", kLayerReals});
      const Array of_state = array_of(dstate, {function, "dstate", kLayerReals});
      if (!of_out.view.given() && !of_state.view.given()) {
        throw_value_error({function, "dout"}, "and dstate are None: at least one must be given");
      }
      const Tensor& x = pass->saved.layers[0].x;
      const GruConfig& config = layer_->config();
      const ResultMaker maker(pass->like);
      GruInputGradients to;
      const Index states = layer_->layers() * layer_->directions();
      const bool batch = pass->batch;
      const nb::object dx =
          maker.make(config.dtype, batch ? x.shape() : Dims(x.size(1), x.size(2)), to.x);
      const nb::object first = maker.make(
          config.dtype,
          batch ? Dims(states, x.size(0), config.hidden) : Dims(states, config.hidden), to.state);
      ConstView from_out = of_out.view, from_state = of_state.view;
      if (!batch) {
        expect_no_batch({function, "dout"}, from_out);
        expect_no_batch({function, "dstate"}, from_state);
        to.x = with_one(to.x, 0);
        to.state = with_one(to.state, 1);
        from_out = with_one(from_out, 0);
        from_state = with_one(from_state, 1);
      }
      const nb::dict gradients = parameter_gradients(
          *layer_, threads_of(function, threads), pass->work, [&](auto& d, Context& context) {
            layer_->backward(pass->saved, {from_out, from_state}, to, d, context);
          });
      return nb::make_tuple(maker.finish(dx), maker.finish(first), gradients);
    });
  }

 private:
  struct Pass : LayerPass<GruStack> {
    bool batch = true;  // false if x has no batch axis
  };
  HeldLayer<GruStack> layer_;
  Passes<Pass> passes_;
};

void make_gru(BoundGru* self, nb::handle input, nb::handle hidden, nb::handle bias,
              nb::handle bidirectional, nb::handle dtype, nb::handle num_layers) {
  constexpr const char* kName = "GRU";
  GruConfig config;
  config.input = index_of(input, {kName, "input_size"});
  config.hidden = index_of(hidden, {kName, "hidden_size"});
  config.bias = flag_of(bias, {kName, "bias"});
  config.bidirectional = flag_of(bidirectional, {kName, "bidirectional"});
  config.dtype = layer_dtype(kName, dtype);
  try {
    new (self) BoundGru(GruStack(config, index_of(num_layers, {kName, "num_layers"})));
  } catch (const Error& error) {
    throw with_names(error, kName,
                     {{"input", "input_size"},
                      {"layers", "num_layers"},
                      {"hidden", "hidden_size"},
                      {"input or hidden", "input_size or hidden_size"}});
  }
}

}  // namespace

void bind_model_layers(nb::module_& module) {
  const auto any = [] { return nb::arg().none(); };
  nb::class_<BoundLinear> linear(module, "Linear");
  linear.def("__init__", make_linear, any(), any(), any(), any())
      .def("forward", &BoundLinear::forward, any(), any())
      .def("backward", &BoundLinear::backward, any(), any());
  bind_parameters(linear);
  nb::class_<BoundEmbedding> embedding(module, "Embedding");
  embedding.def("__init__", make_embedding, any(), any(), any(), any())
      .def("forward", &BoundEmbedding::forward, any(), any())
      .def("backward", &BoundEmbedding::backward, any(), any());
  bind_parameters(embedding);
  nb::class_<BoundGru> gru(module, "GRU");
  gru.def("__init__", make_gru, any(), any(), any(), any(), any(), any())
      .def("forward", &BoundGru::forward, any(), any(), any(), any())
      .def("backward", &BoundGru::backward, any(), any(), any());
  bind_parameters(gru);
}

}  // namespace qkv::python
