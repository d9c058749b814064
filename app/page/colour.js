// SPDX-License-Identifier: Apache-2.0
// Numbers as colours, in the way of app/picture/model.cc.

const DECADES = 4; // powers of ten on the logarithmic bar
const LEVELS = 255;
const FAULT = [213, 94, 0]; // numbers that are not finite
const FAINT_LINES = {light: "#aaa", dark: "#59616b"}; // of hatching

function rgbOf(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function hexOf(rgb) {
  return "#" + rgb.map((part) => part.toString(16).padStart(2, "0")).join("");
}

// The colours of a palette in a theme: {levels: LEVELS + 1 colours, zero, centred, stops}.
const paletteOf = remembered((name, theme) => {
  const palette = page.palettes[name];
  const stops = palette[theme].map(rgbOf);
  const levels = [];
  for (let level = 0; level <= LEVELS; ++level) {
    const at = (level / LEVELS) * (stops.length - 1);
    const from = min(floor(at), stops.length - 2);
    levels.push(stops[from].map((part, n) => round(part + (stops[from + 1][n] - part) * (at - from))));
  }
  const zero = rgbOf(palette.zero[theme === "dark" ? 1 : 0]);
  return {levels, zero, centred: palette.centred, stops: palette[theme]};
}, 32);

// Turns the smallest and the largest number into the ends of a bar.
function barEnds(lowest, highest, centred) {
  if (centred) {
    const most = max(highest, -lowest) || 1;
    return {lowest: -most, highest: most, centred};
  }
  return {lowest, highest: highest > lowest ? highest : lowest < 0 ? 0 : 1, centred};
}

// The place of a finite number on a bar, from 0 to 1.
function placeOf(number, ends, scale) {
  const {lowest, highest} = ends;
  if (ends.centred) {
    const part = min(abs(number) / highest, 1);
    const away = scale === "sqrt" ? sqrt(part) : scale === "log" ? 1 + log10(part) / DECADES : part;
    return 0.5 + (sign(number) * max(away, 0)) / 2;
  }
  if (scale === "log") {
    if (number <= 0 || highest <= 0) return 0;
    return min(max(1 + log10(number / highest) / DECADES, 0), 1);
  }
  const half = isFinite(highest - lowest) ? 1 : 0.5;  // the difference may overflow
  const inside = min(max((number * half - lowest * half) / (highest * half - lowest * half), 0), 1);
  return scale === "sqrt" ? sqrt(inside) : inside;
}

// The number at a place of a bar: the inverse of placeOf().
function numberAt(place, ends, scale) {
  const inverse = (part) => (scale === "sqrt" ? part * part : scale === "log" ? 10 ** ((part - 1) * DECADES) : part);
  if (ends.centred) {
    const away = abs(2 * place - 1);
    return away === 0 ? 0 : sign(place - 0.5) * inverse(away) * ends.highest;
  }
  if (scale === "log") return inverse(place) * ends.highest;
  const part = inverse(place);
  return ends.lowest * (1 - part) + ends.highest * part;
}

// The colour of a number that is not masked.
function colourOf(number, ends, scale, palette) {
  if (!isFinite(number)) return FAULT;
  if (number === 0 && ends.lowest === 0) return palette.zero;
  return palette.levels[round(placeOf(number, ends, scale) * LEVELS)];
}

// Whether text on a background should be dark. Dark and white text have equal contrast where the relative
// luminance (WCAG 2.1) is 0.179.
function wantsDarkText(rgb) {
  const [red, green, blue] = rgb.map((part) => (part / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179;
}
