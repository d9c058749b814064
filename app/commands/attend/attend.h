// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_ATTEND_ATTEND_H_
#define QKV_COMMANDS_ATTEND_ATTEND_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "commands/shell/array_store.h"
#include "commands/shell/console.h"
#include "commands/shell/expressions.h"
#include "commands/shell/outputs.h"
#include "commands/shell/score_names.h"

// `qkv attend`: one call of attention() on arrays from files.

enum class Corner { kBottomRight, kTopLeft };
inline constexpr Choice<Corner> kCorners[] = {{"bottom_right", Corner::kBottomRight},
                                              {"top_left", Corner::kTopLeft}};
// The axis order of q, k, v and `out` if they have rank 4.
enum class Layout { kBhtd, kBthd };
inline constexpr Choice<qkv::RotaryPairing> kRotaryPairings[] = {
    {"neighbours", qkv::RotaryPairing::kNeighbours}, {"halves", qkv::RotaryPairing::kHalves}};
inline constexpr Choice<Layout> kLayouts[] = {{"bhtd", Layout::kBhtd}, {"bthd", Layout::kBthd}};

// ---- results that may be saved --------------------------------------------------------------

// A result of attention, and its names on the command line and in the library.
struct ResultKind {
  std::string_view name;      // on the command line and in files
  std::string_view argument;  // in qkv::kResults and in the library's messages
  std::string_view help;
  qkv::ResultAxes axes = axes_of(argument);

  static constexpr qkv::ResultAxes axes_of(std::string_view argument) {
    auto axes = qkv::ResultAxes::kTop;
    qkv::for_each_result([&](const auto& result) {
      if (result.name == argument) axes = result.axes;
    });
    return axes;
  }
};
// All results except the largest weights, which --top requests, in the order of the report and of
// files.
inline constexpr ResultKind kResultKinds[] = {
    {"out", "out", "weighted sums of v"},
    {"weights", "weights", "weights before dropout"},
    {"dropped", "dropped_weights", "weights after dropout"},
    {"scores", "raw_scores", "scores after the scale"},
    {"capped", "capped_scores", "scores after the soft-cap"},
    {"masked", "masked_scores", "scores after --score-mod, bias, ALiBi and masks"},
    {"lse", "lse", "log of the sum of exponentials"},
    {"row_max", "row_max", "largest masked score"},
    {"entropy", "entropy", "entropy of each query's weights, in nats"},
    {"column_sums", "column_sums", "each key's weights, summed over queries"},
    {"value_sums", "value_sums", "column_sums times the length |v| of each value"},
    {"pooled", "pooled", "weights in the cells of --pool"},
};
inline constexpr std::size_t kResultKindCount = std::size(kResultKinds);

// Whether kResultKinds has an entry for each result of the library except the largest weights.
consteval bool has_every_result() {
  bool has = true;
  qkv::for_each_result([&](const auto& result) {
    bool found = result.axes == qkv::ResultAxes::kTop;
    for (const ResultKind& kind : kResultKinds) found = found || kind.argument == result.name;
    has = has && found;
  });
  return has;
}
static_assert(has_every_result(), "kResultKinds has an entry for each of qkv::kResults");

// The names of the results with these axes, joined by `conjunction`: "column_sums and value_sums".
std::string names_with(qkv::ResultAxes axes, std::string_view conjunction);

// ---- the command line -----------------------------------------------------------------------

// Members that name arrays hold FILE[:NAME], or "" if the option is not given.
struct AttendOptions {
  std::vector<std::string> files{};
  Layout layout = Layout::kBhtd;
  qkv::Score score;  // without parameters, which are read from --params
  std::string params{};
  std::optional<double> norm_eps{};
  std::optional<qkv::RotaryPairing> rotary{};
  std::optional<double> rotary_base{};
  std::optional<qkv::Index> rotary_width{};
  std::string rotary_frequencies{};
  std::string q_positions{};
  std::string k_positions{};
  std::optional<double> scale{};
  double softcap = 0;
  ExpressionOptions expressions{};
  std::string bias{};
  std::string alibi{};  // FILE[:NAME] or "auto"
  bool causal = false;
  std::optional<Corner> corner{};
  std::string offset{};  // FILE[:NAME] or a number
  std::optional<qkv::Window> window{};
  std::string lengths{};
  std::string mask{};
  std::string padding{};
  std::string sinks{};
  std::string cu_seqlens_q{};
  std::string cu_seqlens_k{};
  std::optional<double> dropout{};
  std::optional<std::uint64_t> seed{};
  std::vector<bool> save = std::vector<bool>(kResultKindCount);  // all false: the default results
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
  // The user's word for the argument: the name of an option or of an array. If empty, messages keep
  // the library's name.
  std::optional<std::string> word{};
};

// The word of an option, "padding-mask" for --padding-mask.
inline std::string word_of(std::string_view option) { return std::string(option.substr(2)); }

struct AttendCall {
  ArrayStore store{};
  qkv::Inputs inputs{};
  qkv::Options options{};
  qkv::Tensor slopes{};                     // the slopes of --alibi auto
  std::map<std::string, Origin> origins{};  // by the library's name of the argument
  nlohmann::ordered_json settings{};        // the options that the reports show
  std::vector<std::string> warnings{};
};

// The sizes of a call that determine its results' shapes; arbitrary unless inputs fit together.
struct CallShape {
  qkv::Dims lead{};            // the batch axes, then heads if there is such an axis; packed: [H]
  bool has_head_axis = false;  // false if packed
  bool packed = false;
  qkv::Index sequences = 0;  // 0 if not packed
  qkv::Index head_count = 1;
  qkv::Index queries = 0;
  qkv::Index keys = 0;
  qkv::Index width = 0;  // channels of v
};
CallShape shape_of(const qkv::Inputs& inputs);

// Fills `call` from the options and the files that they name.
void read_call(const AttendOptions& options, AttendCall& call);

struct NamedTensor {
  std::string name{};
  qkv::Tensor tensor{};
};
struct AttendResults {
  std::vector<NamedTensor> arrays{};  // those requested, in the order of kResultKinds, then --top's
  qkv::Tensor weights{};              // weights for pictures, if needed and not among `arrays`
  qkv::Tensor unmasked{};             // bool, shape of weights; absent unless a pair is masked
  std::string path{};
  CallShape shape{};
};

// The name in kResultKinds of the weights that pictures show: "dropped" if --save names it, or if
// there is dropout and --save does not name "weights"; else "weights".
std::string_view drawn_weights(const AttendOptions& options);

// Throws UsageError if the options that ask for results do not fit together.
void check_results(const AttendOptions& options, const AttendCall& call);

AttendResults compute(const AttendOptions& options, AttendCall& call, const Common& common);

// The results in the output forms. All arguments must outlive the forms; `call` and `results` may
// be filled later.
Results attend_forms(const AttendOptions& options, const AttendCall& call,
                     const AttendResults& results);

#endif  // QKV_COMMANDS_ATTEND_ATTEND_H_
