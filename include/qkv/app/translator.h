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

// How the decoder looks at the source. h_j are the encoder's states [2 hidden], s the decoder's.
enum class TranslatorAttention {
  kAdditive,   // v^T tanh(W_q s + W_k h_j): the paper's
  kDot,        // s^T (W h_j)
  kScaledDot,  // the same / sqrt(hidden)
  kBilinear,   // s^T W h_j
  kMultiHead,  // Vaswani et al. 2017: `heads` scaled dot products of projections
  kNone,       // the encoder's last states alone, the same at every step (Cho et al. 2014)
};

// Which parameters are one (Press and Wolf 2017; Inan, Khosravi, Socher 2017).
enum class TiedEmbeddings {
  kNone,
  kOutput,  // the output's weight is the target embedding: t_i is as wide as an embedding
};

struct TranslatorConfig {
  TranslatorAttention attention = TranslatorAttention::kAdditive;
  Index source_tokens = 0;  // sizes of the two vocabularies
  Index target_tokens = 0;
  Index embedding = 32;
  Index hidden = 64;  // of each encoder direction and of the decoder
  Index encoder_layers = 1;
  Index units = 64;  // additive: U
  Index heads = 4;   // multi-head: divides hidden
  TiedEmbeddings tied_embeddings = TiedEmbeddings::kNone;
  double dropout = 0.1;  // of embeddings and readout, in training
  double label_smoothing = 0.1;
  DType dtype = DType::kFloat32;  // or float64
};

// A sentence pair as token ids. Source and target end in Vocabulary::kEnd; the target does
// not begin with kStart, and neither holds kPadding.
struct TokenPair {
  std::span<const std::int32_t> source;
  std::span<const std::int32_t> target;
};

// Sums over the target tokens of some pairs.
struct TranslationLoss {
  double loss = 0;             // cross-entropy with smoothed labels: the training loss
  double log_probability = 0;  // of the targets, natural
  Index tokens = 0;
};

// Visits the parameters of all parts; of the layers themselves or of their gradients. A tied weight
// is listed once, as the target embedding's, and drawn as the output's is: its logits should begin
// small.
template <class Parts, class Visit>
void list_translator(Parts& parts, const std::string& prefix, const Visit& visit) {
  const auto part = [&](const char* name, auto& layer) {
    auto& parameters = qkv::detail::parameters_of(layer);
    std::remove_cvref_t<decltype(parameters)>::list(parameters, prefix + name, visit);
  };
  const auto some = [&](const char* name, auto& layer) {
    if (layer) part(name, *layer);
  };
  part("source_embedding.", parts.source_embedding);
  part("encoder.", parts.encoder);
  part("start.", parts.start);
  some("attention.", parts.additive);
  some("attention.", parts.bilinear);
  some("attention.q.", parts.query);
  some("attention.k.", parts.key);
  some("attention.v.", parts.value);
  some("attention.o.", parts.merge);
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

// The parts of a translator, with C = 2 hidden, the width of what the decoder attends to (hidden
// with heads). The letters are those of the paper's appendix A.
struct TranslatorLayers {
  Embedding source_embedding;                 // E_x
  GruStack encoder;                           // both directions: h_j [2 hidden] of the last layer
  Linear start;                               // s_0 = tanh(W_s h_1 of its backward direction + b)
  std::optional<AdditiveAttention> additive;  // kAdditive: W_a, U_a, v_a
  std::optional<BilinearAttention> bilinear;  // kBilinear
  std::optional<Linear> query;                // kMultiHead: hidden -> hidden
  std::optional<Linear> key;    // dot forms, without bias, and kMultiHead: C -> hidden
  std::optional<Linear> value;  // kMultiHead
  std::optional<Linear> merge;  // kMultiHead: the heads' results
  Embedding target_embedding;   // E_y
  GruCell decoder;              // s_i of s_{i-1} and [c_i, E y_{i-1}]
  Linear readout;               // [s_i, c_i, E y_{i-1}] -> pairs of 2 hidden (tied: embedding)
  Linear output;                // t_i, the larger of each pair -> target tokens; tied: its bias

  template <class Self, class Visit>
  static void list(Self& self, const std::string& prefix, const Visit& visit) {
    list_translator(self, prefix, visit);
  }
};

// Gradients of all parts, in the same order and under the same names.
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

// At step i the decoder attends to the source with its state s_{i-1}; the context c_i and the
// previous token determine its next state; the output sees that state, c_i and the previous token.
class QKV_API Translator {
 public:
  // Parameters are zero until initialised or read. Throws Error for invalid sizes.
  explicit Translator(const TranslatorConfig& config);

  const TranslatorConfig& config() const noexcept { return config_; }
  // To visit: for_each_parameter(translator, ...), initialise(translator, seed).
  TranslatorLayers& parameters() noexcept { return layers_; }
  const TranslatorLayers& parameters() const noexcept { return layers_; }
  TranslatorGradients zero_gradients() const;

  // The cost of the targets; run.mode says whether there is dropout. Throws Error for ids that are
  // not in their vocabulary and for pairs without tokens. `run` advances if the pass
  // succeeds.
  TranslationLoss loss(std::span<const TokenPair> pairs, RunState& run, Context& context) const;
  // The same; the gradients of `loss` (a sum, not a mean) are overwritten. All must be present.
  TranslationLoss loss_and_gradients(std::span<const TokenPair> pairs, RunState& run,
                                     TranslatorGradients& gradients, Context& context) const;
  // One for each source, in order. The result for a source does not depend on the others.
  // Throws Error for options out of range, ids that are not in the vocabulary and sources
  // without tokens.
  std::vector<Translation> translate(std::span<const std::span<const std::int32_t>> sources,
                                     const SearchOptions& options, Context& context) const;

 private:
  TranslatorConfig config_;
  TranslatorLayers layers_;
};

}  // namespace qkv::app

#endif  // QKV_APP_TRANSLATOR_H_
