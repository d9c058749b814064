// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_MULTI_HEAD_H_
#define QKV_LAYERS_MULTI_HEAD_H_

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <qkv/layers/parameters.h>
#include <qkv/layers/run.h>

namespace qkv {

enum class HeadForm {
  // The split form (document 003; Vaswani et al. 2017, section 3.2.2): each head has width/heads
  // channels. There are four projections width -> width, each with a bias. Scores are scaled by
  // 1/sqrt(width/heads).
  kSplit,
  // The wide form (document 001): each head has the full width n. Three projections n -> heads*n
  // have no bias, q and k are each divided by n^(1/4), and one projection heads*n -> n has a bias.
  kWide,
};

struct MultiHeadConfig {
  Index width = 0;
  Index heads = 1;
  HeadForm form = HeadForm::kSplit;
  std::optional<double> dropout{};  // default: 0.1 in the split form, 0 in the wide form
  DType dtype = DType::kFloat32;    // or float64
  bool bias = true;                 // false: no projection has a bias
  Index key_width = 0;              // channels of k; 0: width
  Index value_width = 0;            // channels of v; 0: width
  Index key_heads = 0;              // G, a divisor of heads (Ainslie et al. 2023); 0: heads
  bool sinks = false;               // one more learned logit for each head, with value 0
  bool bias_kv = false;             // a learned key and value after the given ones, never masked
  bool zero_attn = false;           // one more key and value, of zeros: a sink of 0
};

// Multi-head attention between q [..,Tq,width], k [..,Tk,key_width] and v [..,Tk,value_width]:
// self-attention when the three are one array, else cross-attention. Leading axes broadcast as in
// NumPy. With bias_kv, weights, scores and column sums have one key more than k. Heads are merged
// as [B,H,T,D] -> [B,T,H,D] -> [B,T,H*D], in both forms. (Document 001 instead transposes
// [B*H,T,D], which mixes positions with heads.)
class QKV_API MultiHeadAttention {
 public:
  struct Parameters {
    HeadForm form = HeadForm::kSplit;  // determines the names
    LinearParameters q{};              // split [width,width]; wide [heads*width,width]
    LinearParameters k{};              // [G*D,key_width], D channels of a head
    LinearParameters v{};              // [G*D,value_width]
    LinearParameters o{};              // split [width,width]; wide [width,heads*width]
    Tensor bias_k{};                   // with bias_kv: [G*D], D channels of a head
    Tensor bias_v{};
    Tensor sinks{};  // [heads]

    template <class Self, class Visit>
    static void list(Self& self, const std::string& prefix, const Visit& visit) {
      const bool split = self.form == HeadForm::kSplit;
      LinearParameters::list(self.q, prefix + (split ? "fc_q." : "queries."), visit);
      LinearParameters::list(self.k, prefix + (split ? "fc_k." : "keys."), visit);
      LinearParameters::list(self.v, prefix + (split ? "fc_v." : "values."), visit);
      LinearParameters::list(self.o, prefix + (split ? "fc_o." : "unify_heads."), visit);
      using T = std::conditional_t<std::is_const_v<Self>, const Tensor, Tensor>;
      visit(
          BasicParameter<T>{prefix + "bias_k", self.bias_k, detail::size_or_zero(self.bias_k, 0)});
      visit(
          BasicParameter<T>{prefix + "bias_v", self.bias_v, detail::size_or_zero(self.bias_v, 0)});
      visit(BasicParameter<T>{prefix + "sinks", self.sinks, detail::size_or_zero(self.sinks, 0)});
    }
  };
  // The views of `inputs` are the caller's: their arrays must not change until the backward pass.
  struct Saved {
    LayerInputs inputs{};
    Tensor q{};  // [..,Tq,H*D] projected (in the wide form also divided); k is [..,Tk,G*D]
    Tensor k{};
    Tensor v{};
    std::vector<Tensor> held{};  // with bias_kv: arrays to which `options` refers
    Options options{};           // of the call of attention(), without sinks and dropout
    Tensor heads{};              // [..,Tq,H*D]: the output of attention(), heads merged
    Tensor lse{};                // [..,H,Tq]
    Dropout dropout{};
  };

  // Parameters are zero until initialised or written. Throws Error if width or heads is below 1,
  // key_width, value_width or key_heads is negative, heads do not divide width (split form),
  // key_heads do not divide heads, both sinks and zero_attn are set, dropout is not in [0,1), or
  // the dtype is neither float32 nor float64.
  explicit MultiHeadAttention(const MultiHeadConfig& config);
  const MultiHeadConfig& config() const noexcept { return config_; }
  Parameters& parameters() noexcept { return parameters_; }
  const Parameters& parameters() const noexcept { return parameters_; }
  Parameters zero_gradients() const;

  // `outputs.out` [..,Tq,width] must be given. Other outputs and all masks are as in a call of
  // attention() with heads: weights [..,H,Tq,Tk] and so on, with B = 1 if q, k and v have rank 2.
  // Throws Error before touching an output.
  void forward(const LayerInputs& inputs, RunState& run, Saved& saved,
               const Outputs& outputs) const {
    Context context;
    forward(inputs, run, saved, outputs, context);
  }
  void forward(const LayerInputs& inputs, RunState& run, Saved& saved, const Outputs& outputs,
               Context& context) const;
  // `output_gradients.out` must be given. Gradients of q, k and v may have one common buffer, which
  // then gets their sum (self-attention). The gradients of absent tensors of `gradients` are not
  // computed.
  void backward(const Saved& saved, const OutputGradients& output_gradients,
                const LayerInputGradients& input_gradients, Parameters& gradients) const {
    Context context;
    backward(saved, output_gradients, input_gradients, gradients, context);
  }
  void backward(const Saved& saved, const OutputGradients& output_gradients,
                const LayerInputGradients& input_gradients, Parameters& gradients,
                Context& context) const;

 private:
  MultiHeadConfig config_;
  Parameters parameters_;
};

}  // namespace qkv

#endif  // QKV_LAYERS_MULTI_HEAD_H_
