// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TRANSLATOR_H_
#define QKV_APP_TRANSLATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <qkv/app/translation.h>
#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/layers.h>

// The encoder-decoder with attention (Bahdanau, Cho, Bengio 2015, appendix A).
namespace qkv::app {

// The decoder's attention to the source. h_j are the encoder's states [2 hidden], s the decoder's
// state.
enum class TranslatorAttention {
  kAdditive,   // v^T tanh(W_q s + W_k h_j), as in the paper
  kDot,        // s^T (W h_j)
  kScaledDot,  // s^T (W h_j) / sqrt(hidden)
  kBilinear,   // s^T W h_j
  kMultiHead,  // Vaswani et al. 2017: `heads` scaled dot products of projections
  kNone,       // the encoder's last states alone, equal at every step (Cho et al. 2014)
};

// The parameters that are shared (Press and Wolf 2017; Inan, Khosravi, Socher 2017).
enum class TiedEmbeddings {
  kNone,
  kOutput,  // the output's weight is the target embedding: t_i is as wide as an embedding
};

struct TranslatorConfig {
  TranslatorAttention attention = TranslatorAttention::kAdditive;
  Index source_tokens = 0;  // sizes of the two vocabularies
  Index target_tokens = 0;
  Index embedding = 32;
  Index hidden = 64;  // width of each encoder direction and of the decoder
  Index encoder_layers = 1;
  Index units = 64;  // additive attention: width of its hidden layer
  Index heads = 4;   // multi-head attention: must divide hidden
  TiedEmbeddings tied_embeddings = TiedEmbeddings::kNone;
  double dropout = 0.1;  // rate for embeddings and readout, in training
  double label_smoothing = 0.1;
  DType dtype = DType::kFloat32;  // or float64
};

// A sentence pair as token ids. Source and target end in Vocabulary::kEnd. The target does not
// begin with kStart, and neither text holds kPadding.
struct TokenPair {
  std::span<const std::int32_t> source;
  std::span<const std::int32_t> target;
};

// Sums over the target tokens of some sentence pairs.
struct TranslationLoss {
  double loss = 0;             // cross-entropy with smoothed labels: the training loss
  double log_probability = 0;  // natural log-probability of the targets
  Index tokens = 0;
};

// Visits the parameters of all parts, either of the layers themselves or of their gradients. A tied
// weight is listed once, as the target embedding's; initialise() gives it the range of the output
// layer's fan-in, so that the first logits are small.
template <class Parts, class Visit>
void list_translator(Parts& parts, const std::string& prefix, const Visit& visit) {
  const auto part = [&](const char* name, auto& layer) {
    auto& parameters = qkv::detail::parameters_of(layer);
    std::remove_cvref_t<decltype(parameters)>::list(parameters, prefix + name, visit);
  };
  const auto part_if_any = [&](const char* name, auto& layer) {
    if (layer) part(name, *layer);
  };
  part("source_embedding.", parts.source_embedding);
  part("encoder.", parts.encoder);
  part("start.", parts.start);
  part_if_any("attention.", parts.additive);
  part_if_any("attention.", parts.bilinear);
  part_if_any("attention.q.", parts.query);
  part_if_any("attention.k.", parts.key);
  part_if_any("attention.v.", parts.value);
  part_if_any("attention.o.", parts.merge);
  const Tensor& embedding = qkv::detail::parameters_of(parts.target_embedding).weight;
  const bool tied = !qkv::detail::parameters_of(parts.output).weight.given();
  const auto for_output = [&](const char* name, auto& layer) {
    auto& parameters = qkv::detail::parameters_of(layer);
    std::remove_cvref_t<decltype(parameters)>::list(parameters, prefix + name, [&](auto parameter) {
      if (tied) parameter.fan_in = qkv::detail::size_or_zero(embedding, 1);
      visit(parameter);
    });
  };
  for_output("target_embedding.", parts.target_embedding);
  part("decoder.", parts.decoder);
  part("readout.", parts.readout);
  for_output("output.", parts.output);
}

// The layers of a translator. The letters are those of the paper's appendix A. The context c_i is
// [2 hidden] (kMultiHead: [hidden]).
struct TranslatorLayers {
  Embedding source_embedding;                 // E_x
  GruStack encoder;                           // both directions: h_j [2 hidden] of the last layer
  Linear start;                               // s_0 = tanh(W_s h_1 + b), backward part of h_1
  std::optional<AdditiveAttention> additive;  // kAdditive: W_a, U_a, v_a
  std::optional<BilinearAttention> bilinear;  // kBilinear
  std::optional<Linear> query;                // kMultiHead: hidden -> hidden
  std::optional<Linear> key;    // dot forms (without bias), kMultiHead: 2 hidden -> hidden
  std::optional<Linear> value;  // kMultiHead: 2 hidden -> hidden
  std::optional<Linear> merge;  // kMultiHead: of the concatenated heads
  Embedding target_embedding;   // E_y
  GruCell decoder;              // s_i from s_{i-1} and [c_i, E y_{i-1}]
  Linear readout;               // [s_i, c_i, E y_{i-1}] -> 2 hidden (tied: 2 embedding)
  Linear output;                // t_i, larger of each readout pair, -> target tokens; tied: bias

  template <class Self, class Visit>
  static void list(Self& self, const std::string& prefix, const Visit& visit) {
    list_translator(self, prefix, visit);
  }
};

// The gradients of all layers, in the order and under the names of TranslatorLayers.
struct TranslatorGradients {
  Embedding::Parameters source_embedding{};
  GruStack::Parameters encoder{};
  LinearParameters start{};
  std::optional<AdditiveAttention::Parameters> additive{};
  std::optional<BilinearAttention::Parameters> bilinear{};
  std::optional<LinearParameters> query{};
  std::optional<LinearParameters> key{};
  std::optional<LinearParameters> value{};
  std::optional<LinearParameters> merge{};
  Embedding::Parameters target_embedding{};
  GruParameters decoder{};
  LinearParameters readout{};
  LinearParameters output{};

  template <class Self, class Visit>
  static void list(Self& self, const std::string& prefix, const Visit& visit) {
    list_translator(self, prefix, visit);
  }
};

// The encoder-decoder. At step i the decoder attends to the source with its state s_{i-1}. The
// context c_i and the previous token determine the next state s_i. The readout and the output layer
// compute logits from s_i, c_i and the previous token.
class QKV_API Translator {
 public:
  // Parameters are zero until they are initialised or read. Throws Error for invalid sizes.
  explicit Translator(const TranslatorConfig& config);

  const TranslatorConfig& config() const noexcept { return config_; }
  // The layers, for for_each_parameter(translator, ...) and initialise(translator, seed).
  TranslatorLayers& parameters() noexcept { return layers_; }
  const TranslatorLayers& parameters() const noexcept { return layers_; }
  TranslatorGradients zero_gradients() const;

  // The loss of the targets; run.mode says whether there is dropout. Throws Error for ids that are
  // not in their vocabulary and for sentence pairs without tokens. `run` advances if the pass
  // succeeds.
  TranslationLoss loss(std::span<const TokenPair> pairs, RunState& run, Context& context) const;
  // Returns the loss of the targets, and overwrites `gradients` with the gradients of
  // TranslationLoss::loss (a sum, not a mean). `gradients` must hold all arrays of
  // zero_gradients().
  TranslationLoss loss_and_gradients(std::span<const TokenPair> pairs, RunState& run,
                                     TranslatorGradients& gradients, Context& context) const;
  // One translation for each source, in order. A source's result does not depend on the others.
  // Throws Error for options out of range, ids that are not in the vocabulary and sources without
  // tokens.
  std::vector<Translation> translate(std::span<const std::span<const std::int32_t>> sources,
                                     const SearchOptions& options, Context& context) const;

 private:
  TranslatorConfig config_;
  TranslatorLayers layers_;
};

}  // namespace qkv::app

#endif  // QKV_APP_TRANSLATOR_H_
