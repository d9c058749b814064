// SPDX-License-Identifier: Apache-2.0
// Lines between two columns of tokens: the queries on the left, the keys on the right.

const MOST_LINES = 1500;
const TOKEN_HEIGHT = 20;
const ARC_WIDTH = 260; // pixels between the columns

// A size that at least MOST_LINES numbers of a map reach, if it has so many, and few more: sizes are
// counted in bins, since sorting all would be slow.
function leastOfMost(map) {
  const {lowest, highest} = extremes(map);
  const top = max(highest, -lowest) || 1;
  const bins = new Uint32Array(1001);
  for (let n = 0; n < map.numbers.length; ++n) {
    const size = abs(map.numbers[n]);
    if (size <= top && !isMasked(map, n)) ++bins[floor(sqrt(size / top) * 1000)];
  }
  let bin = 1000;
  for (let count = bins[bin]; bin > 0 && count < MOST_LINES; count += bins[bin]) --bin;
  return (bin / 1000) ** 2 * top * (1 - 1e-9);
}

// The cells whose lines are drawn: the MOST_LINES farthest from 0, of the cursor's query and key if
// there is one. {cells: [row, column, number], left: how many are not drawn, most: the largest of them}.
function chosenLines(map) {
  const chosen = cursor();
  const row = map.rows.indexOf(chosen.query);
  const column = isPinned() && chosen.query === null ? map.columns.indexOf(chosen.key) : -1;
  const cells = [];
  const width = map.columns.length;
  const isOfAll = row < 0 && column < 0;
  const least = isOfAll ? leastOfMost(map) : 0;
  let left = 0, most = 0;
  for (let n = 0; n < map.numbers.length; ++n) {
    const size = abs(map.numbers[n]);
    if (!(size > 0 && size < Infinity) || isMasked(map, n)) continue;
    const query = floor(n / width), key = n % width;
    if ((row >= 0 && query !== row) || (column >= 0 && key !== column)) continue;
    if (size >= least) {
      cells.push([query, key, map.numbers[n]]);
    } else {
      ++left;
      most = max(most, size);
    }
  }
  cells.sort((a, b) => abs(b[2]) - abs(a[2]));
  const rest = cells.splice(MOST_LINES);
  if (rest.length > 0) most = abs(rest[0][2]);
  return {cells: cells.reverse(), left: left + rest.length, most};
}

function arcsNote({left, most}) {
  const all = "the wider and stronger a line, the larger its number";
  return left === 0 ? all : `${all}; the ${MOST_LINES} largest numbers are drawn as lines; ${left} others, of at most ` +
    `${brief(most)}, are not`;
}

// How far a number is from 0 on its bar, 0 to 1.
function strengthOf(map, row, number) {
  const place = placeOf(number, endsOf(map, row), map.scale);
  return map.palette.centred ? abs(2 * place - 1) : place;
}

// The parts of the drawing, for the page and for files: the lines and the two columns of tokens.
function arcsOf(map, chosen) {
  const {queries, keys} = current();
  const side = (axis, places, name) => ceil(max(widestLabel(axis, places), textWidth(name))) + 10;
  const left = side(queries, map.rows, page.rows), right = side(keys, map.columns, page.columns);
  const middle = (at) => 24 + (at + 0.5) * TOKEN_HEIGHT;
  const lines = chosen.cells.map(([row, column, number]) => {
    const strength = strengthOf(map, row, number);
    const y = middle(row), z = middle(column), bend = ARC_WIDTH * 0.4;
    const colour = map.palette.centred ? colourOf(number, endsOf(map, row), map.scale, map.palette)
      : map.palette.levels[round(LEVELS * (theme() === "dark" ? 0.75 : 0.6))];
    return {
      d: `M${left} ${y}C${left + bend} ${y} ${left + ARC_WIDTH - bend} ${z} ${left + ARC_WIDTH} ${z}`,
      stroke: hexOf(colour),
      "stroke-opacity": (0.08 + 0.92 * strength).toFixed(3),
      "stroke-width": (0.5 + 3.5 * strength).toFixed(2),
    };
  });
  const column = (axis, places, x, anchor, name) => places.map((place, at) => ({
    text: cutOff(tokenOf(axis, place)), x, y: middle(at), anchor, name, place,
  }));
  return {
    lines,
    labels: [...column(queries, map.rows, left - 6, "end", "query"),
      ...column(keys, map.columns, left + ARC_WIDTH + 6, "start", "key")],
    names: [{text: page.rows, x: left - 6, y: 12, anchor: "end"},
      {text: page.columns, x: left + ARC_WIDTH + 6, y: 12, anchor: "start"}],
    width: left + ARC_WIDTH + right,
    height: 34 + max(map.rows.length, map.columns.length) * TOKEN_HEIGHT,
  };
}

// The drawing as an SVG element whose tokens react to the pointer.
function arcsElement(map, chosen) {
  const arcs = arcsOf(map, chosen);
  const root = sized(arcs, {"aria-hidden": true}, ...arcs.lines.map((line) => svg("path", {...line, fill: "none"})),
    ...arcs.names.map(({text, x, y, anchor}) => svgText(text, x, y, {"text-anchor": anchor})));
  for (const {text, x, y, anchor, name, place} of arcs.labels) {
    const isChosen = cursor()[name] === place;
    const label = svgText(text, x, y, {"text-anchor": anchor, fill: ink(isChosen ? "accent" : "ink"),
      "font-weight": isChosen ? 600 : 400});
    const places = name === "query" ? [place, null] : [null, place];
    on(label, "mouseenter", () => name === "query" && moveCursor(...places));
    on(label, "click", () => pinCell(...places));
    root.append(label);
  }
  on(root, "mouseleave", () => moveCursor(null, null));
  return root;
}
