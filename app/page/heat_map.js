// SPDX-License-Identifier: Apache-2.0
// Maps as cells, with a cross-hair that all of them share.

const MOST_LABEL = 110; // pixels of a token; longer ones are cut off with an ellipsis
const LEAST_CELL_WITH_LABEL = 13;
const MOST_CELL = 36;

// A colour of the style sheet.
function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const measuring = document.createElement("canvas").getContext("2d");

const textWidth = remembered((text) => {
  measuring.font = `12px ${ink("font")}`;
  return measuring.measureText(text).width;
}, 4000);

// The text, cut off with an ellipsis to the width of labels.
function cutOff(text) {
  if (textWidth(text) <= MOST_LABEL) return text;
  const characters = Array.from(text);
  while (characters.length > 1 && textWidth(characters.join("") + "\u2026") > MOST_LABEL) characters.pop();
  return characters.join("") + "\u2026";
}

// The pixels of the widest label among the shown places of an axis: of the longest 30, since measuring is slow.
function widestLabel(axis, places) {
  const texts = places.map((place) => tokenOf(axis, place)).sort((a, b) => b.length - a.length);
  return ceil(max(...texts.slice(0, 30).map((text) => textWidth(cutOff(text)))));
}

// The step between numbers at an axis whose cells are smaller than labels: 1, 2 or 5 times a power of 10.
function tickStep(cell, least) {
  for (let step = 1; ; step *= 10) {
    for (const part of [1, 2, 5]) if (part * step * cell >= least) return part * step;
  }
}

// The labels of the shown places of an axis: {text, at}, `at` among the shown places.
function labelsOf(axis, places, cell) {
  if (cell >= LEAST_CELL_WITH_LABEL) return places.map((place, at) => ({text: cutOff(tokenOf(axis, place)), at}));
  const step = tickStep(cell, 36);
  return places.map((place, at) => ({text: String(indexOf(axis, place)), at})).filter(({at}) => at % step === 0);
}

// Sizes in pixels: of a cell, and of the margins with the labels.
function layoutOf(map, width, height) {
  const {queries, keys} = page.examples[state.example];
  const columns = map.columns.length, rows = map.rows.length;
  let left = widestLabel(queries, map.rows) + 8, top = widestLabel(keys, map.columns) + 8;
  let cell = Number(state.zoom);
  if (state.zoom === "fit") {
    const fitted = floor(min((width - left - 2) / columns, max(height, 320) / rows));
    cell = min(max(fitted, 1), MOST_CELL);
  }
  if (cell < LEAST_CELL_WITH_LABEL) {
    left = 46;
    top = 22;
  }
  return {cell, left, top, columns, rows, width: left + columns * cell + 1, height: top + rows * cell + 1};
}

// Draws a map on a canvas, a pixel for each cell; masked cells are transparent.
function drawBitmap(map, canvas) {
  canvas.width = map.columns.length;
  canvas.height = map.rows.length;
  const image = new ImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const packed = ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red;
  const levels = Uint32Array.from(map.palette.levels, packed);
  const zero = packed(map.palette.zero), fault = packed(FAULT);
  let n = 0;
  for (let row = 0; row < map.rows.length; ++row) {
    const ends = endsOf(map, row);
    for (let column = 0; column < map.columns.length; ++column, ++n) {
      if (isMasked(map, n)) continue;
      const number = map.numbers[n];
      if (!isFinite(number)) pixels[n] = fault;
      else if (number === 0 && ends.lowest === 0) pixels[n] = zero;
      else pixels[n] = levels[round(placeOf(number, ends, map.scale) * LEVELS)];
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// The labels of an axis as SVG, of the rows or of the columns, in one colour.
function labelElements(labels, {cell, left, top}, isRow, attributes) {
  return labels.map(({text, at}) => {
    const middle = (isRow ? top : left) + (at + 0.5) * cell;
    if (isRow) return svgText(text, left - 5, middle, {"text-anchor": "end", ...attributes});
    if (cell >= LEAST_CELL_WITH_LABEL) {
      return svgText(text, middle, top - 5, {transform: `rotate(-90 ${middle} ${top - 5})`, ...attributes});
    }
    return svgText(text, middle, top - 9, {"text-anchor": at === 0 ? "start" : "middle", ...attributes});
  });
}

// A map but for its cells: labels, hatching and frame.
function surroundings(map, layout) {
  const {cell, left, top, columns, rows} = layout;
  const {queries, keys} = current();
  const box = {x: left, y: top, width: columns * cell, height: rows * cell};
  const group = svg("g", {}, ...labelElements(labelsOf(queries, map.rows, cell), layout, true),
    ...labelElements(labelsOf(keys, map.columns, cell), layout, false));
  if (map.kinds.masked) group.append(...hatched(box));
  group.append(svg("rect", {x: left - 0.5, y: top - 0.5, width: box.width + 1, height: box.height + 1,
    fill: "none", stroke: ink("line")}));
  return group;
}

function sized({width, height}, attributes, ...children) {
  return svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, ...attributes}, ...children);
}

// Makes an element that takes the arrow keys.
function keyed(children, label) {
  const box = make("div", {class: "scroll", tabindex: 0, role: "application", "aria-label": label}, ...children);
  on(box, "keydown", cursorKeys);
  return box;
}

// One map on the page.
class Panel {
  constructor() {
    this.title = make("h3");
    this.cells = make("canvas");
    this.stack = make("div", {class: "stack"});
    this.scroll = keyed([this.stack], "");
    this.root = make("div", {class: "panel"}, this.title, this.scroll);
    on(this.cells, "mousemove", (event) => isPinned() || moveCursor(...this.placeAt(event)));
    on(this.cells, "mouseleave", () => moveCursor(null, null));
    on(this.cells, "click", (event) => pinCell(...this.placeAt(event)));
  }

  // The places of the cell under the pointer.
  placeAt({offsetX, offsetY}) {
    const {rows, columns} = this.map;
    const at = (offset, places) => places[min(floor(offset / this.layout.cell), places.length - 1)];
    return [at(offsetY, rows), at(offsetX, columns)];
  }

  draw(map, title, width, height) {
    this.map = map;
    this.title.textContent = title;
    this.scroll.setAttribute("aria-label",
      `Heat map, ${title || map.name || "one map"}: ${map.rows.length} ${page.rows}, ${map.columns.length} ` +
      `${page.columns}. Arrow keys move the cross-hair, Enter pins it.`);
    const layout = (this.layout = layoutOf(map, width, height));
    drawBitmap(map, this.cells);
    for (const [name, pixels] of entries({left: layout.left, top: layout.top,
      width: layout.columns * layout.cell, height: layout.rows * layout.cell})) {
      this.cells.style[name] = `${pixels}px`;
    }
    this.over = sized(layout, {"aria-hidden": true, class: "over"});
    this.stack.replaceChildren(sized(layout, {"aria-hidden": true}, surroundings(map, layout)), this.cells, this.over);
    this.drawCursor();
  }

  // Draws the cross-hair, and the labels of its row and column over the others.
  drawCursor() {
    const {cell, left, top, rows, columns} = this.layout;
    const {query, key} = cursor();
    const row = this.map.rows.indexOf(query), column = this.map.columns.indexOf(key);
    const frame = (x, y, width, height, stroke) => svg("rect", {x: x - 0.5, y: y - 0.5, width: width + 1,
      height: height + 1, fill: "none", stroke: ink("accent"), "stroke-width": stroke});
    const drawn = [];
    const label = (axis, place, at, isRow) => {
      const text = cell < LEAST_CELL_WITH_LABEL ? String(indexOf(axis, place)) : cutOff(tokenOf(axis, place));
      drawn.push(...labelElements([{text, at}], this.layout, isRow,
        {fill: ink("accent"), stroke: ink("paper"), "stroke-width": 5, "paint-order": "stroke"}));
    };
    const y = top + row * cell, x = left + column * cell;
    const {queries, keys} = current();
    if (row >= 0) {
      drawn.push(frame(left, y, columns * cell, cell, 1));
      label(queries, query, row, true);
    }
    if (column >= 0) {
      drawn.push(frame(x, top, cell, rows * cell, 1));
      label(keys, key, column, false);
    }
    if (row >= 0 && column >= 0) drawn.push(frame(x, y, cell, cell, 2));
    this.over.replaceChildren(...drawn);
  }

  // Scrolls so that the cursor's cell is visible.
  reveal() {
    const {cell, left, top} = this.layout;
    const row = this.map.rows.indexOf(cursor().query), column = this.map.columns.indexOf(cursor().key);
    if (row < 0 || column < 0) return;
    const box = this.scroll;
    const into = (start, size, from, margin) => max(min(start, from - margin), from + cell + 12 - size);
    box.scrollLeft = into(box.scrollLeft, box.clientWidth, left + column * cell, left);
    box.scrollTop = into(box.scrollTop, box.clientHeight, top + row * cell, top);
  }
}
