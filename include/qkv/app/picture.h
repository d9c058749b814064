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

// How a weight maps to a place on the colour bar: x, sqrt(x), or log(x) over four decades.
enum class ColourScale { kLinear, kSqrt, kLog };

// What has colours of its own, from its smallest number (or 0) to its largest: all maps together,
// each map, or each row of each map.
enum class ColourRange { kAll, kMap, kRow };

// The colours of numbers. Blue is the usual one (violet to yellow on terminals); grey survives any
// printer; viridis and cividis are well known, the latter made for colour blindness. Red and blue
// are for numbers of both signs: the range is centred at 0.
enum class Colours { kBlue, kGrey, kViridis, kCividis, kRedBlue };

// Whether the cells of an SVG have titles ("cat → sat: 0.1234"), which browsers show under the
// pointer: up to 20,000 cells (each takes about 60 bytes), always, or never.
enum class CellTitles { kUsual, kAlways, kNever };

// One map of attention: rows are queries, columns are keys.
struct Panel {
  std::string title{};  // "layer 2, head 5"; none is drawn when empty
  ConstView weights{};  // [Tq,Tk], a real dtype, any strides; the memory stays the caller's
  ConstView allowed{};  // [Tq,Tk] bool, false where masked; absent: nothing is masked
};

// A picture, independent of the renderer. All panels share one shape, one colour range and one bar.
// Zero, masked and NaN look different from each other and from every number.
struct Picture {
  std::string title{};
  std::vector<Panel> panels{};
  std::vector<std::string> queries{};  // Tq labels, UTF-8; none: the rows are numbered from 0
  std::vector<std::string> keys{};     // Tk labels
  std::vector<std::string> notes{};    // what was reduced, hidden or looks wrong
  bool notes_drawn = true;             // below a line under the picture; an SVG's <desc> has them
                                       // in any case
  std::string row_name = "queries";    // of the axes
  std::string column_name = "keys";
  std::string quantity = "weight";  // what the numbers are: written at the bar
  ColourScale scale = ColourScale::kLinear;
  ColourRange range = ColourRange::kAll;
  Colours colours = Colours::kBlue;
  std::optional<double> highest{};  // top of the range kAll; none: the largest finite weight
  int columns = 0;                  // panels in a row; 0: automatic (terminals: as many as fit)
  CellTitles cell_titles = CellTitles::kUsual;
  std::string font{};  // on paper; empty: DejaVu Sans Mono, whose widths the layout is made for
};

// A terminal's colours: none (maps are plain characters then), the 256 colours of xterm,
// or 24 bits. With colours and Unicode, long maps have two rows on a line.
enum class TerminalColours { kNone, k256, k24Bit };

struct TerminalStyle {
  int columns = 80;  // of the terminal; wider maps are split into bands of keys
  TerminalColours colours = TerminalColours::k24Bit;
  bool unicode = true;  // else ASCII only
};

// Something this machine lacks; what() names the missing package.
class QKV_API NotAvailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~NotAvailable() override;
};

// All throw Error for a picture without panels, panels of different shapes or other label counts.
// The same picture gives the same bytes everywhere.
QKV_API std::string draw_terminal(const Picture& picture, const TerminalStyle& style);
// One SVG 1.1 document, text as text. Throws Error for more than 4,000,000 cells, or 10,000 queries
// or keys: select or reduce.
QKV_API std::string draw_svg(const Picture& picture);
// The SVG rendered by librsvg, `zoom` pixels for each of its units. `stop` is polled;
// if set, Cancelled is thrown. Throws NotAvailable.
QKV_API std::string draw_png(const Picture& picture, double zoom = 2,
                             const std::atomic<bool>* stop = nullptr);
// The same as a PDF page of the picture's size, text as text. It holds the date: of the environment
// variable SOURCE_DATE_EPOCH if that is set.
QKV_API std::string draw_pdf(const Picture& picture, const std::atomic<bool>* stop = nullptr);
// The font in which draw_png() and draw_pdf() draw text on this machine although another one was
// asked for, as fontconfig's program `fc-match` says, which Debian installs along with what draws.
// Empty: the one that was asked for, or nobody knows (no `fc-match`). A generic name ("monospace")
// is no font but whatever serves as one. `stop` as above.
QKV_API std::string font_in_place_of(const std::string& font,
                                     const std::atomic<bool>* stop = nullptr);
// Numbers: one table for each panel. With `columns` above 0 every line fits a terminal of that
// width (20 at least): keys that do not fit follow in bands below.
QKV_API std::string draw_table(const Picture& picture, int columns = 0);

}  // namespace qkv::app

#endif  // QKV_APP_PICTURE_H_
