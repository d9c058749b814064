// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_SCORE_LAYERS_H_
#define QKV_LAYERS_SCORE_LAYERS_H_

#include <string>
#include <type_traits>

#include <qkv/layers/parameters.h>
#include <qkv/layers/run.h>

// Attention layers without projections, each with one score function and dropout on the weights.
// Shapes and ranks are those of attention(): [B,T,.] as in document 002, [B,H,T,.], or mixed ranks.
// `outputs` may request any results of attention() (weights, lse, ...); `out` must be among them.
// `output_gradients` are those of attention_backward(). forward() throws Error before touching an
// output; a constructor throws if a width is below 1 or dropout is not in [0,1).
namespace qkv {

// softmax(q k^T / sqrt(D)) v (document 002, eq. 10.1.6). It has no parameters and takes any dtype
// of attention() except q8.
class QKV_API DotProductAttention {
 public:
  struct Parameters {
    template <class Self, class Visit>
    static void list(Self&, const std::string&, const Visit&) {}
  };
  using Saved = AttentionSaved;

  explicit DotProductAttention(double dropout = 0);
  Parameters& parameters() noexcept { return parameters_; }
  const Parameters& parameters() const noexcept { return parameters_; }
  Parameters zero_gradients() const { return {}; }

  void forward(const LayerInputs& inputs, RunState& run, Saved& saved,
               const Outputs& outputs) const {
    Context context;
    forward(inputs, run, saved, outputs, context);
  }
  void forward(const LayerInputs& inputs, RunState& run, Saved& saved, const Outputs& outputs,
               Context& context) const;
  void backward(const Saved& saved, const OutputGradients& output_gradients,
                const LayerInputGradients& input_gradients, Parameters& gradients) const {
    Context context;
    backward(saved, output_gradients, input_gradients, gradients, context);
  }
  void backward(const Saved& saved, const OutputGradients& output_gradients,
                const LayerInputGradients& input_gradients, Parameters& gradients,
                Context& context) const;

 private:
  Parameters parameters_;
  double dropout_ = 0;
};

// s_ij = v^T tanh(W_q q_i + W_k k_j), without bias (document 002, eq. 10.1.7). The widths of
// queries, keys and values and the number of units are free.
class QKV_API AdditiveAttention {
 public:
  struct Parameters {
    Tensor w_q{};  // [U,Dq]
    Tensor w_k{};  // [U,Dk]
    Tensor v{};    // [U]

    template <class Self, class Visit>
    static void list(Self& self, const std::string& prefix, const Visit& visit) {
      using T = std::conditional_t<std::is_const_v<Self>, const Tensor, Tensor>;
      visit(BasicParameter<T>{prefix + "W_q", self.w_q, detail::size_or_zero(self.w_q, 1)});
      visit(BasicParameter<T>{prefix + "W_k", self.w_k, detail::size_or_zero(self.w_k, 1)});
      visit(BasicParameter<T>{prefix + "v", self.v, detail::size_or_zero(self.v, 0)});
    }
  };
  using Saved = AttentionSaved;

  // Parameters are zero until initialised or written. dtype is float32 or float64.
  AdditiveAttention(Index query_width, Index key_width, Index units, double dropout = 0,
                    DType dtype = DType::kFloat32);
  Parameters& parameters() noexcept { return parameters_; }
  const Parameters& parameters() const noexcept { return parameters_; }
  Parameters zero_gradients() const;

  void forward(const LayerInputs& inputs, RunState& run, Saved& saved,
               const Outputs& outputs) const {
    Context context;
    forward(inputs, run, saved, outputs, context);
  }
  void forward(const LayerInputs& inputs, RunState& run, Saved& saved, const Outputs& outputs,
               Context& context) const;
  // The gradients of absent tensors of `gradients` are not computed.
  void backward(const Saved& saved, const OutputGradients& output_gradients,
                const LayerInputGradients& input_gradients, Parameters& gradients) const {
    Context context;
    backward(saved, output_gradients, input_gradients, gradients, context);
  }
  void backward(const Saved& saved, const OutputGradients& output_gradients,
                const LayerInputGradients& input_gradients, Parameters& gradients,
                Context& context) const;

 private:
  Parameters parameters_;
  double dropout_ = 0;
};

using MLPAttention = AdditiveAttention;  // the name in document 002

// s_ij = q_i^T W k_j (document 003). The widths of queries and keys are free.
class QKV_API BilinearAttention {
 public:
  struct Parameters {
    Tensor w{};  // [Dq,Dk]

    // As in PyTorch's nn.Bilinear the width of the first input is the fan-in of initialise().
    template <class Self, class Visit>
    static void list(Self& self, const std::string& prefix, const Visit& visit) {
      using T = std::conditional_t<std::is_const_v<Self>, const Tensor, Tensor>;
      visit(BasicParameter<T>{prefix + "W", self.w, detail::size_or_zero(self.w, 0)});
    }
  };
  using Saved = AttentionSaved;

  // Parameters are zero until initialised or written. dtype is float32 or float64.
  BilinearAttention(Index query_width, Index key_width, double dropout = 0,
                    DType dtype = DType::kFloat32);
  Parameters& parameters() noexcept { return parameters_; }
  const Parameters& parameters() const noexcept { return parameters_; }
  Parameters zero_gradients() const;

  void forward(const LayerInputs& inputs, RunState& run, Saved& saved,
               const Outputs& outputs) const {
    Context context;
    forward(inputs, run, saved, outputs, context);
  }
  void forward(const LayerInputs& inputs, RunState& run, Saved& saved, const Outputs& outputs,
               Context& context) const;
  // The gradients of absent tensors of `gradients` are not computed.
  void backward(const Saved& saved, const OutputGradients& output_gradients,
                const LayerInputGradients& input_gradients, Parameters& gradients) const {
    Context context;
    backward(saved, output_gradients, input_gradients, gradients, context);
  }
  void backward(const Saved& saved, const OutputGradients& output_gradients,
                const LayerInputGradients& input_gradients, Parameters& gradients,
                Context& context) const;

 private:
  Parameters parameters_;
  double dropout_ = 0;
};

}  // namespace qkv

#endif  // QKV_LAYERS_SCORE_LAYERS_H_
