// SPDX-License-Identifier: Apache-2.0
// The page: its controls, and drawing what the state says.

const shown = {maps: [], titles: [], notes: []}; // what is drawn now
let panels = []; // of the view "map"
let draws = 0; // how often drawing began
let gridKey = ""; // what the overview is drawn for
let isGridDrawn = false;

// ---- the cursor ---------------------------------------------------------------------------------

function moveCursor(query, key) {
  if (isPinned() || (hover.query === query && hover.key === key)) return;
  hover.query = query;
  hover.key = key;
  drawCursor();
}

function pinCell(query, key) {
  if (isPinned() && state.query === query && state.key === key) return unpin();
  setState({query, key});
}

function unpin() {
  hover.query = state.query;
  hover.key = state.key;
  setState({query: null, key: null});
}

// Draws what depends on the cursor.
function drawCursor() {
  if (state.view === "map") for (const panel of panels) panel.drawCursor();
  else drawOtherView();
  drawReadout();
}

// Moves the cursor by keys.
function cursorKeys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (HEAD_KEYS[event.key]) return stepMap(...HEAD_KEYS[event.key], false);
  if (event.key === "Escape") return unpin();
  const {rows, columns} = shown.maps[0];
  const at = cursor();
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    if (at.query !== null || at.key !== null) pinCell(at.query, at.key);
    return;
  }
  const last = {row: rows.length - 1, column: columns.length - 1};
  const steps = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-10, 0],
    PageDown: [10, 0], Home: [0, -last.column], End: [0, last.column]};
  const step = steps[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const inside = (n, most) => min(max(n, 0), most);
  const row = rows.indexOf(at.query), column = columns.indexOf(at.key);
  const isNew = row < 0 || column < 0;
  const query = rows[isNew ? max(row, 0) : inside(row + step[0], last.row)];
  const key = columns[isNew ? max(column, 0) : inside(column + step[1], last.column)];
  if (isPinned()) setState({query, key});
  else moveCursor(query, key);
  if (state.view === "map") for (const panel of panels) panel.reveal();
}

// ---- the read-out -------------------------------------------------------------------------------

function bdi(text) {
  return make("bdi", {}, text === "" ? "\u2205" : text);
}

function small(...parts) {
  return make("small", {}, parts.filter(Boolean).join(" \u00b7 "));
}

// The number of a cell in each map: "0.1", or "A 0.1 · B 0.2 · A − B −0.1".
function numbersAt(row, column) {
  return shown.maps.map((map, n) => {
    const name = shown.maps.length === 1 ? "" : n === 2 ? "A \u2212 B " : `${"AB"[n]} `;
    return name + cellText(map, row, column);
  }).join(" \u00b7 ");
}

// The stored number where another one is shown.
function storedText(map, row, column) {
  const stored = map.stored.numbers[map.rows[row] * current().keys.size + map.columns[column]];
  if (isMasked(map, row * map.columns.length + column)) {
    // Of rounded numbers, those beyond the others' range are not stored.
    const isLost = page.code.form === "steps" && abs(stored) === Infinity;
    const text = isLost ? "infinite, or out of the range of the others" : exact(stored);
    return stored === 0 ? "" : `stored under the mask: ${text}`;
  }
  return state.special === "renormalised" ? `renormalised, stored: ${exact(stored)}` : "";
}

function drawReadout() {
  const {query, key} = cursor();
  const {queries, keys} = current();
  const [map] = shown.maps;
  const row = map.rows.indexOf(query), column = map.columns.indexOf(key);
  const tokens = [], places = [];
  if (row >= 0) {
    tokens.push(bdi(tokenOf(queries, query)));
    places.push(`row ${indexOf(queries, query)} of ${page.rows}`);
  }
  if (column >= 0) {
    tokens.push(bdi(tokenOf(keys, key)));
    places.push(`column ${indexOf(keys, key)} of ${page.columns}`);
  }
  const more = [];
  if (tokens.length > 1) {
    tokens.splice(1, 0, " \u2192 ");
    tokens.push(": ", make("span", {class: "number"}, numbersAt(row, column)));
    more.push(storedText(map, row, column));
  }
  if (places.length === 0) places.push(HINTS[state.view]);
  if (isPinned()) more.push("pinned, Escape unpins");
  by("readout").replaceChildren(...tokens, small(places.join(", "), ...more));
}

// ---- drawing ------------------------------------------------------------------------------------

function drawPanels() {
  const root = by("panels");
  if (panels.length !== shown.maps.length || root.firstElementChild !== panels[0].root) {
    panels = shown.maps.map(() => new Panel());
    root.replaceChildren(...panels.map((panel) => panel.root));
  }
  const whole = root.clientWidth;
  const width = shown.maps.length === 1 || whole < 900 ? whole : floor(whole / 3) - 28;
  shown.maps.forEach((map, n) => panels[n].draw(map, shown.titles[n], width, innerHeight * 0.72));
}

// Draws the arcs or the text, and keeps what has the focus and how far it is scrolled.
function drawOtherView() {
  const root = by("panels");
  const old = [...root.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
  const focused = [...root.querySelectorAll("[tabindex]")].indexOf(document.activeElement);
  const drawn = [];
  root.replaceChildren(...shown.maps.map((map, n) => {
    const title = make("h3", {}, shown.titles[n]);
    if (state.view === "text") {
      drawn.push(sentenceNote(map));
      return make("div", {class: "panel wide"}, title, sentenceElement(map));
    }
    const lines = chosenLines(map);
    drawn.push(arcsNote(lines));
    return make("div", {class: "panel"}, title, keyed([arcsElement(map, lines)], `Lines from ${page.rows} on the left to ` +
      `${page.columns} on the right, ${map.name}. Arrow keys choose a query, Enter pins it.`));
  }));
  root.querySelectorAll(".scroll").forEach((box, n) => [box.scrollLeft, box.scrollTop] = old[n] ?? [0, 0]);
  if (focused >= 0) root.querySelectorAll("[tabindex]")[focused]?.focus({preventScroll: true});
  drawNotes([...new Set(drawn.filter(Boolean))]);
}

function drawNotes(more) {
  shown.notes = [...more, ...remarks(shown.maps)];
  if (state.view === "map") shown.notes.unshift(`rows are ${page.rows}, columns are ${page.columns}`);
  by("notes").replaceChildren(...shown.notes.map((note) => make("li", {}, note)));
}

function drawLegend() {
  const [a, b, c] = shown.maps;
  const isCommon = state.range === "all" && state.special !== "renormalised";
  const legends = b === undefined ? [[a, ""]] : [...(isCommon ? [[a, "A and B"]] : [[a, "A"], [b, "B"]]), [c, c.name]];
  by("legend").replaceChildren(...legends.map(([map, title]) => {
    const legend = legendOf(map, title);
    return sized(legend, {role: "img", "aria-label": `Colours of ${title || "the map"}: ${map.rowEnds ? "each row has its own range" :
      `${brief(map.ends.lowest)} to ${brief(map.ends.highest)}`}`}, legend.svg);
  }));
}

async function drawFigure(count) {
  const maps = await Promise.all(shownMaps().map(shownMap));
  if (count !== draws) return false;
  if (maps.length === 2) maps.push(difference(maps[0], maps[1]));
  maps.forEach(setBar);
  shown.maps = maps;
  shown.titles = maps.length === 1 ? [""] : [`A: ${maps[0].name}`, `B: ${maps[1].name}`, maps[2].name];
  by("figure-title").textContent = [mapNames[ownMap()], current().title].filter(Boolean).join(" \u00b7 ") || "Map";
  if (hover.map !== null) by("figure-title").append(make("span", {class: "note"}, " preview"));
  if (state.view === "map") {
    drawPanels();
    drawNotes([]);
  } else {
    drawOtherView();
  }
  drawLegend();
  drawReadout();
  return true;
}

// Draws everything that the state asks for. The attribute data-drawn counts what is finished.
async function draw() {
  const count = ++draws;
  document.documentElement.dataset.theme = theme();
  writeAddress();
  showControls();
  markGrid();
  const key = JSON.stringify([state.example, overviewSource(), state.measure, state.scale, state.range, state.colours, theme()]);
  if (await drawFigure(count)) document.documentElement.dataset.drawn = count;
  if (key === gridKey || count !== draws) return;
  gridKey = key;
  isGridDrawn = false;
  await drawGrid();
  isGridDrawn = true;
}

function setState(changes) {
  const isOfCursor = Object.keys(changes).every((name) => name === "query" || name === "key");
  if ("example" in changes) Object.assign(changes, {query: null, key: null});
  Object.assign(state, changes);
  if (!isOfCursor || shown.maps.length === 0) return draw();
  writeAddress();
  drawCursor();
}

// ---- the controls -------------------------------------------------------------------------------

function exampleName(example) {
  const {keys, number} = example;
  const text = example.title || (keys.tokens === null ? "" : keys.tokens.slice(0, 8).join(" "));
  const short = Array.from(text);
  return `${number}${text ? ": " : ""}${short.slice(0, 26).join("")}${short.length > 26 ? "\u2026" : ""}`;
}

function fillSelect(name, options) {
  const select = by(name);
  for (const [value, text] of entries(options)) select.append(make("option", {value}, text));
  on(select, "change", () => {
    const isNumber = typeof members[name].first === "number";
    setState({[name]: isNumber ? Number(select.value) : select.value});
  });
}

const selects = {
  example: {...page.examples.map(exampleName)},
  source: page.other === null ? {} : {0: sourceName(OWN), 1: sourceName(OTHER)},
  compare: compareNames,
  second: {...mapNames},
  special: SPECIALS,
  scale: SCALES,
  range: RANGES,
  colours: Object.fromEntries(Object.keys(page.palettes).map((name) => [name, name])),
  theme: THEMES,
  measure: MEASURES,
  zoom: ZOOMS,
  direction: DIRECTIONS,
};

// Makes the controls show the state, and hides those that would do nothing.
function showControls() {
  for (const name of Object.keys(selects)) by(name).value = state[name];
  by("example-label").hidden = page.examples.length === 1;
  by("source-label").hidden = page.other === null;
  by("compare").parentElement.hidden = Object.keys(compareNames).length === 1;
  by("second-label").hidden = state.compare !== "map";
  by("special-label").hidden = page.examples.every(({queries, keys}) => queries.special.length + keys.special.length === 0);
  by("measure").parentElement.hidden = !areWeights || overviewSource() === DIFFERENCE;
  by("figure").classList.toggle("compared", state.compare !== "none");
  by("overview").hidden = mapNames.length === 1;
  by("zoom-label").hidden = state.view !== "map";
  by("direction-label").hidden = state.view !== "text";
  for (const button of by("views").children) button.setAttribute("aria-pressed", String(button.value === state.view));
}

function aboutText() {
  const {queries, keys} = page.examples[0];
  const same = page.examples.every((one) => one.queries.size === queries.size && one.keys.size === keys.size);
  return [page.title ? page.name : "", page.other === null ? "" : `with ${page.other}`,
    page.examples.length > 1 ? plural(page.examples.length, "example") : "",
    page.layers[0] && plural(page.layers.length, "layer"), page.heads[0] && plural(HEADS, "head"),
    same ? `${queries.size} ${page.rows} \u00d7 ${keys.size} ${page.columns}` : "",
    page.code.error > 0 ? `numbers within ${briefBound(page.code.error)}` : "exact numbers"].filter(Boolean).join(" \u00b7 ");
}

function start() {
  by("about").textContent = aboutText();
  for (const [name, options] of entries(selects)) fillSelect(name, options);
  for (const [value, text] of entries(VIEWS)) {
    by("views").append(button(text, () => setState({view: value}), {value}));
  }
  readAddress();
  buildGrid();
  on(window, "hashchange", () => {
    readAddress();
    draw();
  });
  on(darkSystem, "change", draw);
  let drawnWidth = by("figure").clientWidth;
  new ResizeObserver(() => {
    if (by("figure").clientWidth === drawnWidth) return;
    drawnWidth = by("figure").clientWidth;
    draw();
  }).observe(by("figure"));
  draw();
}

start();
