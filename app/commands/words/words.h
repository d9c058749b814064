// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_WORDS_WORDS_H_
#define QKV_COMMANDS_WORDS_WORDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include <qkv/layers.h>
#include <qkv/tensor.h>

#include "commands/shell/console.h"
#include "commands/shell/expressions.h"
#include "commands/shell/options.h"
#include "commands/shell/outputs.h"
#include "commands/shell/score_names.h"

// The stages of `qkv words`: text -> word vectors -> self-attention -> table and files.

inline constexpr Choice<qkv::HeadForm> kForms[] = {{"split", qkv::HeadForm::kSplit},
                                                   {"wide", qkv::HeadForm::kWide}};
// How to treat a word that has no vector: as an error, by leaving it out, or as zeros.
enum class Unknown { kError, kSkip, kZero };
inline constexpr Choice<Unknown> kUnknowns[] = {
    {"error", Unknown::kError}, {"skip", Unknown::kSkip}, {"zero", Unknown::kZero}};

struct WordsOptions {
  std::vector<std::string> text{};  // parts, joined with blanks; a lone "-": standard input
  std::string vectors{};            // the file of word vectors; "": spelling vectors
  qkv::Index width = 0;             // numbers per word vector; 0: as in the file, 50 for spelling
  Unknown unknown = Unknown::kError;
  qkv::Score score;       // its parameters are not set
  bool identity = false;  // --identity: no projections
  qkv::Index heads = 0;   // 0: no projections
  qkv::HeadForm form = qkv::HeadForm::kSplit;
  std::uint64_t seed = 0;
  std::string params{};  // the file of parameters; "": they are drawn from the seed
  ExpressionOptions expressions{};
  OutputOptions outputs{};
};

// T words and their vectors.
struct WordInput {
  std::vector<std::string> tokens{};     // the words as typed
  std::vector<std::string> spellings{};  // the words as found; "" for a word without a vector
  qkv::Tensor x{};                       // the vectors [T,D], float32
  std::string source{};                  // the file, or "spelling" with the seed
};

struct Parameter {
  std::string name;
  qkv::Tensor value;
};

// The results of self-attention over T words, in float64. With H heads, the arrays from `scores` to
// `top_keys` have a leading axis of H.
struct WordAttention {
  qkv::Tensor q{};  // q, k and v: [T,D]; with H heads, projected: [T,H*E]
  qkv::Tensor k{};  // the form "wide" also divides q and k by D^(1/4)
  qkv::Tensor v{};
  std::vector<Parameter> parameters{};
  double scale = 1;
  qkv::Tensor scores{};       // [T,T], scaled, before expressions; absent unless requested
  qkv::Tensor weights{};      // [T,T]; absent unless requested
  qkv::Tensor unmasked{};     // [T,T] bool; absent unless a pair is masked and weights are given
  qkv::Tensor lse{};          // [T], the log-sum-exp of each word's scores
  qkv::Tensor top_weights{};  // [T,n], the n largest weights of each word; n = 2, or 1 if T = 1
  qkv::Tensor top_keys{};     // [T,n], int64, the key of each of top_weights; -1: none
  qkv::Tensor out{};          // [T,D], without a head axis
};

// Reads the text and its word vectors.
WordInput read_words(const WordsOptions& options, const Common& common);

// Computes the attention; scores and weights are returned only if `matrices` is true. Throws
// UsageError if an expression reads outside of an array, if the heads of the form "split" do not
// divide the width, or if memory is too small, and InputError for parameters that do not fit.
WordAttention attend_words(const WordInput& input, const WordsOptions& options,
                           const Expressions& expressions, const Common& common, bool matrices);

// The most words that a table of weights is printed for. For longer texts the report only names,
// for each word, the word it attends to most besides itself.
inline constexpr qkv::Index kLongestTable = 32;
// Additions to a report that is printed on a terminal.
struct WordScreen {
  std::string map{};  // the drawn attention map, or ""
  int columns = 0;    // the width that tables must fit; 0: any width
};
// Where parameters come from: "W random (seed 0)", or "params FILE"; "" for a score without any.
std::string parameters_text(const WordAttention& attention, const WordsOptions& options);
std::string word_report(const WordInput& input, const WordAttention& attention,
                        const WordsOptions& options, const Expressions& expressions,
                        const WordScreen& screen = {});
// On a terminal, a text of more than kLongestMap words has no map, and only the first kMostMaps
// heads have one.
inline constexpr qkv::Index kLongestMap = 100;
inline constexpr qkv::Index kMostMaps = 12;

// Returns functions that give the results in each form, for standard output and files. They refer
// to the arguments, which must outlive them and may be filled after this call. The arrays hold all
// that a recomputation needs.
Results word_forms(const WordInput& input, const WordAttention& attention,
                   const WordsOptions& options, const Expressions& expressions,
                   const Common& common);

#endif  // QKV_COMMANDS_WORDS_WORDS_H_
