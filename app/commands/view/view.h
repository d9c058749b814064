// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_VIEW_VIEW_H_
#define QKV_COMMANDS_VIEW_VIEW_H_

#include <list>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <qkv/app/attention_file.h>
#include <qkv/app/page.h>
#include <qkv/app/picture.h>
#include <qkv/tensor.h>

#include "commands/shell/console.h"
#include "commands/shell/options.h"
#include "commands/shell/outputs.h"
#include "commands/view/attention_input.h"
#include "commands/view/index_list.h"

// The stages of `qkv view`: attention file -> selection -> reductions -> pictures, tables, files.

inline constexpr Choice<qkv::app::ColourScale> kScales[] = {
    {"linear", qkv::app::ColourScale::kLinear},
    {"sqrt", qkv::app::ColourScale::kSqrt},
    {"log", qkv::app::ColourScale::kLog}};

enum class Statistic { kMean, kMaximum };
// A step that reduces one axis of the maps to size 1.
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

// The options of a picture's looks.
struct PictureStyle {
  std::string title{};
  std::vector<std::string> axes{};  // names of rows and columns: none or two
  qkv::app::ColourScale scale = qkv::app::ColourScale::kLinear;
  qkv::app::ColourRange range = qkv::app::ColourRange::kAll;
  std::optional<qkv::app::Colours> colours{};  // none: red-blue for differences, else blue
  std::optional<double> highest{};             // --max, the number at the top of the colours
  std::optional<double> lowest{};              // --min, the number at the bottom of the colours
  qkv::app::CellTitles cell_titles = qkv::app::CellTitles::kUsual;
  bool notes_drawn = true;  // whether notes are drawn under the map
  std::string font{};       // "": the default
};

// Adds the options of a picture's looks.
void add_style(const Command& command, PictureStyle& style);
// Throws UsageError for options that contradict each other.
void check_style(const PictureStyle& style, bool is_difference);
// Throws UsageError if style.lowest is given and `colours` are centred at 0, or if style.highest is
// absent and no number that is shown lies above style.lowest.
void check_lowest(const PictureStyle& style, qkv::app::Colours colours, const qkv::Tensor& weights,
                  const qkv::Tensor& allowed);
// Warns if the font of --font is not installed, so that a .png or .pdf is drawn in another one.
void warn_of_font(const PictureStyle& style, const OutputOptions& outputs, const Common& common);

struct ViewOptions {
  AttentionInput input{};
  std::string minus{};  // FILE[:NAME] to subtract; "": none
  HeadChoice choice{};
  IndexList tokens{};  // indices of queries and keys alike
  IndexList queries{};
  IndexList keys{};
  bool hide_special = false;
  bool all_maps = false;                // whether all layers and heads are shown by default
  std::vector<std::string> keep{};      // special tokens to show in spite of hide_special
  std::vector<Reduction> reductions{};  // applied in this order
  PictureStyle style{};
  bool table = false;
  OutputOptions outputs{};

  bool is_difference() const { return !minus.empty(); }
};

// The most maps that are shown by default.
inline constexpr qkv::Index kUsualMaps = 12;

// A note about the part that is shown, with a hint about the options that change it.
struct Note {
  std::string text{};  // written on the picture
  std::string hint{};  // added in output for a person; "": none

  std::string line() const { return hint.empty() ? text : text + "; " + hint; }
};

// The part of a file that is shown, as indices of its axes.
struct Selection {
  qkv::Index example = 0;
  std::vector<qkv::Index> layers{};
  std::vector<qkv::Index> heads{};
  std::vector<qkv::Index> queries{};  // row indices of the file
  std::vector<qkv::Index> named{};    // the query index of each row in `queries`, by query_of()
  std::vector<qkv::Index> keys{};
  std::vector<qkv::Index> special_queries{};  // selected, but hidden as special tokens
  std::vector<qkv::Index> special_keys{};
  qkv::Index padding_queries = 0;  // queries at the end that are padding and left out
  qkv::Index padding_keys = 0;
  std::vector<Note> omissions{};  // notes on the parts that the defaults leave out
};

// The part of a file that the options select. Throws UsageError for indices the file does not have.
Selection select(const qkv::app::AttentionFile& file, const ViewOptions& options);

// The maps that are shown: a copy of the selected part, after reductions.
struct Shown {
  Selection selection{};
  qkv::Tensor weights{};              // [L,H,Tq,Tk]; float32 or float64 if reduced or subtracted
  qkv::Tensor allowed{};              // bool [L,H,Tq,Tk], false where masked; absent: no mask
  std::vector<std::string> layers{};  // titles such as "layer 2"; "": no such axis, or reduced
  std::vector<std::string> heads{};
  qkv::app::Strings src{};           // the tokens of the keys; empty if the file has none
  qkv::app::Strings tgt{};           // the tokens of the queries
  qkv::app::Strings tgt_in_files{};  // indices of the queries as text, for files if `tgt` is empty
  qkv::Tensor rows{};        // int64 [Tq], ascending query indices for output files; may be absent
  qkv::app::Strings axes{};  // names of rows and columns, [2]; no values: the usual ones
  qkv::app::Strings line{};  // the example's sentence, [1]; no values: none
  qkv::app::Strings translation{};  // the translation of the sentence, [1]
  qkv::app::Strings quantity{};     // the name of the numbers for output files, [1]
  int stored_rank = 2;              // the rank of attn in the file
  std::string array = "attn";       // the name of the weights in output files
  std::vector<Note> notes{};        // the notes on the picture, with their hints
  qkv::app::Picture picture{};      // points into the tensors above
};

// The selected maps of `file` or, if `minus` is not null, these less the same maps of `minus`.
Shown show(const qkv::app::AttentionFile& file, const qkv::app::AttentionFile* minus,
           const ViewOptions& options);

// Subtracts `part`, the corresponding part of the other file, from `shown`, and notes where the two
// differ in tokens and masks. Throws InputError if layers, heads, queries or keys differ.
void subtract(const Shown& part, const ViewOptions& options, Shown& shown);

// The name of an example, "example 2 of 4", or in a file of translations, whose lines count from 1
// as in qkv translate, "example 2 of 4 (line 3)".
std::string example_name(const qkv::app::AttentionFile& file, qkv::Index example);

// The examples of a page: the one that the options choose; else all, if the options name tokens,
// queries or keys; else all that are not empty. Throws UsageError if there is none.
std::vector<qkv::Index> page_examples(const qkv::app::AttentionFile& file,
                                      const ViewOptions& options);

// A page and the maps that it points into.
struct PageParts {
  std::list<Shown> shown{};
  qkv::app::Page page{};
};
// The page of all selected maps and, if `minus` is not null, of its maps to compare with. Throws
// UsageError for a page that would be too large, InputError if the files have different maps.
PageParts page_parts(const qkv::app::AttentionFile& file, const qkv::app::AttentionFile* minus,
                     const ViewOptions& options);
// The contents of the .html file. Throws UsageError, or Cancelled after Ctrl-C.
std::string page_bytes(const PageParts& parts);

// The quantity that the array's numbers are: the one that the file names, else "weight" or "score"
// for known names of arrays, else the array's name.
std::string quantity_of(const qkv::app::AttentionFile& file, const AttentionInput& input);

// Copies the selected part of maps [N,L,H,Tq,Tk] of a file to [L,H,Tq,Tk].
qkv::Tensor gathered(const qkv::ConstView& maps, const Selection& selection);
// Reduces one axis (0: layers, 1: heads) of [L,H,Tq,Tk] to size 1; NaN stays NaN.
qkv::Tensor reduced(const qkv::Tensor& maps, int axis, Statistic statistic);
// Reduces one axis of masks in the way of reduced(): a pair is allowed if any mask allows it.
qkv::Tensor any_allowed(const qkv::Tensor& masks, int axis);
// The weight that a selected row gives to `keys`, which are not shown, in all: mean and maximum
// over the rows whose sum is finite.
struct Unseen {
  double mean = 0;
  double most = 0;
};
Unseen unseen_weight(const qkv::app::AttentionFile& file, const Selection& selection,
                     const std::vector<qkv::Index>& keys);

// The maps for files: without their first axes of size 1, down to the rank in the input file.
qkv::ConstView attn_of(const Shown& shown);
// All arrays for files, which point into `shown`.
std::vector<qkv::app::NamedView> arrays_of(const Shown& shown);
nlohmann::ordered_json json_of(const Shown& shown, const ViewOptions& options);

#endif  // QKV_COMMANDS_VIEW_VIEW_H_
