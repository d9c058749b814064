// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_EMBEDDING_H_
#define QKV_LAYERS_EMBEDDING_H_

#include <optional>
#include <string>
#include <type_traits>

#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/layers/parameters.h>

namespace qkv {

// A learned vector for each token, as in PyTorch's nn.Embedding: out[..,:] = weight[ids[..],:].
class QKV_API Embedding {
 public:
  struct Parameters {
    Tensor weight{};  // [tokens,width]

    // The fan-in is 1: initialise() draws all rows from (-1, 1), including that of `padding`.
    template <class Self, class Visit>
    static void list(Self& self, const std::string& prefix, const Visit& visit) {
      using T = std::conditional_t<std::is_const_v<Self>, const Tensor, Tensor>;
      visit(BasicParameter<T>{prefix + "weight", self.weight, 1});
    }
  };
  // The ids that the backward pass needs. A Saved can be used again; its memory is reused if sizes
  // are equal.
  struct Saved {
    Tensor ids{};      // int64, copied
    Index tokens = 0;  // tokens() of the layer that wrote this; 0: no forward pass, or it threw
  };

  // The weight is zero until initialised or written. `padding` is a token whose row gets no
  // gradient (PyTorch's padding_idx). dtype is float32 or float64. Throws Error if a size is below
  // 1 or `padding` is not a token.
  Embedding(Index tokens, Index width, std::optional<Index> padding = std::nullopt,
            DType dtype = DType::kFloat32);
  Parameters& parameters() noexcept { return parameters_; }
  const Parameters& parameters() const noexcept { return parameters_; }
  Parameters zero_gradients() const;
  Index tokens() const noexcept { return parameters_.weight.size(0); }
  Index width() const noexcept { return parameters_.weight.size(1); }
  std::optional<Index> padding() const noexcept { return padding_; }

  // ids [..] has at most 7 axes and is int32 or int64 in 0..tokens-1; out is [..,width] of the
  // layer's dtype. Throws Error before touching `out`; for an invalid id the error gives its
  // position and value.
  void forward(const ConstView& ids, Saved& saved, const View& out) const {
    Context context;
    forward(ids, saved, out, context);
  }
  void forward(const ConstView& ids, Saved& saved, const View& out, Context& context) const;
  // dout is [..,width]. A token's row of the gradient is the sum of dout over the positions of the
  // token, added in C order. With Write::kOverwrite the sum starts from zero and all other rows
  // become zero; with Write::kAccumulate it starts from the current values and all other rows are
  // unchanged. The gradient of an absent tensor is not computed.
  void backward(const Saved& saved, const ConstView& dout, Parameters& gradients,
                Write write = Write::kOverwrite) const {
    Context context;
    backward(saved, dout, gradients, write, context);
  }
  void backward(const Saved& saved, const ConstView& dout, Parameters& gradients, Write write,
                Context& context) const;

 private:
  Parameters parameters_;
  std::optional<Index> padding_;
};

}  // namespace qkv

#endif  // QKV_LAYERS_EMBEDDING_H_
