// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_SELF_ATTENTION_H_
#define QKV_LAYERS_SELF_ATTENTION_H_

#include <string>
#include <vector>

#include <qkv/layers/parameters.h>
#include <qkv/layers/run.h>

namespace qkv {

struct SelfAttentionInputs {
  ConstView x{};  // [B,T,width] or [T,width], of the layer's dtype
  // [B]: the number of positions of each batch entry that are keys. The positions after them are
  // still queries, so they must be finite for a backward pass. [B,T]: a number of keys for each
  // query; the row of a query with 0 keys is empty.
  ConstView lengths{};
  std::vector<Mask> masks{};
  std::vector<ScoreMod> mods{};  // applied in order, as Options::mods
};

struct SelfAttentionInputGradients {
  View x{};
  Write write = Write::kOverwrite;           // also applies to the parameters' gradients
  std::vector<CapturedGradient> captured{};  // of arrays that functions in `mods` read
};

// The single-head self-attention of document 001: q, k and v are bias-free projections of x to its
// own width n. q and k are each divided by n^(1/4), so that q k^T is scaled by 1/sqrt(n). There is
// no dropout.
class QKV_API SelfAttention {
 public:
  struct Parameters {
    LinearParameters q{};  // the weights of q, k and v are [n,n]
    LinearParameters k{};
    LinearParameters v{};

    template <class Self, class Visit>
    static void list(Self& self, const std::string& prefix, const Visit& visit) {
      LinearParameters::list(self.q, prefix + "queries.", visit);
      LinearParameters::list(self.k, prefix + "keys.", visit);
      LinearParameters::list(self.v, prefix + "values.", visit);
    }
  };
  // The results of a forward pass that the backward pass needs. The views refer to the caller's
  // arrays: inputs, masks and out must not change until the backward pass is done.
  struct Saved {
    SelfAttentionInputs inputs{};
    Tensor q{};  // projected and divided by n^(1/4), as is k; v is only projected
    Tensor k{};
    Tensor v{};
    ConstView out{};
    Tensor lse{};
  };

  // Parameters are zero until initialised or written. Throws Error if width is below 1 or dtype is
  // neither float32 nor float64.
  explicit SelfAttention(Index width, DType dtype = DType::kFloat32);
  Parameters& parameters() noexcept { return parameters_; }
  const Parameters& parameters() const noexcept { return parameters_; }
  Parameters zero_gradients() const;
  Index width() const noexcept { return parameters_.q.weight.size(0); }

  // `outputs.out` has the shape of x and must be given; other outputs are as in attention(). Throws
  // Error before touching an output.
  void forward(const SelfAttentionInputs& inputs, RunState& run, Saved& saved,
               const Outputs& outputs) const {
    Context context;
    forward(inputs, run, saved, outputs, context);
  }
  void forward(const SelfAttentionInputs& inputs, RunState& run, Saved& saved,
               const Outputs& outputs, Context& context) const;
  // Computes gradients from the results of the forward pass. Parameters whose tensor in `gradients`
  // is absent get none.
  void backward(const Saved& saved, const OutputGradients& output_gradients,
                const SelfAttentionInputGradients& input_gradients, Parameters& gradients) const {
    Context context;
    backward(saved, output_gradients, input_gradients, gradients, context);
  }
  void backward(const Saved& saved, const OutputGradients& output_gradients,
                const SelfAttentionInputGradients& input_gradients, Parameters& gradients,
                Context& context) const;

 private:
  Parameters parameters_;
};

}  // namespace qkv

#endif  // QKV_LAYERS_SELF_ATTENTION_H_
