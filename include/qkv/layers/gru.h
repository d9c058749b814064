// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_GRU_H_
#define QKV_LAYERS_GRU_H_

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/layers/parameters.h>

// The gated recurrent unit (Cho et al. 2014, section 2.3), in the form that torch.nn.GRU has:
//   r  = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
//   z  = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
//   n  = tanh(W_in x + b_in + r (W_hn h + b_hn))
//   h' = (1 - z) n + z h
// The rows of r, z and n are stacked in weight_ih [3 hidden,input], weight_hh [3 hidden,hidden] and
// the biases [3 hidden].
namespace qkv {

struct GruParameters {
  std::string suffix{};  // ends the parameters' names: "" as in torch.nn.GRUCell, "_l0", ...
  Tensor weight_ih{};
  Tensor weight_hh{};
  Tensor bias_ih{};  // may be absent
  Tensor bias_hh{};  // may be absent

  // The hidden size is the fan-in of all four tensors, as in torch.
  template <class Self, class Visit>
  static void list(Self& self, const std::string& prefix, const Visit& visit) {
    using T = std::conditional_t<std::is_const_v<Self>, const Tensor, Tensor>;
    const Index fan_in = detail::size_or_zero(self.weight_hh, 1);
    const auto visit_one = [&](const char* name, T& value) {
      visit(BasicParameter<T>{prefix + name + self.suffix, value, fan_in});
    };
    visit_one("weight_ih", self.weight_ih);
    visit_one("weight_hh", self.weight_hh);
    visit_one("bias_ih", self.bias_ih);
    visit_one("bias_hh", self.bias_hh);
  }
};

struct GruConfig {
  Index input = 0;
  Index hidden = 0;
  bool bidirectional = false;
  bool bias = true;
  DType dtype = DType::kFloat32;  // or float64
};

// The inputs of a forward pass, with any strides. The sequence of entry b is x[b, 0..lengths[b]-1];
// the padding after it is never used.
struct GruInputs {
  ConstView x{};        // [B,T,input]
  ConstView lengths{};  // [B] int32 or int64 in 0..T; absent: T for all
  ConstView state{};    // [directions,B,hidden], each direction's initial state; absent: zeros
};

struct GruOutputs {
  View out{};    // [B,T,directions*hidden]: the state after each step, 0 beyond the sequence
  View state{};  // [directions,B,hidden] after each direction's last step; may be absent
};

// The gradients of the outputs; an absent one counts as zeros. `out` is not read beyond a sequence.
struct GruOutputGradients {
  ConstView out{};
  ConstView state{};
};

// A gradient is requested by setting its buffer. The gradient of x is 0 beyond the sequences.
struct GruInputGradients {
  View x{};
  View state{};
  Write write = Write::kOverwrite;  // also applies to the parameters' gradients
};

// One layer of torch.nn.GRU(batch_first=True), in one or both directions, over padded batches with
// the semantics of pack_padded_sequence: the backward direction starts at a sequence's own end. The
// results of a batch entry are bit-identical whatever the other entries are.
class QKV_API Gru {
 public:
  struct Parameters {
    GruParameters forward{};   // weight_ih_l0, ...
    GruParameters backward{};  // weight_ih_l0_reverse, ...; absent unless bidirectional

    template <class Self, class Visit>
    static void list(Self& self, const std::string& prefix, const Visit& visit) {
      GruParameters::list(self.forward, prefix, visit);
      GruParameters::list(self.backward, prefix, visit);
    }
  };
  // The results of one forward pass that the backward pass needs. It holds no views of the caller's
  // arrays.
  struct Saved {
    Tensor x{};       // [B,T,input], 0 beyond the sequences
    Tensor states{};  // [directions,B,T,hidden]: the state before each step
    Tensor gates{};   // [directions,B,T,4*hidden]: r, z, n, W_hn h + b_hn
    std::vector<Index> lengths{};
  };
  // Prepacked weights, for many passes between which the parameters do not change. Several threads
  // may use one Packed at the same time. The second tensor of ih and of hh is absent unless the
  // layer is bidirectional.
  struct Packed {
    GruConfig config{};  // config() of the layer whose pack() made this
    Tensor ih[2]{};
    Tensor hh[2]{};
  };

  // Parameters are zero until initialised or written. Throws Error if a size is below 1 or too
  // large, or dtype is neither float32 nor float64.
  explicit Gru(const GruConfig& config);
  const GruConfig& config() const noexcept { return config_; }
  Index directions() const noexcept { return config_.bidirectional ? 2 : 1; }
  Parameters& parameters() noexcept { return parameters_; }
  const Parameters& parameters() const noexcept { return parameters_; }
  Parameters zero_gradients() const;

  // Throws Error before touching an output.
  void forward(const GruInputs& inputs, Saved& saved, const GruOutputs& outputs) const {
    Context context;
    forward(inputs, saved, outputs, context);
  }
  void forward(const GruInputs& inputs, Saved& saved, const GruOutputs& outputs,
               Context& context) const;
  // Computes the outputs without saving anything for a backward pass. `packed` must come from
  // pack() of this layer. Throws Error if it has other sizes, type or directions, but does not
  // notice that parameters have changed since.
  void forward(const GruInputs& inputs, const Packed& packed, const GruOutputs& outputs,
               Context& context) const;
  Packed pack(Context& context) const;
  // Computes gradients from the results of the forward pass. Parameters whose tensor in `gradients`
  // is absent get none.
  void backward(const Saved& saved, const GruOutputGradients& output_gradients,
                const GruInputGradients& input_gradients, Parameters& gradients) const {
    Context context;
    backward(saved, output_gradients, input_gradients, gradients, context);
  }
  void backward(const Saved& saved, const GruOutputGradients& output_gradients,
                const GruInputGradients& input_gradients, Parameters& gradients,
                Context& context) const;

 private:
  void compute(const GruInputs& inputs, Saved& saved, const Packed* packed,
               const GruOutputs& outputs, Context& context) const;

  GruConfig config_;
  Parameters parameters_;
};

// One step of the recurrent unit, as in torch.nn.GRUCell, for decoders, whose input depends on the
// previous state.
class QKV_API GruCell {
 public:
  using Parameters = GruParameters;

  GruCell(Index input, Index hidden, bool bias = true, DType dtype = DType::kFloat32);
  Parameters& parameters() noexcept { return parameters_; }
  const Parameters& parameters() const noexcept { return parameters_; }
  Parameters zero_gradients() const;

  // Runs steps between which the parameters do not change, so that the weights are packed only
  // once. The cell and the context must outlive the Steps.
  class QKV_API Steps {
   public:
    Steps(const GruCell& cell, Context& context);
    // Shares the prepacked weights of `steps` but runs on another context, so that several threads
    // may run steps at the same time, each on a context of its own.
    Steps(const Steps& steps, Context& context);
    ~Steps();
    Steps(Steps&&) noexcept;
    Steps& operator=(Steps&&) noexcept;

    // Computes next [B,hidden] from x [B,input] and h [B,hidden]. `gates` [B,4*hidden] gets the
    // numbers that backward() needs, and may be absent. The channels of all rows are contiguous.
    void forward(const ConstView& x, const ConstView& h, const View& next, const View& gates) const;
    // Computes from dnext [B,hidden] the gradients of the inputs, dx [B,input] and dh [B,hidden],
    // and of the gates' pre-activations, dgates [B,4*hidden]. dx may be absent. All three are
    // overwritten.
    void backward(const ConstView& gates, const ConstView& h, const ConstView& dnext,
                  const View& dx, const View& dh, const View& dgates) const;

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  // Computes the parameters' gradients of many steps, whose rows are stacked in x [N,input], h
  // [N,hidden] and dgates [N,4*hidden]. Rows are summed as in Linear. Parameters whose tensor in
  // `gradients` is absent get none.
  void parameter_gradients(const ConstView& x, const ConstView& h, const ConstView& dgates,
                           Parameters& gradients, Write write, Context& context) const;

 private:
  Parameters parameters_;
};

}  // namespace qkv

#endif  // QKV_LAYERS_GRU_H_
