// SPDX-License-Identifier: Apache-2.0
// Elements of HTML and SVG. Text in them is text: nothing is parsed.

const SVG = "http://www.w3.org/2000/svg";

function filled(made, attributes, children) {
  for (const [name, value] of entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function svgText(text, x, y, attributes = {}) {
  return svg("text", {x, y, "dominant-baseline": "central", fill: ink("faint"), ...attributes}, text);
}

function button(text, action, attributes = {}) {
  const made = make("button", {type: "button", ...attributes}, text);
  on(made, "click", action);
  return made;
}

// Gives an element a background, and a legible colour of its text.
function paint(made, colour) {
  made.style.background = hexOf(colour);
  made.style.color = wantsDarkText(colour) ? "#000" : "#fff";
}

let patterns = 0; // how many ids there are

// A hatched rectangle, after its pattern.
function hatched(box) {
  const id = `hatching-${++patterns}`;
  return [svg("pattern", {id, width: 5, height: 5, patternUnits: "userSpaceOnUse"},
    svg("path", {d: "M-1 1l2-2M0 5l5-5M4 6l2-2", stroke: FAINT_LINES[theme()], "stroke-width": 0.8})),
  svg("rect", {...box, fill: `url(#${id})`})];
}
