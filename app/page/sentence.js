// SPDX-License-Identifier: Apache-2.0
// The tokens as flowing text, shaded by what the pinned token attends to, or by what attends to it.

function isOneSentence() {
  const {queries, keys} = current();
  return queries.size === keys.size && queries.tokens !== null && keys.tokens !== null &&
    queries.tokens.every((token, n) => token === keys.tokens[n] && indexOf(queries, n) === indexOf(keys, n));
}

// The token that the text is shaded by: {axis: "query" or "key", place}.
function shadingToken(map) {
  const byRow = state.direction === "row";
  const {query, key} = cursor();
  const places = byRow ? map.rows : map.columns;
  const chosen = byRow ? query : isOneSentence() ? query : key;
  return {axis: byRow ? "query" : "key", place: places.includes(chosen) ? chosen : places[0]};
}

// For each shaded token: {place, colour, number as text}.
function shades(map) {
  const {axis, place} = shadingToken(map);
  const byRow = axis === "query";
  const row = map.rows.indexOf(place), column = map.columns.indexOf(place);
  return (byRow ? map.columns : map.rows).map((other, at) => {
    const [i, j] = byRow ? [row, at] : [at, column];
    const masked = isMasked(map, i * map.columns.length + j);
    return {place: other, masked, colour: masked ? null : colourAt(map, i, j), text: cellText(map, i, j)};
  });
}

// A paragraph of tokens, one of which takes part in the order of the Tab key. With `shading`, tokens that it
// lacks are hidden ones.
function paragraph(name, axis, shading, chosen, choose) {
  const shown = new Map((shading ?? []).map((shade) => [shade.place, shade]));
  const words = [];
  for (let place = 0; place < axis.size; ++place) {
    const token = tokenOf(axis, place);
    const shade = shown.get(place);
    const word = button(token || "\u00a0", () => choose(place),
      {tabindex: place === (chosen ?? 0) ? 0 : -1, dir: "auto", "aria-pressed": place === chosen});
    if (shade) {
      word.title = shade.text;
      word.setAttribute("aria-label", `${token || "empty token"}: ${shade.text}`);
      if (shade.colour) paint(word, shade.colour);
      else word.className = "masked";
    } else if (shading) {
      word.className = "hidden";
    }
    words.push(word);
  }
  const root = make("p", {class: "tokens", role: "group", "aria-label": name}, ...words);
  on(root, "keydown", (event) => {
    const at = words.indexOf(document.activeElement);
    const to = {ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowDown: at + 1, Home: 0,
      End: words.length - 1}[event.key];
    if (event.key === "Escape") unpin();
    if (words[to] === undefined) return;
    event.preventDefault();
    words[at].tabIndex = -1;
    words[to].tabIndex = 0;
    words[to].focus();
  });
  return root;
}

// The text as elements.
function sentenceElement(map) {
  const {queries, keys} = current();
  const {axis, place} = shadingToken(map);
  const one = isOneSentence();
  const choose = (chosen) => (axis === "query" || one ? pinCell(chosen, null) : pinCell(null, chosen));
  const root = make("div", {class: "wide"});
  if (one) {
    root.append(paragraph("The sentence", keys, shades(map), place, choose));
    return root;
  }
  const sides = [[page.rows, queries], [page.columns, keys]];
  const [[pinnedName, pinned], [shadedName, shaded]] = axis === "query" ? sides : sides.reverse();
  root.append(make("h3", {class: "note"}, pinnedName), paragraph(pinnedName, pinned, null, place, choose),
    make("h3", {class: "note"}, shadedName), paragraph(shadedName, shaded, shades(map), null, () => {}));
  return root;
}

function sentenceNote(map) {
  const {axis, place} = shadingToken(map);
  const token = tokenOf(current()[axis === "query" ? "queries" : "keys"], place);
  const quoted = `"\u2068${token}\u2069"`;
  return axis === "query" ? `shaded by what ${quoted} attends to` : `shaded by what attends to ${quoted}`;
}
