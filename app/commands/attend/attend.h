// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_ATTEND_ATTEND_H_
#define QKV_COMMANDS_ATTEND_ATTEND_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "commands/shell/array_store.h"
#include "commands/shell/console.h"
#include "commands/shell/outputs.h"
#include "commands/shell/score_names.h"

// `qkv attend`: one call on arrays from files.

enum class Corner { kBottomRight, kTopLeft };
inline constexpr Choice<Corner> kCorners[] = {{"bottom_right", Corner::kBottomRight},
                                              {"top_left", Corner::kTopLeft}};
// The order of the axes of rank 4.
enum class Layout { kBhtd, kBthd };
inline constexpr Choice<qkv::RotaryPairs> kRotaryPairs[] = {
    {"neighbours", qkv::RotaryPairs::kNeighbours}, {"halves", qkv::RotaryPairs::kHalves}};
inline constexpr Choice<Layout> kLayouts[] = {{"bhtd", Layout::kBhtd}, {"bthd", Layout::kBthd}};

// ---- what may be saved ----------------------------------------------------------------------

// ...,Tq,E  ...,Tq,Tk  ...,Tq  ...,Tk  ...,m,n
enum class ResultAxes { kValues, kMatrix, kQueries, kKeys, kCells };

// Which member of Outputs holds a result's buffer.
using ResultPlace = std::variant<qkv::View qkv::Outputs::*, qkv::Rows qkv::Outputs::*,
                                 qkv::ColumnSums qkv::Outputs::*>;

struct ResultKind {
  std::string_view name;      // on the command line and in files
  std::string_view argument;  // in the library's messages
  std::string_view help;
  ResultAxes axes;
  ResultPlace place;
};
inline constexpr ResultKind kResultKinds[] = {
    {"out", "out", "weighted sums of v", ResultAxes::kValues, &qkv::Outputs::out},
    {"weights", "weights", "before dropout", ResultAxes::kMatrix, &qkv::Outputs::weights},
    {"dropped", "dropped_weights", "weights after dropout", ResultAxes::kMatrix,
     &qkv::Outputs::dropped_weights},
    {"scores", "raw_scores", "after the scale", ResultAxes::kMatrix, &qkv::Outputs::raw_scores},
    {"capped", "capped_scores", "scores after the soft-cap", ResultAxes::kMatrix,
     &qkv::Outputs::capped_scores},
    {"masked", "masked_scores", "scores after bias, ALiBi and masks", ResultAxes::kMatrix,
     &qkv::Outputs::masked_scores},
    {"lse", "lse", "log of the sum of exponentials", ResultAxes::kQueries, &qkv::Outputs::lse},
    {"row_max", "row_max", "largest masked score", ResultAxes::kQueries, &qkv::Outputs::row_max},
    {"entropy", "entropy", "of each query's weights, in nats", ResultAxes::kQueries,
     &qkv::Outputs::entropy},
    {"column_sums", "column_sums", "weight that each key received", ResultAxes::kKeys,
     &qkv::Outputs::column_sums},
    {"value_sums", "value_sums", "the same times the length of its value", ResultAxes::kKeys,
     &qkv::Outputs::value_sums},
    {"pooled", "pooled", "weights in the cells of --pool", ResultAxes::kCells,
     &qkv::Outputs::pooled},
};
inline constexpr std::size_t kResultKindCount = std::size(kResultKinds);

// ---- the command line -----------------------------------------------------------------------

// Texts that name arrays are FILE[:NAME]; "" is not given.
struct AttendOptions {
  std::vector<std::string> files{};
  Layout layout = Layout::kBhtd;
  qkv::Score score;  // its parameters absent
  std::string params{};
  std::optional<double> norm_eps{};
  std::optional<qkv::RotaryPairs> rotary{};
  std::optional<double> rotary_base{};
  std::optional<qkv::Index> rotary_width{};
  std::string rotary_frequencies{};
  std::string q_positions{};
  std::string k_positions{};
  std::optional<double> scale{};
  double softcap = 0;
  std::string bias{};
  std::string alibi{};  // or "auto"
  bool causal = false;
  std::optional<Corner> corner{};
  std::string offset{};  // or a number
  std::optional<qkv::Window> window{};
  std::string lengths{};
  std::string mask{};
  std::string padding{};
  std::string sinks{};
  std::string cu_seqlens_q{};
  std::string cu_seqlens_k{};
  std::optional<double> dropout{};
  std::optional<std::uint64_t> seed{};
  std::vector<bool> save = std::vector<bool>(kResultKindCount);  // none: the default ones
  std::optional<qkv::Index> top{};
  std::vector<qkv::Index> rows{};
  std::vector<qkv::Index> column_rows{};
  std::vector<qkv::Index> pool{};  // m and n, or none
  std::string path{};
  OutputOptions outputs{};
};

// ---- the call -------------------------------------------------------------------------------

// Where an argument of the library came from, for messages: a file (exit 3) or an option (exit 2).
struct Origin {
  std::string place{};
  bool is_file = false;
};

struct AttendCall {
  ArrayStore store{};
  qkv::Inputs inputs{};
  qkv::Options options{};
  qkv::Tensor slopes{};                     // of --alibi auto
  std::map<std::string, Origin> origins{};  // by the library's name of the argument
  nlohmann::ordered_json settings{};        // what was asked for, in words
  std::vector<std::string> warnings{};
};

// Shapes of the results of a call whose inputs fit together.
struct CallShape {
  qkv::Dims lead{};  // batch and heads
  bool heads = false;
  bool packed = false;
  qkv::Index sequences = 0;  // if packed
  qkv::Index head_count = 1;
  qkv::Index queries = 0;
  qkv::Index keys = 0;
  qkv::Index width = 0;  // of v
};
CallShape shape_of(const qkv::Inputs& inputs);

// Reads the files that the command line names.
void read_call(const AttendOptions& options, AttendCall& call);

struct NamedTensor {
  std::string name{};
  qkv::Tensor tensor{};
};
struct AttendResults {
  std::vector<NamedTensor> arrays{};  // that were asked for, in the order of kResultKinds
  qkv::Tensor weights{};              // for pictures alone, when they were not asked for
  qkv::Tensor allowed{};              // bool, shape of weights; absent when nothing is masked
  std::string path{};
  CallShape shape{};
};

// Whether what is asked for fits together. Throws UsageError.
void check_results(const AttendOptions& options, const AttendCall& call);

AttendResults compute(const AttendOptions& options, AttendCall& call, const Common& common);

// The report and the forms of files; `call` and `results` must outlive it, and may be filled later.
Results attend_forms(const AttendOptions& options, const AttendCall& call,
                     const AttendResults& results);

#endif  // QKV_COMMANDS_ATTEND_ATTEND_H_
