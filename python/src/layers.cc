// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <nanobind/stl/pair.h>

#include "areas.h"
#include "bound_layer.h"

namespace qkv::python {
namespace {

constexpr const char* kDot = "DotProductAttention";
constexpr const char* kAdditive = "AdditiveAttention";
constexpr const char* kBilinear = "BilinearAttention";
constexpr const char* kSelf = "SelfAttention";
constexpr const char* kMultiHead = "MultiHeadAttention";

template <class L>
nb::class_<BoundLayer<L>> bind_layer(nb::module_& module, const char* name) {
  using Layer = BoundLayer<L>;
  nb::class_<Layer> layer(module, name);
  layer
      .def("forward", &Layer::forward, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
      .def("backward", &Layer::backward, nb::arg(), nb::arg().none())
      .def("dropout", &Layer::dropout)
      .def("run", &Layer::run)
      .def("set_run", &Layer::set_run, nb::arg().none());
  bind_parameters(layer);
  return layer;
}

void make_dot(BoundLayer<DotProductAttention>* self, nb::handle dropout) {
  const double p = number_of(dropout, {kDot, "dropout"});
  new (self) BoundLayer<DotProductAttention>(kDot, DotProductAttention(p), p);
}

void make_additive(BoundLayer<AdditiveAttention>* self, nb::handle query_width,
                   nb::handle key_width, nb::handle units, nb::handle dropout, nb::handle dtype) {
  const double p = number_of(dropout, {kAdditive, "dropout"});
  AdditiveAttention layer(index_of(query_width, {kAdditive, "query_width"}),
                          index_of(key_width, {kAdditive, "key_width"}),
                          index_of(units, {kAdditive, "units"}), p, layer_dtype(kAdditive, dtype));
  new (self) BoundLayer<AdditiveAttention>(kAdditive, std::move(layer), p);
}

void make_bilinear(BoundLayer<BilinearAttention>* self, nb::handle query_width,
                   nb::handle key_width, nb::handle dropout, nb::handle dtype) {
  const double p = number_of(dropout, {kBilinear, "dropout"});
  BilinearAttention layer(index_of(query_width, {kBilinear, "query_width"}),
                          index_of(key_width, {kBilinear, "key_width"}), p,
                          layer_dtype(kBilinear, dtype));
  new (self) BoundLayer<BilinearAttention>(kBilinear, std::move(layer), p);
}

void make_self(BoundLayer<SelfAttention>* self, nb::handle width, nb::handle dtype) {
  SelfAttention layer(index_of(width, {kSelf, "width"}), layer_dtype(kSelf, dtype));
  new (self) BoundLayer<SelfAttention>(kSelf, std::move(layer), 0);
}

void make_multi_head(BoundLayer<MultiHeadAttention>* self, nb::handle width, nb::handle heads,
                     nb::handle form, nb::handle dropout, nb::handle dtype, nb::handle bias,
                     nb::handle key_width, nb::handle value_width, nb::handle key_heads,
                     nb::handle sinks, nb::handle bias_kv, nb::handle zero_attn) {
  MultiHeadConfig config;
  config.width = index_of(width, {kMultiHead, "width"});
  config.heads = index_of(heads, {kMultiHead, "heads"});
  config.form = word_of(form, {kMultiHead, "form"}, {"split", "wide"}) == 0 ? HeadForm::kSplit
                                                                            : HeadForm::kWide;
  if (!dropout.is_none()) config.dropout = number_of(dropout, {kMultiHead, "dropout"});
  config.dtype = layer_dtype(kMultiHead, dtype);
  config.bias = flag_of(bias, {kMultiHead, "bias"});
  const auto size = [](nb::handle given, const char* name) {
    if (given.is_none()) return Index{0};
    const Index count = index_of(given, {kMultiHead, name});
    if (count == 0) throw_value_error({kMultiHead, name}, "must be 1 or more, got 0");
    return count;
  };
  config.key_width = size(key_width, "key_width");
  config.value_width = size(value_width, "value_width");
  config.key_heads = size(key_heads, "key_heads");
  config.sinks = flag_of(sinks, {kMultiHead, "sinks"});
  config.bias_kv = flag_of(bias_kv, {kMultiHead, "bias_kv"});
  config.zero_attn = flag_of(zero_attn, {kMultiHead, "zero_attn"});
  MultiHeadAttention layer(config);
  const double p = layer.config().dropout.value_or(0);
  new (self) BoundLayer<MultiHeadAttention>(kMultiHead, std::move(layer), p);
}

}  // namespace

void bind_layers(nb::module_& module) {
  const auto any = [] { return nb::arg().none(); };
  bind_layer<DotProductAttention>(module, kDot).def("__init__", make_dot, any());
  bind_layer<AdditiveAttention>(module, kAdditive)
      .def("__init__", make_additive, any(), any(), any(), any(), any());
  bind_layer<BilinearAttention>(module, kBilinear)
      .def("__init__", make_bilinear, any(), any(), any(), any());
  bind_layer<SelfAttention>(module, kSelf).def("__init__", make_self, any(), any());
  bind_layer<MultiHeadAttention>(module, kMultiHead)
      .def("__init__", make_multi_head, any(), any(), any(), any(), any(), any(), any(), any(),
           any(), any(), any(), any());
}

}  // namespace qkv::python
