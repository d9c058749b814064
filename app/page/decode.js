// SPDX-License-Identifier: Apache-2.0
"use strict";
// The data of the page, and the inverse of app/page/map_code.cc.

const by = (id) => document.getElementById(id);
const on = (target, event, action) => target.addEventListener(event, action);
const {abs, ceil, floor, fround, log10, max, min, round, sign, sqrt} = Math;
const {entries} = Object;
const page = JSON.parse(by("page").textContent);
const HEADS = page.heads.length;
const OWN = 0, OTHER = 1, DIFFERENCE = 2; // sources of maps; of differences there are only thumbnails

// Stands for a number whose size is below half a step of the code, but which is not 0.
const SMALL = Number.MIN_VALUE;
const CODE_SMALL = 1, CODE_NAN = 2, CODE_INFINITY = 3, CODE_MINUS_INFINITY = 4, CODE_FIRST = 5;
const ONE_BYTE = 192, TWO_BYTES = ONE_BYTE + 63 * 256;

async function inflated(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let n = 0; n < bytes.length; ++n) bytes[n] = text.charCodeAt(n);
  const stream = new DecompressionStream("deflate-raw");
  const writer = stream.writable.getWriter();
  writer.write(bytes);
  writer.close();
  return new Uint8Array(await new Response(stream.readable).arrayBuffer());
}

// The inverse of planes of bytes.
function fromPlanes(bytes, count, size) {
  const joined = new Uint8Array(bytes.length);
  for (let plane = 0; plane < size; ++plane) {
    const from = plane * count;
    for (let n = 0; n < count; ++n) joined[n * size + plane] = bytes[from + n];
  }
  return size === 4 ? Float64Array.from(new Float32Array(joined.buffer)) : new Float64Array(joined.buffer);
}

function numberOf(code) {
  if (code >= CODE_FIRST) {
    const n = code - CODE_FIRST;
    if (!page.code.signs) return (n + 1) * page.code.step;
    return ((n >> 1) + 1) * page.code.step * (n & 1 ? -1 : 1);
  }
  return [0, SMALL, NaN, Infinity, -Infinity][code];
}

function fromSteps(bytes, count) {
  const numbers = new Float64Array(count);
  const short = Float64Array.from({length: ONE_BYTE}, (_, code) => numberOf(code));
  for (let n = 0, at = 0; n < count; ++n) {
    const byte = bytes[at++];
    if (byte < ONE_BYTE) {
      numbers[n] = short[byte];
    } else if (byte < 255) {
      numbers[n] = numberOf(ONE_BYTE + (byte - ONE_BYTE) * 256 + bytes[at++]);
    } else {
      numbers[n] = numberOf(TWO_BYTES + (bytes[at] << 16) + (bytes[at + 1] << 8) + bytes[at + 2]);
      at += 3;
    }
  }
  return numbers;
}

function fromBits(bytes, count) {
  const bits = new Uint8Array(count);
  for (let n = 0; n < count; ++n) bits[n] = (bytes[n >> 3] >> (n & 7)) & 1;
  return bits;
}

function lineOf(id, line) {
  return by(id).textContent.split("\n")[line];
}

// Returns a function that calls `make` once for each list of arguments, and keeps the latest results.
function remembered(make, most) {
  const kept = new Map();
  return (...key) => {
    const name = key.join("-");
    const result = kept.get(name) ?? make(...key);
    kept.delete(name);
    kept.set(name, result);
    if (kept.size > most) kept.delete(kept.keys().next().value);
    return result;
  };
}

const masks = remembered(async (example, line) => {
  const {queries, keys} = page.examples[example];
  return fromBits(await inflated(lineOf(`mask-${example}`, line)), queries.size * keys.size);
}, 16);

// The facts about map n, n = layer * heads + head.
function factsOf(example, source, n) {
  const [lowest, highest, entropy, first, mask] = page.examples[example].facts[source][n];
  return {lowest, highest, entropy, first, mask};
}

// A map as stored: {numbers, allowed}, both C-ordered; `allowed` is null without a mask.
const storedMap = remembered(async (example, source, layer, head) => {
  const {queries, keys} = page.examples[example];
  const count = queries.size * keys.size;
  const bytes = await inflated(lineOf(`map-${example}-${source}-${layer}`, head));
  const {form} = page.code;
  const numbers = form === "steps" ? fromSteps(bytes, count) : fromPlanes(bytes, count, form === "float64" ? 8 : 4);
  const {mask} = factsOf(example, source, layer * HEADS + head);
  return {numbers, allowed: mask < 0 ? null : await masks(example, mask)};
}, 64);

// All thumbnails of an example: {bytes, width, height}, map after map.
const thumbnails = remembered(async (example, source) => {
  const {queries, keys} = page.examples[example];
  const bytes = await inflated(by(`thumbnails-${example}-${source}`).textContent);
  return {bytes, width: min(32, keys.size), height: min(32, queries.size)};
}, 32);
