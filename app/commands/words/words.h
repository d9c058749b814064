// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_WORDS_WORDS_H_
#define QKV_COMMANDS_WORDS_WORDS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <qkv/layers.h>
#include <qkv/tensor.h>

#include "commands/shell/console.h"
#include "commands/shell/options.h"
#include "commands/shell/outputs.h"
#include "commands/shell/score_names.h"

// `qkv words`: text -> word vectors -> self-attention -> table and files.

inline constexpr Choice<qkv::HeadForm> kForms[] = {{"split", qkv::HeadForm::kSplit},
                                                   {"wide", qkv::HeadForm::kWide}};
// What to do with a word without a vector.
enum class Unknown { kError, kSkip, kZero };
inline constexpr Choice<Unknown> kUnknowns[] = {
    {"error", Unknown::kError}, {"skip", Unknown::kSkip}, {"zero", Unknown::kZero}};

struct WordsOptions {
  std::vector<std::string> text{};  // joined by blanks; "-" alone: standard input
  std::string vectors{};            // a file; "": spelling vectors
  qkv::Index width = 0;             // of a vector; 0: that of the file
  Unknown unknown = Unknown::kError;
  qkv::Score score;       // without parameters
  bool identity = false;  // --identity: no projections
  qkv::Index heads = 0;   // 0: no projections
  qkv::HeadForm form = qkv::HeadForm::kSplit;
  std::uint64_t seed = 0;
  std::string params{};  // a file; "": drawn from the seed
  OutputOptions outputs{};
};

// T words and their vectors.
struct WordInput {
  std::vector<std::string> tokens{};     // as typed
  std::vector<std::string> spellings{};  // as looked up; "" for a word without a vector
  qkv::Tensor x{};                       // [T,D], float32 as in the file
  std::string source{};                  // where the vectors come from
};

struct Parameter {
  std::string name;
  qkv::Tensor value;
};

// Everything is computed in float64. With H heads, the members below have a leading axis of H.
struct WordAttention {
  qkv::Tensor q{};  // [T,D]; with heads [T,H*E] as projected
  qkv::Tensor k{};
  qkv::Tensor v{};
  std::vector<Parameter> parameters{};
  double scale = 1;
  qkv::Tensor scores{};       // [T,T], scaled; absent unless asked for
  qkv::Tensor weights{};      // [T,T], likewise
  qkv::Tensor lse{};          // [T]
  qkv::Tensor top_weights{};  // [T,n]: the n largest weights of each word; n = 2, or 1 when T = 1
  qkv::Tensor top_keys{};     // [T,n], int64
  qkv::Tensor out{};          // [T,D], without a head axis
};

WordInput read_words(const WordsOptions& options, const Common& common);

// `matrices`: whether to compute scores and weights.
WordAttention attend_words(const WordInput& input, const WordsOptions& options,
                           const Common& common, bool matrices);

// Longer texts get no table, only the strongest other of each word.
inline constexpr qkv::Index kLongestTable = 32;
// What a terminal gets in addition: the map, and tables that fit.
struct WordScreen {
  std::string map{};  // "": none
  int columns = 0;    // 0: any width
};
std::string word_report(const WordInput& input, const WordAttention& attention,
                        const WordsOptions& options, const WordScreen& screen = {});
// Texts and heads that a terminal shows a map of; of more heads the first are shown.
inline constexpr qkv::Index kLongestMap = 100;
inline constexpr qkv::Index kMostMaps = 12;

// The report and the forms of files; the arguments must outlive it, and may be filled later.
// Arrays hold everything needed to recompute them.
Results word_forms(const WordInput& input, const WordAttention& attention,
                   const WordsOptions& options, const Common& common);

#endif  // QKV_COMMANDS_WORDS_WORDS_H_
