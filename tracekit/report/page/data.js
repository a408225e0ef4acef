"use strict";
// The report page. Data comes as gzipped columns in <script type="text/plain"> elements; names out of a
// trace reach the page through textContent and fillText only. Times are nanoseconds after the first GPU
// activity, in float64 (exact below 2^53).

const KINDS = {
  range: { height: 16, colour: "--range" },
  call: { height: 16, colour: "--call" },
  wait: { height: 14, colour: "--wait" },
  replay: { height: 14, colour: "--replay" },
  opaque: { height: 18, colour: "--opaque" },
  kernel: { height: 20, colour: "--kernel" },
  copy: { height: 14, colour: "--copy" },
  sm: { height: 7, colour: "--kernel" },
};
const CAUSES = ["", "host", "launch call", "queued", "unknown", "replay"];
const CAUSE_COLOURS = ["", "--host", "--in-call", "--queued", "--unknown", "--in-replay"];
const PHASE_COLOURS = ["--fetch", "--waiting", "--execute"];
const REPLAY = 5; // a place among the causes: inside a replay nobody knows one
const INTERRUPTED = 8;
const BLOCK = 64; // gaps whose extremes are kept, so that a pixel of many looks at few
const GUTTER = 190;
const AXIS = 26;
const HEAD = 18;
const MOST_BARS = 4000;
const byId = (id) => document.getElementById(id);

// Data

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

async function inflate(id) {
  const holder = byId(id);
  const packed = fromBase64(holder.textContent);
  holder.remove();
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

const ARRAYS = { i1: Int8Array, i2: Int16Array, i4: Int32Array, f8: Float64Array };

// Bytes are stored plane by plane (all lowest bytes first): equal high bytes then vanish in gzip.
async function readColumn(column) {
  const planes = new Uint8Array(await inflate(column.blob));
  const Typed = ARRAYS[column.type];
  const size = Typed.BYTES_PER_ELEMENT;
  const count = planes.length / size;
  let values = new Typed(planes.buffer);
  if (size > 1) {
    const bytes = new Uint8Array(planes.length);
    for (let k = 0; k < size; k += 1)
      for (let i = 0, at = k, from = k * count; i < count; i += 1, at += size) bytes[at] = planes[from + i];
    values = new Typed(bytes.buffer);
  }
  if (!column.delta) return values;
  const summed = new Int32Array(count);
  for (let i = 0, sum = 0; i < count; i += 1) summed[i] = sum += values[i];
  return summed;
}

async function readTable(spec, offset) {
  const table = { kind: spec.kind, tracks: spec.tracks };
  const columns = await Promise.all(spec.columns.map(readColumn));
  spec.columns.forEach((column, i) => (table[column.name] = columns[i]));
  const { gap, duration } = table;
  const start = (table.start = new Float64Array(gap.length));
  const white = (table.white = new Float64Array(gap.length)); // of the track, up to and with this row
  for (const track of table.tracks) {
    track.table = table;
    let reach = -offset;
    for (let i = track.low, sum = 0; i < track.high; i += 1) {
      start[i] = reach + gap[i];
      reach = Math.max(reach, start[i] + duration[i]);
      if (i > track.low && gap[i] > 0) sum += gap[i];
      white[i] = sum;
    }
    track.reach = reach;
  }
  if (spec.kind === "kernel") findExtremes(table);
  return table;
}

// For each block of BLOCK rows the row of the longest gap and that of the deepest overlap.
function findExtremes(table) {
  const { gap } = table;
  const blocks = Math.ceil(gap.length / BLOCK);
  table.longest = new Int32Array(blocks);
  table.deepest = new Int32Array(blocks);
  for (let b = 0; b < blocks; b += 1) {
    let most = b * BLOCK;
    let least = most;
    for (let i = most, end = Math.min(gap.length, most + BLOCK); i < end; i += 1) {
      if (gap[i] > gap[most]) most = i;
      if (gap[i] < gap[least]) least = i;
    }
    table.longest[b] = most;
    table.deepest[b] = least;
  }
}

async function readRun(meta) {
  const tables = await Promise.all(meta.tables.map((spec) => readTable(spec, meta.offset)));
  const tracks = meta.layout.map(([table, track, group]) => ({ ...tables[table].tracks[track], group }));
  const byKind = Object.fromEntries(tables.map((table) => [table.kind, table]));
  return { ...meta, tables: byKind, tracks };
}

// Queries: rows of a track are in order of start

// The first row in [low, high) that starts after t.
function rowAfter(start, low, high, t) {
  let step = 1;
  while (low + step < high && start[low + step] <= t) step *= 2; // t is mostly near
  let end = Math.min(high, low + step);
  while (low < end) {
    const middle = (low + end) >>> 1;
    if (start[middle] <= t) low = middle + 1;
    else end = middle;
  }
  return low;
}

// How far rows low..i reach: what they all have ended by.
function reachOf(track, i) {
  const { start, gap } = track.table;
  return i + 1 < track.high ? start[i + 1] - gap[i + 1] : track.reach;
}

// Busy time of the track up to t (its union, never a sum), where row i is the last that started by t.
function busyUntil(track, i, t) {
  if (i < track.low) return 0;
  const reach = reachOf(track, i);
  const { start, white } = track.table;
  return reach - start[track.low] - white[i] - Math.max(0, reach - t);
}

function extremeGap(table, low, high, blocks, better) {
  const { gap } = table;
  let best = low;
  const visit = (i) => {
    if (better(gap[i], gap[best])) best = i;
  };
  let i = low;
  while (i < high) {
    if (i % BLOCK === 0 && i + BLOCK <= high) {
      visit(blocks[i / BLOCK]);
      i += BLOCK;
    } else {
      visit(i);
      i += 1;
    }
  }
  return best;
}
const longer = (a, b) => a > b;
const deeper = (a, b) => a < b;

// The row whose lane shows something at t, or -1. Looks back as far as something earlier still runs.
function rowAt(track, t, lane) {
  const { start, duration, lane: lanes } = track.table;
  let i = rowAfter(start, track.low, track.high, t) - 1;
  for (; i >= track.low; i -= 1) {
    if (start[i] + duration[i] > t && (track.lanes === 1 || lanes[i] === lane)) return i;
    if (i > track.low && reachOf(track, i - 1) <= t) return -1;
  }
  return -1;
}

// Words: the same rules as tracekit/units.py

function formatNs(value, signed = false) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  const sign = signed && value > 0 ? "+" : "";
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]])
    if (Math.abs(value) >= 0.9995 * size) return `${sign}${threeDigits(value / size)} ${unit}`;
  return `${sign}${roundHalfEven(value)} ns`;
}

function roundHalfEven(value) {
  const below = Math.floor(value);
  if (value - below === 0.5) return below % 2 === 0 ? below : below + 1;
  return Math.round(value);
}

function threeDigits(value) {
  const digits = value ? Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value) * 1.0005))) : 2;
  const [whole, rest] = value.toFixed(Math.min(digits, 2)).split("."); // toLocaleString rounds otherwise
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (rest ? `.${rest}` : "");
}

function formatShare(part, whole) {
  if (!whole) return "-";
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 0.05) return "<0.1 %";
  if (percent >= 99.95 && percent < 100) return ">99.9 %";
  return `${percent.toFixed(1)} %`;
}

const count = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;

function shorten(name, width) {
  if (name.length <= width) return name;
  if (width < 4) return "";
  const front = Math.floor(width / 2);
  return `${name.slice(0, front)}…${name.slice(name.length - (width - 1 - front))}`;
}

const isReplay = (table, i) => causeOf(table, i) === REPLAY;
const causeOf = (table, i) => table.cause[i] & 7;

function spellCause(table, i) {
  const words = CAUSES[causeOf(table, i)];
  return table.cause[i] & INTERRUPTED ? `${words}, interrupted by a copy, a memset or a host wait` : words;
}

// Elements

function element(tag, content = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = content;
  if (className) made.className = className;
  return made;
}

let theme = {};
function readTheme() {
  const style = getComputedStyle(document.documentElement);
  theme = new Proxy({}, {
    get(cache, name) {
      if (!(name in cache)) cache[name] = style.getPropertyValue(name).trim();
      return cache[name];
    },
  });
}
