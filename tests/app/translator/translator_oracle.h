// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_APP_TRANSLATOR_TRANSLATOR_ORACLE_H_
#define QKV_TESTS_APP_TRANSLATOR_TRANSLATOR_ORACLE_H_

#include <map>
#include <string>
#include <vector>

#include <qkv/app/translator.h>

#include "tests/app/translator/translators.h"

// The encoder-decoder of Bahdanau, Cho, Bengio (2015), appendix A, as plain loops in double: one
// sentence, one step, one sum at a time, without dropout. The gates are those of qkv/layers/gru.h.
namespace qkv::test {

class TranslatorOracle {
 public:
  using Vector = std::vector<double>;

  // Copies the translator's parameters.
  explicit TranslatorOracle(const Translator& translator);

  // The encoder's result for a sentence.
  struct Source {
    std::vector<Vector> states;  // h_j [2 hidden]
    Vector last;                 // [2 hidden]: the last states of the two directions
    Vector start;                // s_0 [hidden]
  };
  Source encode(const Tokens& source) const;

  struct Step {
    Vector state;              // s_i
    Vector log_probabilities;  // of each target token
    Vector attention;          // of each source token; empty without attention
  };
  // Takes step i from `state`, s_{i-1}, and the token before, y_{i-1}.
  Step step(const Source& source, const Vector& state, std::int32_t token) const;

  // The results of the steps that emit the tokens of a given target.
  struct Target {
    double loss = 0;
    double log_probability = 0;
    std::vector<Vector> attention;  // [target tokens][source tokens]; empty without attention
  };
  Target force(const Tokens& source, const Tokens& target) const;

 private:
  struct Matrix {
    std::size_t rows = 0, columns = 0;
    Vector values;
    Vector operator*(const Vector& x) const;
    Vector row(std::int32_t index) const;
  };

  const Matrix& at(const std::string& name) const { return parameters_.at(name); }
  Vector linear(const std::string& name, const Vector& x) const;
  // A layer of the encoder, with suffix "_l0", "_l1", ..: its states in both directions for rows x.
  struct Layer {
    std::vector<Vector> forward, backward;
  };
  Layer read(const std::vector<Vector>& x, const std::string& suffix) const;
  Vector logits(const Vector& readout) const;
  Vector gru(const std::string& name, const std::string& suffix, const Vector& x,
             const Vector& h) const;
  Vector scores(const Source& source, const Vector& state) const;
  // The context c_i for state s_{i-1}; writes the attention weights to `weights`.
  Vector look(const Source& source, const Vector& state, Vector& weights) const;
  Vector look_with_heads(const Source& source, const Vector& state, Vector& weights) const;

  app::TranslatorConfig config_;
  std::map<std::string, Matrix> parameters_;
};

}  // namespace qkv::test

#endif  // QKV_TESTS_APP_TRANSLATOR_TRANSLATOR_ORACLE_H_
