// SPDX-License-Identifier: Apache-2.0
// From stored maps to the numbers that are shown, and these numbers as text.

// The places of an axis that are shown.
function shownPlaces(axis) {
  const special = new Set(state.special === "shown" ? [] : axis.special);
  const places = [];
  for (let n = 0; n < axis.size; ++n) if (!special.has(n)) places.push(n);
  return places.length > 0 ? places : Array.from({length: axis.size}, (_, n) => n);
}

// Divides each row by the sum of its numbers that are shown and not masked. Returns how many rows
// have no such sum and stay as they are.
function renormalise(map) {
  let left = 0;
  for (let begin = 0; begin < map.numbers.length; begin += map.columns.length) {
    let sum = 0;
    for (let n = begin; n < begin + map.columns.length; ++n) {
      if (map.allowed === null || map.allowed[n]) sum += map.numbers[n];
    }
    if (!isFinite(sum) || sum < 1e-300) {
      ++left;
      continue;
    }
    for (let n = begin; n < begin + map.columns.length; ++n) {
      if (abs(map.numbers[n]) !== SMALL) map.numbers[n] /= sum;
    }
  }
  return left;
}

// A map as shown: {rows, columns: the places that are shown; numbers, allowed: of those; error, left}.
async function shownMap([example, source, layer, head]) {
  const stored = await storedMap(example, source, layer, head);
  const {queries, keys} = page.examples[example];
  const rows = shownPlaces(queries), columns = shownPlaces(keys);
  const map = {rows, columns, numbers: stored.numbers, allowed: stored.allowed, stored, left: 0, error: page.code.error};
  map.name = [mapNames[layer * HEADS + head], page.other === null ? "" : sourceName(source)]
    .filter(Boolean).join(", ");
  if (state.special === "shown") return map;
  const count = rows.length * columns.length;
  map.numbers = new Float64Array(count);
  if (stored.allowed !== null) map.allowed = new Uint8Array(count);
  let n = 0;
  for (const row of rows) {
    for (const column of columns) {
      map.numbers[n] = stored.numbers[row * keys.size + column];
      if (map.allowed !== null) map.allowed[n] = stored.allowed[row * keys.size + column];
      ++n;
    }
  }
  if (state.special === "renormalised") map.left = renormalise(map);
  return map;
}

// One map minus another. A cell is masked where both are.
function difference(a, b) {
  const known = (number) => (abs(number) === SMALL ? 0 : number);
  const numbers = a.numbers.map((number, n) => {
    const [own, other] = [known(number), known(b.numbers[n])];
    return own === other ? 0 : own - other;
  });
  let allowed = null;
  if (a.allowed !== null && b.allowed !== null) allowed = a.allowed.map((open, n) => open | b.allowed[n]);
  return {rows: a.rows, columns: a.columns, numbers, allowed, name: "A \u2212 B", error: 2 * page.code.error, isDifference: true};
}

function isMasked(map, cell) {
  return map.allowed !== null && !map.allowed[cell];
}

// The smallest (or 0) and largest numbers of a part of a map that are finite and not masked.
function extremes(map, begin = 0, end = map.numbers.length) {
  let lowest = 0, highest = 0;
  for (let n = begin; n < end; ++n) {
    const number = map.numbers[n];
    if (!isFinite(number) || isMasked(map, n)) continue;
    if (number < lowest) lowest = number;
    if (number > highest) highest = number;
  }
  return {lowest, highest};
}

// The kinds of cells that a map has, for its legend.
function kindsOf(map, ends) {
  const kinds = {zero: false, masked: false, fault: false};
  for (let n = 0; n < map.numbers.length; ++n) {
    if (isMasked(map, n)) kinds.masked = true;
    else if (map.numbers[n] === 0 && ends.lowest === 0) kinds.zero = true;
    else if (!isFinite(map.numbers[n])) kinds.fault = true;
  }
  return kinds;
}

// Sets the colours of a map: its palette, and the ends of its bar, or of that of each row.
function setBar(map) {
  map.palette = paletteOf(map.isDifference ? "red-blue" : state.colours, theme());
  const {centred} = map.palette;
  map.scale = state.scale;
  if (state.range === "row") {
    const width = map.columns.length;
    map.rowEnds = map.rows.map((_, row) => {
      const {lowest, highest} = extremes(map, row * width, (row + 1) * width);
      return barEnds(lowest, highest, centred);
    });
    map.ends = {...barEnds(min(...map.rowEnds.map((ends) => ends.lowest)), 1, centred), named: true};
  } else if (state.range === "head" || map.isDifference || state.special === "renormalised") {
    const {lowest, highest} = extremes(map);
    map.ends = barEnds(lowest, highest, centred);
  } else {
    const {facts} = current();
    let lowest = 0, highest = 0;
    for (const list of page.other === null ? [facts[OWN]] : [facts[OWN], facts[OTHER]]) {
      for (const [low, high] of list) {
        lowest = min(lowest, low);
        highest = max(highest, high);
      }
    }
    if (page.top !== null) highest = page.top;
    map.ends = barEnds(lowest, highest, centred);
    if (centred && page.top !== null) map.ends = {lowest: -page.top, highest: page.top, centred};
  }
  map.kinds = kindsOf(map, map.ends);
}

function endsOf(map, row) {
  return map.rowEnds ? map.rowEnds[row] : map.ends;
}

function colourAt(map, row, column) {
  return colourOf(map.numbers[row * map.columns.length + column], endsOf(map, row), map.scale, map.palette);
}

// ---- text ---------------------------------------------------------------------------------------

// A number in few digits, for bars and labels.
function brief(number, digits = 3) {
  if (!isFinite(number)) return String(number);
  return String(Number(number.toPrecision(digits))).replace("-", "\u2212");
}

// An error in two digits, rounded up.
function briefBound(error) {
  const unit = 10 ** (floor(log10(error)) - 1);
  return brief(ceil(error / unit) * unit, 2);
}

// The shortest text that is read back as the same number of the form that is stored.
function exact(number) {
  const {form, error} = page.code;
  if (form === "float64" || !isFinite(number)) return String(number).replace("-", "\u2212");
  if (form === "steps") {
    if (abs(number) === SMALL) return `below ${briefBound(error)}, not 0`;
    // The last digit is a tenth of the error's first.
    const digits = min(max(1 - floor(log10(error)), 0), 100);
    return (number === 0 ? "0" : number.toFixed(digits)).replace("-", "\u2212");
  }
  for (let digits = 1; digits < 9; ++digits) {
    const text = String(Number(number.toPrecision(digits)));
    if (fround(Number(text)) === number) return text.replace("-", "\u2212");
  }
  return String(Number(number.toPrecision(9))).replace("-", "\u2212");
}

// The number of a cell, with its error.
function cellText(map, row, column) {
  const cell = row * map.columns.length + column;
  if (isMasked(map, cell)) return "masked";
  const number = map.numbers[cell];
  const isStored = !map.isDifference && state.special !== "renormalised";
  if (abs(number) === SMALL) return isStored ? exact(number) : "small, not 0";
  if (!isStored) return brief(number, 7);
  const isRounded = map.error > 0 && number !== 0 && isFinite(number) && abs(number) !== SMALL;
  return exact(number) + (isRounded ? ` \u00b1 ${briefBound(map.error)}` : "");
}

function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

// How much weight the shown rows of a map give to the hidden keys.
function hiddenWeight({name, rows, stored}, {special, size}) {
  const sums = rows.map((row) => special.reduce((sum, key) => sum + (isMasked(stored, row * size + key) ? 0 : stored.numbers[row * size + key]), 0));
  const [mean, most] = [sums.reduce((a, b) => a + b) / rows.length, max(...sums)].map((part) => `${brief(100 * part)} %`);
  return `${name ? `${name}: ` : ""}hidden ${page.columns} hold ${mean} of a row's weight on average, at most ${most}`;
}

// All that was done to the numbers between the file and the picture.
function remarks(maps) {
  const list = [];
  const {queries, keys, notes} = current();
  if (maps.length > 1) {
    list.push(`A is ${maps[0].name}, B is ${maps[1].name}; A \u2212 B: red is more in A, blue more in B`);
  }
  const hidden = [queries, keys].map((axis) => axis.size - shownPlaces(axis).length);
  if (state.special !== "shown") {
    const rest = state.special === "hidden"
      ? "the other numbers are as stored, so that rows need not sum to 1"
      : "each row is divided by the sum of its other numbers";
    list.push(`special tokens hidden: ${hidden[0]} of ${queries.size} ${page.rows}, ` +
      `${hidden[1]} of ${keys.size} ${page.columns}; ${rest}`);
    if (areWeights && hidden[1] > 0) list.push(...maps.slice(0, 2).map((map) => hiddenWeight(map, keys)));
    const left = maps.reduce((sum, map) => sum + (map.left || 0), 0);
    if (left > 0) list.push(`${plural(left, "row")} without weight on the other tokens: not renormalised`);
  }
  if (state.scale !== "linear") list.push(`colours: ${SCALES[state.scale]} scale`);
  if (state.range !== "all") list.push(`a range of colours for ${RANGES[state.range]}`);
  if (page.code.error > 0) {
    list.push(`numbers are rounded to multiples of ${brief(page.code.step)} in this page: the error is at most ` +
      `${briefBound(page.code.error)}, of a difference twice that`);
  }
  return [...list, ...notes];
}
