// SPDX-License-Identifier: Apache-2.0
// Files of what is shown.

// A name for files: the maps' file, the map, and what was done to the numbers.
function fileName(extension) {
  const parts = [page.name.replace(/^.*\//, "").replace(/\.[a-z0-9]+$/i, "") || "attention"];
  if (page.examples.length > 1) parts.push(`example ${current().number}`);
  parts.push(mapNames[state.layer * HEADS + state.head]);
  if (state.compare !== "none") parts.push(extension === "csv" ? "minus" : "with", shown.maps[1].name);
  if (state.special !== "shown") parts.push(`special tokens ${state.special}`);
  if (state.view !== "map" && extension !== "csv") parts.push(state.view);
  const name = parts.filter(Boolean).join(" ").replace(/[^\p{L}\p{N}._]+/gu, "-").slice(0, 120);
  return `${name}.${extension}`;
}

function download(blob, name) {
  const link = make("a", {href: URL.createObjectURL(blob), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function svgBlob(figure) {
  return new Blob([new XMLSerializer().serializeToString(figure.root)], {type: "image/svg+xml"});
}

function saveSvg() {
  download(svgBlob(figureElement(shown)), fileName("svg"));
}

async function savePng() {
  const figure = figureElement(shown);
  const image = new Image();
  image.src = URL.createObjectURL(svgBlob(figure));
  await image.decode();
  const {width, height} = figure;  // browsers refuse larger canvases
  const zoom = min(width * height > 1.5e7 ? 1 : 2, 32767 / max(width, height), sqrt(2e8 / (width * height)));
  const canvas = make("canvas", {width: floor(width * zoom), height: floor(height * zoom)});
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  canvas.toBlob((blob) => download(blob, fileName("png")), "image/png");
}

// A field of a CSV file (RFC 4180).
function field(text) {
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

// The numbers of the first map, or of the difference: a line for each query, after the keys' tokens. Masked
// cells are empty.
function csvText(map) {
  const {queries, keys} = current();
  const lines = [["", ...map.columns.map((place) => field(tokenOf(keys, place)))]];
  map.rows.forEach((place, row) => {
    const line = [field(tokenOf(queries, place))];
    for (let n = row * map.columns.length; n < (row + 1) * map.columns.length; ++n) {
      if (isMasked(map, n)) {
        line.push("");
      } else if (abs(map.numbers[n]) === SMALL) {
        line.push("0");
      } else {
        line.push(page.code.form === "float32" && isFinite(map.numbers[n]) && !map.isDifference &&
          state.special !== "renormalised" ? exact(map.numbers[n]).replace("\u2212", "-") : String(map.numbers[n]));
      }
    }
    lines.push(line);
  });
  return lines.map((line) => line.join(",")).join("\r\n") + "\r\n";
}

function saveCsv() {
  download(new Blob([csvText(shown.maps.at(-1))], {type: "text/csv;charset=utf-8"}), fileName("csv"));
}

on(by("save-svg"), "click", saveSvg);
on(by("save-png"), "click", savePng);
on(by("save-csv"), "click", saveCsv);
