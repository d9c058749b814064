// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_VIEW_VIEW_H_
#define QKV_COMMANDS_VIEW_VIEW_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <qkv/app/attention_file.h>
#include <qkv/app/picture.h>
#include <qkv/tensor.h>

#include "commands/shell/console.h"
#include "commands/shell/options.h"
#include "commands/shell/outputs.h"
#include "commands/view/attention_input.h"
#include "commands/view/index_list.h"

// `qkv view`: attention file -> selection -> reductions -> pictures, tables, files.

inline constexpr Choice<qkv::app::ColourScale> kScales[] = {
    {"linear", qkv::app::ColourScale::kLinear},
    {"sqrt", qkv::app::ColourScale::kSqrt},
    {"log", qkv::app::ColourScale::kLog}};

enum class Statistic { kMean, kMaximum };
// Reduces one axis of the maps to size 1.
struct Reduction {
  Statistic statistic;
  qkv::app::LeadingAxis axis;
};
inline constexpr Choice<Reduction> kReductions[] = {
    {"mean-heads", {Statistic::kMean, qkv::app::LeadingAxis::kHeads}},
    {"max-heads", {Statistic::kMaximum, qkv::app::LeadingAxis::kHeads}},
    {"mean-layers", {Statistic::kMean, qkv::app::LeadingAxis::kLayers}},
    {"max-layers", {Statistic::kMaximum, qkv::app::LeadingAxis::kLayers}}};

inline constexpr Choice<qkv::app::ColourRange> kRanges[] = {{"row", qkv::app::ColourRange::kRow},
                                                            {"head", qkv::app::ColourRange::kMap},
                                                            {"all", qkv::app::ColourRange::kAll}};
inline constexpr Choice<qkv::app::Colours> kColours[] = {{"blue", qkv::app::Colours::kBlue},
                                                         {"grey", qkv::app::Colours::kGrey},
                                                         {"viridis", qkv::app::Colours::kViridis},
                                                         {"cividis", qkv::app::Colours::kCividis},
                                                         {"red-blue", qkv::app::Colours::kRedBlue}};
inline constexpr Choice<qkv::app::CellTitles> kCellTitles[] = {
    {"auto", qkv::app::CellTitles::kUsual},
    {"always", qkv::app::CellTitles::kAlways},
    {"never", qkv::app::CellTitles::kNever}};
inline constexpr Choice<bool> kNotePlaces[] = {{"under", true}, {"aside", false}};

// How a picture looks.
struct PictureStyle {
  std::string title{};
  std::vector<std::string> axes{};  // names of rows and columns: none or two
  qkv::app::ColourScale scale = qkv::app::ColourScale::kLinear;
  qkv::app::ColourRange range = qkv::app::ColourRange::kAll;
  std::optional<qkv::app::Colours> colours{};  // none: red-blue for differences, else blue
  std::optional<double> highest{};             // top of the colour range
  qkv::app::CellTitles cell_titles = qkv::app::CellTitles::kUsual;
  bool notes_drawn = true;
  std::string font{};
};

void add_style(const Command& command, PictureStyle& style);
// Throws UsageError for a style that cannot be.
void check_style(const PictureStyle& style, bool is_difference);
// Warns if a file will be drawn in another font than --font names. An .svg only names it.
void warn_of_font(const PictureStyle& style, const OutputOptions& outputs, const Common& common);

struct ViewOptions {
  AttentionInput input{};
  std::string minus{};  // FILE[:NAME]; "": none
  HeadChoice choice{};
  IndexList tokens{};  // of both axes
  IndexList queries{};
  IndexList keys{};
  bool hide_special = false;
  std::vector<std::string> keep{};      // special tokens that are not hidden
  std::vector<Reduction> reductions{};  // in this order
  PictureStyle style{};
  bool table = false;
  OutputOptions outputs{};

  bool is_difference() const { return !minus.empty(); }
};

// The most maps shown by default.
inline constexpr qkv::Index kUsualMaps = 12;

// A note about what is shown, and what to do about it.
struct Note {
  std::string text{};  // on the picture
  std::string hint{};  // added in interactive output; "": none

  std::string line() const { return hint.empty() ? text : text + "; " + hint; }
};

// Which part of a file is shown: indices of its axes.
struct Selection {
  qkv::Index example = 0;
  std::vector<qkv::Index> layers{};
  std::vector<qkv::Index> heads{};
  std::vector<qkv::Index> queries{};  // rows of the file
  std::vector<qkv::Index> named{};    // the query that each of them is; the same in a whole file
  std::vector<qkv::Index> keys{};
  std::vector<qkv::Index> special_queries{};  // selected, but hidden as special tokens
  std::vector<qkv::Index> special_keys{};
  qkv::Index padding_queries = 0;  // at the end, not selected by default
  qkv::Index padding_keys = 0;
  std::vector<Note> omissions{};  // what the defaults leave out
};

// Throws UsageError for indices the file does not have.
Selection select(const qkv::app::AttentionFile& file, const ViewOptions& options);

// What is shown: a copy of that part, reduced.
struct Shown {
  Selection selection{};
  qkv::Tensor weights{};              // [L,H,Tq,Tk]; after a reduction float32, or float64
  qkv::Tensor allowed{};              // bool, likewise; absent: nothing is masked
  std::vector<std::string> layers{};  // "layer 2", "mean of layers 0-3"; "": the file has none
  std::vector<std::string> heads{};
  qkv::app::Strings src{};  // of the keys shown; empty if the file has none
  qkv::app::Strings tgt{};
  qkv::Tensor rows{};        // int64, the queries of a file that names its rows, if they ascend
  qkv::app::Strings axes{};  // names of rows and columns, [2]; no values: the usual ones
  qkv::app::Strings line{};  // the example's sentence, [1]; no values: none
  qkv::app::Strings translation{};
  int stored_rank = 2;          // of attn in the file
  std::string array = "attn";   // what the weights are called in files
  std::vector<Note> notes{};    // the picture has them without hints
  qkv::app::Picture picture{};  // points into the tensors above
};

// `minus`: if given, what is shown is the difference from it.
Shown show(const qkv::app::AttentionFile& file, const qkv::app::AttentionFile* minus,
           const ViewOptions& options);

// What show() begins with: the part, with its tokens and titles. reduce_all() returns its notes.
Shown part_of(const qkv::app::AttentionFile& file, const ViewOptions& options);
std::vector<Note> reduce_all(const std::vector<Reduction>& reductions, Shown& shown);

// Turns `shown` into its difference from the same part of the other file, with notes on how they
// differ in tokens and masks. Throws InputError if the parts are not the same.
void subtract(const qkv::app::AttentionFile& other, const ViewOptions& options, Shown& shown);

// What the numbers of the array that is read are: "weight", "score", "difference"; or its name.
std::string quantity_of(const AttentionInput& input);

// Copies the selected part of the file's maps, [L,H,Tq,Tk].
qkv::Tensor gathered(const qkv::ConstView& maps, const Selection& selection);
// Reduces one axis (0: layers, 1: heads) of [L,H,Tq,Tk] to size 1; NaN stays NaN. A pair is allowed
// if any of the masks allows it.
qkv::Tensor reduced(const qkv::Tensor& maps, int axis, Statistic statistic);
qkv::Tensor any_allowed(const qkv::Tensor& masks, int axis);
// How much weight the rows shown give to `keys`, which are not: the mean over rows and the
// maximum.
struct Unseen {
  double mean = 0;
  double most = 0;
};
Unseen unseen_weight(const qkv::app::AttentionFile& file, const Selection& selection,
                     const std::vector<qkv::Index>& keys);

// The forms for files. No axes are added to those the input file had.
qkv::ConstView attn_of(const Shown& shown);
std::vector<qkv::app::NamedView> arrays_of(const Shown& shown);
nlohmann::ordered_json json_of(const Shown& shown, const ViewOptions& options);

#endif  // QKV_COMMANDS_VIEW_VIEW_H_
