// SPDX-License-Identifier: Apache-2.0
// The table of all maps, layers x heads.

const grid = by("grid");
const gridButtons = []; // one for each map

// The short form of names such as "layer 2", if all names have it.
function shortNames(names) {
  const short = names.map((name) => name.replace(/^(layer|head) (?=\d+$)/, ""));
  return names.every((name, n) => name !== short[n]) ? short : names;
}

function buildGrid() {
  const head = make("tr", {}, make("td"), ...shortNames(page.heads).map((name) => make("th", {scope: "col"}, name)));
  const table = make("table", {"aria-label": "All maps: a row for each layer, a column for each head"},
    make("thead", {}, head));
  const body = make("tbody");
  shortNames(page.layers).forEach((layer, row) => {
    const line = make("tr", {}, make("th", {scope: "row"}, layer));
    page.heads.forEach((_, column) => {
      const map = row * HEADS + column;
      const cell = button("", () => lockMap(map));
      on(cell, "mouseenter", () => preview(map));
      on(cell, "mouseleave", () => preview(null));
      gridButtons.push(cell);
      line.append(make("td", {}, cell));
    });
    body.append(line);
  });
  table.append(body);
  grid.replaceChildren(table);
  const room = min(460, by("overview").clientWidth - 60);
  const side = min(max(floor(room / HEADS) - 3, 28), 96);
  grid.style.setProperty("--side", `${side}px`);
}

function lockMap(map) {
  hover.map = null;
  setState({layer: floor(map / HEADS), head: map % HEADS});
}

function preview(map) {
  hover.map = map;
  draw();
}

// Moves to the map some layers and heads away, and focuses it if `focus` is true.
function stepMap(layers, heads, focus) {
  const layer = min(max(state.layer + layers, 0), page.layers.length - 1);
  const head = min(max(state.head + heads, 0), HEADS - 1);
  lockMap(layer * HEADS + head);
  if (focus) gridButtons[layer * HEADS + head].focus();
}

const HEAD_KEYS = {"[": [0, -1], "]": [0, 1], "{": [-1, 0], "}": [1, 0]};

on(grid, "keydown", (event) => {
  const many = 1e6;
  const steps = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
    Home: [0, -many], End: [0, many], PageUp: [-many, 0], PageDown: [many, 0], ...HEAD_KEYS};
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (steps[event.key]) {
    event.preventDefault();
    stepMap(...steps[event.key], true);
  } else if (event.key === "c" && mapNames.length > 1) {
    setState({compare: "map", second: state.layer * HEADS + state.head});
  }
});

// The inverse of thumbnail() in app/page/map_facts.cc: the number of a byte above 2.
function thumbnailNumber(byte, magnitude, signs) {
  const place = (byte - 3) / 252;
  if (!signs) return place * place * magnitude;
  const root = 2 * place - 1;
  return sign(root) * root * root * magnitude;
}

function drawThumbnail(canvas, {bytes, width, height}, map, source) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const isDifference = source === DIFFERENCE;
  const palette = paletteOf(isDifference ? "red-blue" : state.colours, theme());
  const facts = factsOf(state.example, source, map);
  const whole = {lowest: 0, highest: page.magnitudes[source]};
  if (isDifference || page.code.signs) whole.lowest = -whole.highest;
  const own = state.range === "all" ? whole : facts;
  const ends = barEnds(own.lowest, own.highest, palette.centred);
  for (let n = 0; n < width * height; ++n) {
    const byte = bytes[map * width * height + n];
    if (byte === 0) continue; // masked: the button's hatching is seen
    const number = byte === 1 ? 0 : byte === 2 ? NaN : thumbnailNumber(byte, whole.highest, whole.lowest < 0) || SMALL;
    image.data.set([...colourOf(number, ends, state.scale, palette), 255], 4 * n);
  }
  context.putImageData(image, 0, 0);
}

// Fills a button with a number and the colour of its place among all maps.
function drawMeasure(cell, number, most) {
  const {levels} = paletteOf("blue", theme());
  cell.replaceChildren(number === null ? "\u2013" : brief(number, 2));
  const colour = levels[round(number === null || most <= 0 ? 0 : (number / most) * LEVELS * 0.7)];
  paint(cell, colour);
}

function overviewSource() {
  return state.compare === "file" ? DIFFERENCE : state.source;
}

// Draws what the maps look like, which moving the cursor does not change.
async function drawGrid() {
  const source = overviewSource();
  const drawnExample = state.example;
  const key = gridKey;
  const isMaximum = state.measure === "maximum" || source === DIFFERENCE || !areWeights;
  const all = isMaximum ? await thumbnails(drawnExample, source) : null;
  if (key !== gridKey) return;  // another overview was begun meanwhile
  const values = gridButtons.map((_, map) =>
    page.examples[drawnExample].facts[source][map][state.measure === "entropy" ? 2 : 3]);
  const most = max(...values.filter((value) => value !== null), 0);
  gridButtons.forEach((button, map) => {
    if (isMaximum) {
      const canvas = make("canvas");
      button.replaceChildren(canvas);
      button.style.background = "";
      drawThumbnail(canvas, all, map, source);
    } else {
      drawMeasure(button, values[map], most);
    }
    const {entropy, first} = factsOf(drawnExample, source, map);
    const facts = source === DIFFERENCE || !areWeights || entropy === null ? ""
      : `: entropy ${brief(entropy)} nats, weight of the first key ${brief(first)}`;
    button.setAttribute("aria-label", mapNames[map] + facts);
    button.title = mapNames[map] + facts;
  });
  noteGrid(source, all);
}

function noteGrid(source, all) {
  const {queries, keys} = current();
  let text = source === DIFFERENCE ? "Differences of the two files. " : "";
  if (all === null) {
    text = state.measure === "entropy" ? `Mean entropy of the rows${page.pooled ? " before pooling" : ""} in nats: small if they attend to few keys.`
      : `Mean weight that the rows give to the first key, ${tokenOf(keys, 0)}.`;
  } else if (queries.size > all.height || keys.size > all.width) {
    text += `A cell of these ${all.height} \u00d7 ${all.width} is the largest number among those it covers.`;
  }
  if (state.special !== "shown") text += " Special tokens are included here.";
  by("overview-note").textContent = text.trim();
}

// Marks the map that is shown.
function markGrid() {
  const shown = state.layer * HEADS + state.head;
  gridButtons.forEach((button, map) => {
    button.setAttribute("aria-pressed", String(map === shown));
    button.tabIndex = map === shown ? 0 : -1;
    button.classList.toggle("second", state.compare === "map" && map === state.second && map !== shown);
  });
}
