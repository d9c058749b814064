// SPDX-License-Identifier: Apache-2.0
// The figure as one SVG for files, and the legend, which the page shows too.

const MOST_RECTANGLES = 10000; // cells; more are one image in the SVG, a pixel for each cell
const NOTE_WIDTH = 110; // characters of a line

// The bar of a map's colours with its ends, and the colours of cells that are no numbers: {svg, width, height}.
function legendOf(map, title) {
  const group = svg("g", {});
  const id = `bar-${++patterns}`;
  const gradient = svg("linearGradient", {id});
  map.palette.stops.forEach((colour, n, all) =>
    gradient.append(svg("stop", {offset: n / (all.length - 1), "stop-color": colour})));
  const barWidth = 200;
  group.append(gradient);
  let y = 8;
  if (title) {
    group.append(svgText(title, 0, y, {"font-weight": 600}));
    y += 20;
  }
  group.append(svg("rect", {x: 0, y: y - 5, width: barWidth, height: 10, fill: `url(#${id})`}));
  for (const part of [0, 0.5, 1]) {
    const text = map.rowEnds ? ["row's least", "", "row's most"][2 * part] : brief(numberAt(part, map.ends, map.scale));
    group.append(svgText(text, part * barWidth, y + 16,
      {"text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle"}));
  }
  const name = map.isDifference ? "difference" : page.quantity;
  group.append(svgText(name, barWidth + 12, y));
  let x = barWidth + 24 + textWidth(name);
  const swatch = (text, fill) => {
    const box = {x, y: y - 6, width: 12, height: 12, stroke: ink("line")};
    group.append(...(fill ? [svg("rect", {...box, fill: hexOf(fill)})] : hatched(box)), svgText(text, x + 18, y));
    x += 34 + textWidth(text);
  };
  if (map.kinds.zero) swatch("0", map.palette.zero);
  if (map.kinds.masked) swatch("masked", null);
  if (map.kinds.fault) swatch("not finite", FAULT);
  return {svg: group, width: x, height: y + 28};
}

// Puts a group at a place.
function placed(group, x, y) {
  return svg("g", {transform: `translate(${x} ${y})`}, group);
}

// A map with its cells: {svg, width, height}.
function mapGroup(map) {
  const layout = layoutOf(map, 900, 900);
  const {cell, left, top, columns, rows} = layout;
  const {queries, keys} = current();
  const group = surroundings(map, layout);
  if (map.numbers.length > MOST_RECTANGLES) {
    const canvas = make("canvas");
    drawBitmap(map, canvas);
    group.append(svg("image", {x: left, y: top, width: columns * cell, height: rows * cell, href: canvas.toDataURL(),
      "image-rendering": "pixelated"}));
    return {svg: group, ...layout};
  }
  const cells = svg("g", {"shape-rendering": "crispEdges"});
  for (let n = 0; n < map.numbers.length; ++n) {
    if (isMasked(map, n)) continue;
    const row = floor(n / columns), column = n % columns;
    cells.append(svg("rect", {x: left + column * cell, y: top + row * cell, width: cell, height: cell,
      fill: hexOf(colourAt(map, row, column))}, svg("title", {},
      `${tokenOf(queries, map.rows[row])} \u2192 ${tokenOf(keys, map.columns[column])}: ${cellText(map, row, column)}`)));
  }
  group.append(cells);
  return {svg: group, ...layout};
}

function arcsGroup(map) {
  const drawn = arcsElement(map, chosenLines(map));
  return {svg: drawn, width: Number(drawn.getAttribute("width")), height: Number(drawn.getAttribute("height"))};
}

// The text where the page has its words.
function textGroup(map, root) {
  const group = svg("g", {"font-size": 17});
  const from = root.getBoundingClientRect();
  for (const heading of root.querySelectorAll("h3")) {
    const box = heading.getBoundingClientRect();
    group.append(svgText(heading.textContent, 0, box.top - from.top + box.height / 2, {"font-size": 13}));
  }
  for (const button of root.querySelectorAll("button")) {
    const box = button.getBoundingClientRect();
    const x = box.left - from.left, y = box.top - from.top;
    const {backgroundColor, color, textDecorationLine} = getComputedStyle(button);
    const isChosen = button.getAttribute("aria-pressed") === "true";
    const frame = {x, y, width: box.width, height: box.height};
    group.append(svg("rect", {...frame, fill: backgroundColor, stroke: isChosen ? ink("accent") : "none",
      "stroke-width": 2}), ...(button.className === "masked" ? hatched(frame) : []),
    svgText(button.textContent, x + box.width / 2, y + box.height / 2,
      {fill: color, "text-anchor": "middle", "text-decoration": textDecorationLine}));
  }
  return {svg: group, width: from.width, height: from.height};
}

// Breaks a text into lines of at most NOTE_WIDTH characters, between words if there are any.
function linesOf(text) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const last = lines.length - 1;
    if (lines[last] !== "" && lines[last].length + word.length >= NOTE_WIDTH) lines.push(word);
    else lines[last] += (lines[last] === "" ? "" : " ") + word;
  }
  return lines;
}

// The figure: title, maps, legends and notes.
function figureElement({maps, titles, notes}) {
  const root = svg("svg", {"font-family": ink("font"), "font-size": 12});
  const margin = 20;
  let y = margin + 8, width = 300;
  const title = by("figure-title").textContent;
  root.append(svgText([page.title, title].filter(Boolean).join(": "), margin, y, {fill: ink("ink"), "font-size": 15, "font-weight": 600}));
  y += 24;
  let x = margin, tallest = 0;
  maps.forEach((map, n) => {
    const heading = titles[n] ? 22 : 0;
    const part = state.view === "map" ? mapGroup(map) : state.view === "arcs" ? arcsGroup(map)
      : textGroup(map, by("panels").children[n].lastElementChild);
    if (heading > 0) root.append(svgText(titles[n], x, y + 8, {"font-weight": 600}));
    root.append(placed(part.svg, x, y + heading));
    const legend = legendOf(map, "");
    root.append(placed(legend.svg, x, y + heading + part.height + 14));
    x += max(part.width, legend.width) + 28;
    tallest = max(tallest, heading + part.height + 14 + legend.height);
  });
  width = max(width, x - 28 + margin);
  y += tallest + 10;
  for (const line of notes.flatMap(linesOf)) {
    root.append(svgText(line, margin, y));
    width = max(width, margin * 2 + textWidth(line));
    y += 17;
  }
  const size = {width: ceil(width), height: ceil(y + margin)};
  root.prepend(svg("rect", {...size, fill: ink("paper")}));
  for (const [name, value] of entries({...size, viewBox: `0 0 ${size.width} ${size.height}`})) {
    root.setAttribute(name, value);
  }
  return {root, ...size};
}
