// SPDX-License-Identifier: Apache-2.0
#include "translator/passes/source_memory.h"

#include "translator/passes/attention_form.h"
#include "translator/passes/values.h"

namespace qkv::app {
namespace {

// A view of x [n,B,heads*D] as [B,heads,n,D].
template <class AnyView>
AnyView split_steps(const AnyView& x, Index heads) {
  const Index width = x.size(2) / heads;
  return AnyView(x.data(), x.dtype(), {x.size(1), heads, x.size(0), width},
                 {x.stride(1), width * x.stride(2), x.stride(0), x.stride(2)});
}

// A view of x [B,Ts,heads*D] as [B,heads,Ts,D].
template <class AnyView>
AnyView split_keys(const AnyView& x, Index heads) {
  return split_steps(permute(x, {1, 0, 2}), heads);
}

// A view of lse [1,B,heads] as [B,heads,1].
template <class AnyView>
AnyView lse_of(const AnyView& lse) {
  return permute(lse, {1, 2, 0});
}

Additive additive_score(const AdditiveAttention& layer) {
  const auto& p = layer.parameters();
  return {.wq = p.w_q, .wk = p.w_k, .v = p.v};
}

// Copies all parameters of a layer, or all their gradients.
template <class P>
void copy_parameters(const P& from, P& to) {
  for_each_parameter(from, to, [](const auto& p, Tensor& target) { copy(p.value, target); });
}

}  // namespace

Index head_count(const TranslatorConfig& config) {
  return form_of(config.attention).has_heads ? config.heads : 1;
}

Index context_width(const TranslatorConfig& config) {
  return form_of(config.attention).has_heads ? config.hidden : 2 * config.hidden;
}

SourceMemory::SourceMemory(const TranslatorConfig& config, const TranslatorLayers& layers,
                           const EncodedSources& sources, Index steps, Context& context)
    : config_(config),
      layers_(layers),
      sources_(sources),
      context_(context),
      keys_(sources.states),
      values_(sources.states) {
  if (has_no_attention()) return;
  project_keys(steps);
  if (steps == 0 || additive_steps_) return;
  const Index B = sources.states.size(0);
  by_step_.lse = Tensor(config.dtype, {steps, B, head_count(config)});
  if (!layers.merge) return;
  for (Tensor* tensor : {&by_step_.query, &by_step_.heads}) {
    *tensor = Tensor(config.dtype, {steps, B, config.hidden});
  }
}

void SourceMemory::allocate_gradients() {
  if (d_values_.given()) return;
  d_values_ = Tensor(config_.dtype, values_.shape());
  d_keys_ = Tensor(config_.dtype, keys_.shape());
  if (layers_.bilinear) d_bilinear_ = layers_.bilinear->zero_gradients();
  if (!layers_.merge) return;
  by_step_.d_query = Tensor(config_.dtype, by_step_.query.shape());
  by_step_.d_heads = Tensor(config_.dtype, by_step_.heads.shape());
}

void SourceMemory::project_keys(Index steps) {
  const ConstView& states = sources_.states;
  const auto project = [&](const Linear& layer, Linear::Saved& saved, Tensor& to, ConstView& use) {
    to = Tensor(config_.dtype, {states.size(0), states.size(1), config_.hidden});
    layer.forward(states, saved, to, context_);
    use = to;
  };
  if (layers_.key) project(*layers_.key, saved_key_, projected_keys_, keys_);
  if (layers_.value) project(*layers_.value, saved_value_, projected_values_, values_);
  if (layers_.merge) {
    query_.emplace(layers_.query->parameters(), context_);
    merge_.emplace(layers_.merge->parameters(), context_);
  }
  if (!layers_.additive) return;
  if (steps > 0) {
    const layers::StepSources sources{keys_, values_, sources_.lengths};
    additive_steps_.emplace(*layers_.additive, sources, steps, context_);
  } else {
    additive_.emplace(split_keys(keys_, 1), additive_score(*layers_.additive), context_);
  }
}

// Writes the context vectors of a model without attention: the encoder's last states of both
// directions, whatever the decoder's state.
void SourceMemory::copy_last_states(const View& seen) const {
  const Index H = config_.hidden;
  for (Index direction = 0; direction < 2; ++direction) {
    copy(entry(sources_.last, direction), slice(seen, 2, direction * H, (direction + 1) * H));
  }
}

Options SourceMemory::options() const {
  Options options;
  switch (config_.attention) {
    case TranslatorAttention::kAdditive:
      options.score = additive_score(*layers_.additive);
      break;
    case TranslatorAttention::kDot:
      options.score = Dot{};
      break;
    case TranslatorAttention::kScaledDot:
    case TranslatorAttention::kMultiHead:
      options.score = ScaledDot{};
      break;
    case TranslatorAttention::kBilinear:
      options.score = Bilinear{layers_.bilinear->parameters().w};
      break;
    case TranslatorAttention::kNone:
      break;  // nothing is scored
  }
  options.masks.emplace_back(KeyLengths{sources_.lengths});
  return options;
}

// The inputs of one attention call with queries q [n,B,.].
Inputs SourceMemory::inputs(const ConstView& q) const {
  const Index heads = head_count(config_);
  return {split_steps(q, heads), split_keys(keys_, heads), split_keys(values_, heads)};
}

void SourceMemory::attend(const ConstView& q, const View& out, const View& lse,
                          const View& weights) {
  Outputs outputs;
  outputs.out = split_steps(out, head_count(config_));
  outputs.lse = lse;
  if (weights.given()) outputs.weights = weights;
  if (additive_) {
    additive_->attention(inputs(q), options(), outputs);
  } else {
    qkv::attention(inputs(q), options(), outputs, context_);
  }
}

void SourceMemory::look(const ConstView& s, const View& seen, const View& weights) {
  if (has_no_attention()) return copy_last_states(seen);
  if (!merge_) return attend(s, seen, {}, weights);
  const Dims shape{s.size(0), s.size(1), config_.hidden};
  Tensor query(config_.dtype, shape);
  Tensor heads(config_.dtype, shape);
  query_->forward(s, query);
  attend(query, heads, {}, weights);
  merge_->forward(heads, seen);
}

void SourceMemory::look(Index step, const ConstView& s, const View& seen) {
  if (has_no_attention()) return copy_last_states(seen);
  if (additive_steps_) return additive_steps_->attend(step, s, seen);
  const View lse = lse_of(entry(by_step_.lse.view(), step));
  if (!merge_) return attend(s, seen, lse, {});
  const View query = entry(by_step_.query.view(), step);
  const View heads = entry(by_step_.heads.view(), step);
  query_->forward(s, query);
  attend(query, heads, lse, {});
  merge_->forward(heads, seen);
}

void SourceMemory::look_back(Index step, const ConstView& s, const ConstView& seen,
                             const ConstView& d_seen, const View& ds) {
  if (has_no_attention()) return;
  if (additive_steps_) return additive_steps_->undo(step, d_seen, ds);
  allocate_gradients();
  ConstView q = s;
  ConstView out = seen;
  ConstView d_out = d_seen;
  View dq = ds;
  if (merge_) {
    q = entry(by_step_.query.view(), step);
    out = entry(by_step_.heads.view(), step);
    dq = entry(by_step_.d_query.view(), step);
    d_out = entry(by_step_.d_heads.view(), step);
    merge_->backward_input(d_seen, entry(by_step_.d_heads.view(), step));
  }
  const Index heads = head_count(config_);
  InputGradients gradients;  // for the backward pass of attend()
  gradients.q = split_steps(dq, heads);
  gradients.v = split_keys(d_values_.view(), heads);
  gradients.write = Write::kAccumulate;
  gradients.k = split_keys(d_keys_.view(), heads);
  if (d_bilinear_) gradients.score = BilinearGradient{d_bilinear_->w};
  const qkv::Saved saved{split_steps(out, heads), lse_of(entry(by_step_.lse.view(), step))};
  attention_backward(inputs(q), options(), saved, {.out = split_steps(d_out, heads)}, gradients,
                     context_);
  if (merge_) query_->backward_input(dq, ds, Write::kAccumulate);
}

void SourceMemory::finish(const ConstView& s, const ConstView& d_seen, const View& d_states,
                          const View& d_last, TranslatorGradients& gradients) {
  if (has_no_attention()) {
    // The context vectors were equal in all steps, so all steps add to one gradient.
    const Index H = config_.hidden;
    for (Index step = 0; step < d_seen.size(0); ++step) {
      for (Index direction = 0; direction < 2; ++direction) {
        add(entry(d_last, direction),
            slice(entry(d_seen, step), 2, direction * H, (direction + 1) * H));
      }
    }
    const Tensor zeros(config_.dtype, {d_states.size(2)});
    copy(zeros, d_states);
    return;
  }
  if (additive_steps_) {
    return additive_steps_->finish({s, d_seen}, d_states, d_states, *gradients.additive);
  }
  allocate_gradients();  // for the case that there was no step
  if (layers_.value) {
    layers_.value->backward(saved_value_, d_values_, d_states, *gradients.value, Write::kOverwrite,
                            context_);
  } else {
    copy(d_values_, d_states);
  }
  if (layers_.bilinear) {
    add(d_states, d_keys_);
    copy_parameters(*d_bilinear_, *gradients.bilinear);
  }
  if (layers_.key) finish_projections(s, d_seen, d_states, gradients);
}

void SourceMemory::finish_projections(const ConstView& s, const ConstView& d_seen,
                                      const View& d_states, TranslatorGradients& gradients) {
  // Adds to d_states, and overwrites the parameters' gradients.
  Tensor d_from_keys(config_.dtype, d_states.shape());
  layers_.key->backward(saved_key_, d_keys_, d_from_keys, *gradients.key, Write::kOverwrite,
                        context_);
  add(d_states, d_from_keys);
  if (!layers_.merge) return;
  layers_.query->backward({s}, by_step_.d_query, {}, *gradients.query, Write::kOverwrite, context_);
  layers_.merge->backward({by_step_.heads}, d_seen, {}, *gradients.merge, Write::kOverwrite,
                          context_);
}

}  // namespace qkv::app
