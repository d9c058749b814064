// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_GRU_STACK_H_
#define QKV_LAYERS_GRU_STACK_H_

#include <string>
#include <vector>

#include <qkv/layers/gru.h>

namespace qkv {

// Stacked layers, as in torch.nn.GRU(num_layers=N, batch_first=True): at each step, a layer reads
// the output of the layer below, with its directions concatenated. There is no dropout between
// layers.
class QKV_API GruStack {
 public:
  // The names are those of torch: weight_ih_l0, weight_ih_l0_reverse, weight_ih_l1, ...
  struct Parameters {
    std::vector<Gru::Parameters> layers{};

    template <class Self, class Visit>
    static void list(Self& self, const std::string& prefix, const Visit& visit) {
      for (auto& layer : self.layers) Gru::Parameters::list(layer, prefix, visit);
    }
  };
  struct Saved {
    std::vector<Gru::Saved> layers{};
    std::vector<Tensor> between{};  // the outputs of all layers but the last
  };
  struct Packed {
    std::vector<Gru::Packed> layers{};
  };

  // Parameters are zero until initialised or written. Throws Error if a size is below 1.
  GruStack(const GruConfig& config, Index layers);
  const GruConfig& config() const noexcept { return config_; }
  Index layers() const noexcept { return static_cast<Index>(layers_.size()); }
  Index directions() const noexcept { return config_.bidirectional ? 2 : 1; }
  // Visits the layers' parameters from the lowest layer up. (A stack has no parameters().)
  template <class Self, class Visit>
  static void list(Self& self, const std::string& prefix, const Visit& visit) {
    for (auto& layer : self.layers_) Gru::Parameters::list(layer.parameters(), prefix, visit);
  }
  Parameters zero_gradients() const;

  // Computes as Gru::forward does, with states [layers*directions,B,hidden] from the lowest layer
  // up.
  void forward(const GruInputs& inputs, Saved& saved, const GruOutputs& outputs,
               Context& context) const;
  void forward(const GruInputs& inputs, const Packed& packed, const GruOutputs& outputs,
               Context& context) const;
  Packed pack(Context& context) const;
  // Computes as Gru::backward does; `input_gradients.write` must be kOverwrite.
  void backward(const Saved& saved, const GruOutputGradients& output_gradients,
                const GruInputGradients& input_gradients, Parameters& gradients,
                Context& context) const;

 private:
  template <class Each>
  void compute(const GruInputs& inputs, std::vector<Tensor>& between, const GruOutputs& outputs,
               const Each& each) const;

  GruConfig config_;
  std::vector<Gru> layers_;
};

}  // namespace qkv

#endif  // QKV_LAYERS_GRU_STACK_H_
