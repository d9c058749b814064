// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_PICTURE_H_
#define QKV_APP_PICTURE_H_

#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

// The position of a weight w on the colour bar grows with w, sqrt(w), or log(w) over four decades.
enum class ColourScale { kLinear, kSqrt, kLog };

// The numbers that share a colour range, from the smallest of them (or 0) to the largest: those of
// all maps, of a map, or of a row of a map.
enum class ColourRange { kAll, kMap, kRow };

// The colours of numbers. Blue is the default (violet to yellow on terminals); grey is for
// printing; cividis is made for colour blindness. Red-blue is for numbers of both signs: its range
// is centred at 0.
enum class Colours { kBlue, kGrey, kViridis, kCividis, kRedBlue };

// The condition under which the cells of an SVG have titles ("cat → sat: 0.1234"), which browsers
// show under the pointer: at most 20,000 cells (each takes about 60 bytes), always, or never.
enum class CellTitles { kUsual, kAlways, kNever };

// One map of attention: rows are queries, columns are keys.
struct Panel {
  std::string title{};  // "layer 2, head 5"; none is drawn if empty
  ConstView weights{};  // [Tq,Tk], a real dtype, any strides; the memory stays the caller's
  ConstView allowed{};  // [Tq,Tk] bool, false where masked; absent: no masking
};

// A picture of attention maps, independent of the renderer. All panels share one shape and one
// colour bar. Masked and non-finite cells look different from each other and from every number, and
// so do cells of 0 unless the bar extends below 0.
struct Picture {
  std::string title{};
  std::vector<Panel> panels{};
  std::vector<std::string> queries{};  // Tq labels, UTF-8; none: row indices from 0
  std::vector<std::string> keys{};     // Tk labels
  std::vector<std::string> notes{};    // facts about what was reduced or hidden, and warnings
  // True if the notes are drawn below a line under the picture. An SVG's <desc> always has them.
  bool notes_drawn = true;
  std::string row_name = "queries";  // name of the rows' axis
  std::string column_name = "keys";  // name of the columns' axis
  std::string quantity = "weight";   // the name of the numbers, written at the bar
  ColourScale scale = ColourScale::kLinear;
  ColourRange range = ColourRange::kAll;
  Colours colours = Colours::kBlue;
  // The ends of the range kAll. If absent, `highest` is the largest finite weight, and `lowest` is
  // 0 or the smallest negative weight. Numbers outside of the range have the colour of the nearer
  // end, and the legend gives the farthest of them. `lowest` must be absent for kRedBlue, which is
  // centred at 0, and above 0 on a logarithmic scale.
  std::optional<double> highest{};
  std::optional<double> lowest{};
  int columns = 0;  // panels side by side; 0: automatic (terminals: as many as fit)
  CellTitles cell_titles = CellTitles::kUsual;
  // The font of SVG, PNG and PDF; empty: DejaVu Sans Mono, for whose widths the layout is made.
  std::string font{};
};

// A terminal's colours: none (maps are plain characters), the 256 colours of xterm, or 24 bits.
// With colours and Unicode, a line of text shows two rows of a long map.
enum class TerminalColours { kNone, k256, k24Bit };

struct TerminalStyle {
  int columns = 80;  // width of the terminal; wider maps are split into bands of keys
  TerminalColours colours = TerminalColours::k24Bit;
  bool unicode = true;  // false: ASCII only
};

// The error of a program or library that this machine lacks; what() names the missing package.
class QKV_API NotAvailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~NotAvailable() override;
};

// Draws the picture for a terminal, with identical bytes for equal pictures on every machine. All
// drawing functions throw Error for a picture without panels, for panels of different shapes, and
// for labels that are not as many as the queries or keys.
QKV_API std::string draw_terminal(const Picture& picture, const TerminalStyle& style);
// Draws one SVG 1.1 document with its text as text. Throws Error for more than 4,000,000 cells, or
// 10,000 queries or keys: the caller has to select or reduce.
QKV_API std::string draw_svg(const Picture& picture);
// Renders the SVG with librsvg, `zoom` pixels for each of its units, or fewer where the image would
// exceed 32767 pixels in width or height or 10^8 in total. `stop` is polled; if it is set,
// Cancelled is thrown. Throws NotAvailable.
QKV_API std::string draw_png(const Picture& picture, double zoom = 2,
                             const std::atomic<bool>* stop = nullptr);
// Renders the SVG as a PDF page of the picture's size, with its text as text. The file holds the
// current date, or that of the environment variable SOURCE_DATE_EPOCH if it is set. `stop` is
// polled as in draw_png().
QKV_API std::string draw_pdf(const Picture& picture, const std::atomic<bool>* stop = nullptr);
// The font in which draw_png() and draw_pdf() draw text on this machine in place of a requested
// `font` that it lacks, according to fontconfig's program `fc-match`, which Debian installs along
// with librsvg. Empty if the requested font is used, if there is no `fc-match`, and for a generic
// name ("monospace"), for which any font may serve. `stop` is polled as in draw_png().
QKV_API std::string font_in_place_of(const std::string& font,
                                     const std::atomic<bool>* stop = nullptr);
// Writes the numbers as one table for each panel. With `columns` above 0 every line fits a terminal
// of that width (20 at least): keys that do not fit follow in bands below.
QKV_API std::string draw_table(const Picture& picture, int columns = 0);

}  // namespace qkv::app

#endif  // QKV_APP_PICTURE_H_
