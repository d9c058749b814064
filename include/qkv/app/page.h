// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_PAGE_H_
#define QKV_APP_PAGE_H_

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include <qkv/app/picture.h>
#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

// One example of a page: all its maps have one shape. Rows are queries, columns are keys.
struct PageExample {
  std::string title{};                 // such as the sentence; may be empty
  Index number = 0;                    // the example's index in its file
  ConstView weights{};                 // [L,H,Tq,Tk], a real dtype; the memory stays the caller's
  ConstView allowed{};                 // [L,H,Tq,Tk] bool, false where masked; absent: no masking
  ConstView other{};                   // maps of the same shape to compare with; absent: none
  ConstView other_allowed{};           // like `allowed`, for `other`
  std::vector<std::string> queries{};  // Tq tokens, UTF-8; none: the page shows the indices
  std::vector<std::string> keys{};     // Tk tokens
  std::vector<Index> query_indices{};  // Tq: each row's query in the file; none: 0, 1, ...
  std::vector<Index> key_indices{};    // Tk: each column's key in the file; none: 0, 1, ...
  // If the maps are pooled: the mean entropy in nats of each map's rows before pooling, [L,H]. If
  // empty, the page shows the entropy of the rows that it has.
  std::vector<double> entropies{};
  std::vector<std::string> notes{};  // facts about what was reduced or hidden, and warnings
};

// A page with attention maps that a reader explores in a browser.
struct Page {
  std::string title{};
  std::vector<PageExample> examples{};  // either all have maps to compare with, or none has
  std::vector<std::string> layers{};    // L names such as "layer 2"; "" if there is no such axis
  std::vector<std::string> heads{};     // H names
  std::string name{};                   // name of the maps: their file
  std::string other_name{};             // name of the maps to compare with
  std::string row_name = "queries";     // name of the rows' axis
  std::string column_name = "keys";     // name of the columns' axis
  std::string quantity = "weight";      // name of the numbers
  // The initial look, which a reader can change.
  ColourScale scale = ColourScale::kLinear;
  ColourRange range = ColourRange::kAll;
  Colours colours = Colours::kBlue;
  std::optional<double> highest{};  // top of the range kAll; none: the largest finite number
};

// The most numbers that a page holds: 144 maps of 512 queries and keys, and some more.
inline constexpr Index kMostPageCells = 48'000'000;
// The most queries or keys of a page's maps.
inline constexpr Index kMostPageTokens = 10'000;

// Returns one HTML document that needs nothing else: it loads nothing from any network, and its
// security policy forbids all code but its own. Numbers are exact if all of them take at most 4 MiB
// as float32, or as float64 if any map is float64. Numbers that take more are rounded to multiples
// of M / 65534, where M is the largest unmasked magnitude, or of M / 16382 or M / 4094 if they
// would exceed about 18 MB compressed. The page states the largest error. Throws Error for a page
// without examples, for shapes or counts of labels or indices that do not match, and beyond
// kMostPageCells or kMostPageTokens. `stop` is polled; if it is set, Cancelled is thrown. Equal
// pages give identical bytes with one version of zlib.
QKV_API std::string draw_page(const Page& page, const std::atomic<bool>* stop = nullptr);

}  // namespace qkv::app

#endif  // QKV_APP_PAGE_H_
