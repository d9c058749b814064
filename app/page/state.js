// SPDX-License-Identifier: Apache-2.0
// What is shown. The page's address holds everything that differs from the first look.

const VIEWS = {map: "Map", arcs: "Arcs", text: "Text"};
const HINTS = {map: "Point at a cell to read its number; click to pin it.",
  arcs: "Point at a token on the left to see its lines; click to pin it.", text: "Click a token to pin it."};
const SCALES = {linear: "linear", sqrt: "square root", log: "log, four decades"};
const RANGES = {all: "all maps", head: "each map", row: "each row"};
const THEMES = {auto: "system", light: "light", dark: "dark"};
const SPECIALS = {shown: "shown", hidden: "hidden", renormalised: "hidden, renormalised"};
const areWeights = page.quantity === "weight";
if (!areWeights) delete SPECIALS.renormalised;
const MEASURES = {maximum: "largest numbers", entropy: "entropy", first: "weight of the first key"};
const DIRECTIONS = {row: "what it attends to", column: "what attends to it"};
const ZOOMS = {fit: "fitted", 2: "2 px", 4: "4 px", 8: "8 px", 14: "14 px", 20: "20 px", 36: "36 px"};

// The names of all maps; map n is layer * HEADS + head.
const mapNames = [];
for (const layer of page.layers) {
  for (const head of page.heads) mapNames.push([layer, head].filter(Boolean).join(", "));
}

const compareNames = {none: "nothing"};
if (page.other !== null) compareNames.file = "the other file";
if (mapNames.length > 1) compareNames.map = "another map";

// Each member of the state: its first value, and whether a text of the address is a value of it.
const among = (names) => (text) => Object.hasOwn(names, text);
const below = (count) => (text) => /^\d{1,6}$/.test(text) && Number(text) < count();
const members = {
  example: {first: 0, accepts: below(() => page.examples.length)},
  source: {first: OWN, accepts: below(() => (page.other === null ? 1 : 2))},
  layer: {first: 0, accepts: below(() => page.layers.length)},
  head: {first: 0, accepts: below(() => HEADS)},
  compare: {first: page.other === null ? "none" : "file", accepts: among(compareNames)},
  second: {first: 0, accepts: below(() => mapNames.length)},
  view: {first: "map", accepts: among(VIEWS)},
  measure: {first: "maximum", accepts: among(MEASURES)},
  special: {first: "shown", accepts: among(SPECIALS)},
  scale: {first: page.scale, accepts: among(SCALES)},
  range: {first: page.range, accepts: among(RANGES)},
  colours: {first: page.colours, accepts: among(page.palettes)},
  theme: {first: "auto", accepts: among(THEMES)},
  zoom: {first: "fit", accepts: among(ZOOMS)},
  direction: {first: "row", accepts: among(DIRECTIONS)},
  query: {first: null, accepts: below(() => current().queries.size)},
  key: {first: null, accepts: below(() => current().keys.size)},
};

const state = {};
// The cell under the pointer or moved to by keys, while none is pinned; and the map under the pointer.
const hover = {query: null, key: null, map: null};

function readAddress() {
  const address = new URLSearchParams(location.hash.slice(1));
  for (const [name, member] of entries(members)) {
    const text = address.get(name);
    const number = typeof member.first === "number" || member.first === null;
    state[name] = text !== null && member.accepts(text) ? (number ? Number(text) : text) : member.first;
  }
}

function writeAddress() {
  const address = new URLSearchParams();
  for (const [name, member] of entries(members)) {
    if (state[name] !== member.first) address.set(name, state[name]);
  }
  const hash = "#" + address.toString();
  if (hash !== (location.hash || "#")) history.replaceState(null, "", hash);
}

// The example that is shown.
function current() {
  return page.examples[state.example];
}

const darkSystem = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  return state.theme === "auto" ? (darkSystem.matches ? "dark" : "light") : state.theme;
}

function ownMap() {
  return hover.map ?? state.layer * HEADS + state.head;
}

// The maps that are shown: [example, source, layer, head] of each.
function shownMaps() {
  const place = (source, map) =>
    [state.example, source, floor(map / HEADS), map % HEADS];
  const maps = [place(state.source, ownMap())];
  if (state.compare === "file") maps.push(place(1 - state.source, ownMap()));
  if (state.compare === "map") maps.push(place(state.source, state.second));
  return maps;
}

function sourceName(source) {
  return (source === OWN ? page.name : page.other) || "the file";
}

// The name of a token, or its index if there are no tokens.
function tokenOf(axis, place) {
  return axis.tokens === null ? String(indexOf(axis, place)) : axis.tokens[place];
}

function indexOf(axis, place) {
  return axis.indices === null ? place : axis.indices[place];
}

function cursor() {
  return state.query === null && state.key === null ? hover : state;
}

function isPinned() {
  return cursor() === state;
}
