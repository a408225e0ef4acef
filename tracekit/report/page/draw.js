"use strict";
// A panel draws one run onto its canvas and says what lies under the pointer.

function makePanel(run, view) {
  const canvas = element("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Timeline of ${run.file}; the tables below hold its numbers`);
  const context = canvas.getContext("2d", { alpha: false });
  const rows = placeTracks(run);
  const panel = { run, canvas, context, rows, view, selected: null, matching: null, height: rows.height };
  panel.colour = colourNames(run);
  return panel;
}

function placeTracks(run) {
  const placed = [];
  let y = AXIS;
  let group = null;
  for (const track of run.tracks) {
    if (track.group !== group) {
      group = track.group;
      placed.push({ head: group, y, height: HEAD });
      y += HEAD;
    }
    const kind = KINDS[track.table.kind];
    const lanes = Math.max(1, track.lanes);
    const lane = Math.max(4, Math.min(kind.height, 80 / lanes));
    const gap = track.table.kind === "sm" ? 1 : 6;
    placed.push({ track, y, lane, height: lane * lanes });
    y += lane * lanes + gap;
  }
  placed.height = y + 4;
  return placed;
}

function colourNames(run) {
  const table = new Map(run.top.map((code, i) => [code, `--name${i}`]));
  return (track, i) => {
    const { kind, name } = track.table;
    if (kind === "sm") return theme[PHASE_COLOURS[name[i]]];
    if (kind !== "kernel") return theme[KINDS[kind].colour];
    return theme[table.get(name[i]) || "--kernel"];
  };
}

function sizePanel(panel, width) {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  panel.width = width;
  panel.canvas.style.width = `${width}px`;
  panel.canvas.style.height = `${panel.height}px`;
  panel.canvas.width = Math.round(width * ratio);
  panel.canvas.height = Math.round(panel.height * ratio);
  panel.context.setTransform(ratio, 0, 0, ratio, 0, 0);
}

const plotWidth = (panel) => Math.max(50, panel.width - GUTTER);
const timeAt = (panel, x) => panel.view.t0 + ((x - GUTTER) / plotWidth(panel)) * (panel.view.t1 - panel.view.t0);
const xAt = (panel, t) => GUTTER + ((t - panel.view.t0) / (panel.view.t1 - panel.view.t0)) * plotWidth(panel);

function drawPanel(panel) {
  const { context: c, rows, width, height } = panel;
  c.fillStyle = theme["--paper"];
  c.fillRect(0, 0, width, height);
  drawAxis(panel);
  c.save();
  c.beginPath();
  c.rect(GUTTER, AXIS, width - GUTTER, height);
  c.clip();
  for (const row of rows) if (row.track) drawTrack(panel, row);
  if (panel.critical) drawCritical(panel);
  if (panel.selected) drawSelection(panel);
  c.restore();
  drawLabels(panel);
}

function drawAxis(panel) {
  const { context: c, view, height } = panel;
  const step = niceStep((view.t1 - view.t0) / Math.max(2, plotWidth(panel) / 110));
  const base = tickBase(view, step);
  const most = Math.max(Math.abs(view.t0 - base), Math.abs(view.t1 - base));
  c.font = "11px system-ui, sans-serif";
  c.textBaseline = "middle";
  c.textAlign = "center";
  for (let t = Math.ceil(view.t0 / step) * step; t <= view.t1; t += step) {
    const x = Math.round(xAt(panel, t)) + 0.5;
    c.fillStyle = theme["--grid"];
    c.fillRect(x, AXIS - 5, 1, height);
    c.fillStyle = theme["--quiet"];
    c.fillText(base === 0 ? formatTick(t, step, most) : `+${formatTick(t - base, step, most)}`, x, 11);
  }
  c.textAlign = "left";
  c.fillStyle = theme["--quiet"];
  c.fillText(base === 0 ? `after the first ${panel.critical ? "record" : "GPU activity"}` : `${exactSeconds(base)} +`, 6, 11, GUTTER - 12);
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  const factor = [1, 2, 5, 10].find((f) => f * power >= rough);
  return Math.max(1, factor * power);
}

// Where ticks are too fine to be spelled in full they count from a round time shown at the left.
function tickBase(view, step) {
  const round = 1000 * step;
  return Math.abs(view.t0) < 20 * round ? 0 : Math.floor(view.t0 / round) * round;
}

function formatTick(t, step, most) {
  const [unit, size] = most >= 1e9 ? ["s", 1e9] : most >= 1e6 ? ["ms", 1e6] : most >= 1e4 ? ["us", 1e3] : ["ns", 1];
  const decimals = Math.max(0, Math.ceil(-Math.log10(step / size)));
  return `${(t / size).toFixed(decimals)} ${unit}`;
}

const exactSeconds = (t) => `${(t / 1e9).toFixed(9).replace(/0+$/, "0")} s`;

function drawLabels(panel) {
  const { context: c, rows, width } = panel;
  c.fillStyle = theme["--paper"];
  c.fillRect(0, AXIS, GUTTER - 1, panel.height);
  c.textBaseline = "middle";
  c.textAlign = "left";
  for (const row of rows) {
    const middle = row.y + row.height / 2;
    if (row.head !== undefined) {
      c.font = "600 11px system-ui, sans-serif";
      c.fillStyle = theme["--ink"];
      c.fillText(shorten(row.head, 80), 6, middle + 1, width - 12);
    } else if (row.height > 9) {
      c.font = "11px system-ui, sans-serif";
      c.fillStyle = theme["--quiet"];
      c.fillText(shorten(row.track.label, 34), 14, middle, GUTTER - 20);
    } else if (rows.indexOf(row) % 8 === 1) {
      c.font = "10px system-ui, sans-serif";
      c.fillStyle = theme["--quiet"];
      c.fillText(row.track.label, 14, middle, GUTTER - 20);
    }
  }
}

// A track: what is wide enough as bars; every pixel that holds anything shorter as a busy share.
function drawTrack(panel, row) {
  const { track } = row;
  const { start } = track.table;
  const { t0, t1 } = panel.view;
  const first = firstVisible(track, t0);
  const last = rowAfter(start, Math.max(first, track.low), track.high, t1);
  if (last - first > MOST_BARS) {
    drawShares(panel, row, null);
    return;
  }
  const small = new Uint8Array(Math.ceil(plotWidth(panel)) + 1);
  const bars = [];
  const perPixel = (t1 - t0) / plotWidth(panel);
  for (let i = first; i < last; i += 1) {
    const wide = track.table.duration[i] / perPixel;
    if (wide >= 1.5) bars.push(i);
    else {
      const x = (start[i] - t0) / perPixel;
      for (let p = Math.max(0, Math.floor(x)); p <= Math.min(small.length - 1, x + wide); p += 1) small[p] = 1;
    }
  }
  if (bars.length < last - first) drawShares(panel, row, small);
  if (track.table.kind === "kernel") drawGaps(panel, row, first, last, perPixel);
  for (const i of bars) drawBar(panel, row, i);
  if (track.lanes > 1) drawOverlaps(panel, row, first, last, perPixel);
  drawMatches(panel, row, first, last);
}

function firstVisible(track, t0) {
  const { start } = track.table;
  let i = rowAfter(start, track.low, track.high, t0) - 1;
  while (i > track.low && reachOf(track, i - 1) > t0) i -= 1;
  return Math.max(i, track.low);
}

function drawBar(panel, row, i) {
  const { context: c, matching } = panel;
  const { track } = row;
  const { start, duration, lane, name, kind } = track.table;
  const left = Math.max(GUTTER - 2, xAt(panel, start[i]));
  const right = Math.min(panel.width + 2, xAt(panel, start[i] + duration[i]));
  const y = row.y + (track.lanes > 1 ? lane[i] * row.lane : 0);
  const wide = right - left;
  c.globalAlpha = matching && !matching.has(name[i]) ? 0.25 : 1;
  c.fillStyle = panel.colour(track, i);
  if (kind === "replay") drawBracket(c, left, right, y, row.lane);
  else c.fillRect(left, y, wide > 3 ? wide - 0.75 : wide, row.lane - 1);
  c.globalAlpha = 1;
  if (wide > 34 && row.lane > 9) {
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "left";
    c.fillStyle = kind === "replay" ? theme["--ink"] : theme["--on-bar"];
    const words = shorten(panel.run.names[name[i]], Math.floor((wide - 6) / 5.6));
    c.fillText(words, left + 4, y + row.lane / 2 + (kind === "replay" ? 2 : 0), wide - 6);
  }
}

function drawBracket(c, left, right, y, height) {
  c.fillRect(left, y + 1, right - left, 2);
  c.fillRect(left, y + 1, 2, height - 2);
  c.fillRect(right - 2, y + 1, 2, height - 2);
}

// The white space before a kernel, coloured by its main cause.
function drawGaps(panel, row, first, last, perPixel) {
  const { context: c } = panel;
  const { track } = row;
  const { start, gap } = track.table;
  const end = Math.min(last + 1, track.high);
  for (let i = Math.max(first, track.low + 1); i < end; i += 1) {
    const wide = gap[i] / perPixel;
    if (wide < 1) continue;
    const right = Math.min(panel.width + 2, xAt(panel, start[i]));
    const left = Math.max(GUTTER - 2, xAt(panel, start[i] - gap[i]));
    c.fillStyle = theme[CAUSE_COLOURS[causeOf(track.table, i)]];
    c.fillRect(left, row.y + row.height * 0.3, right - left, row.height * 0.4);
    if (right - left > 70) {
      c.font = "11px system-ui, sans-serif";
      c.textBaseline = "middle";
      c.textAlign = "center";
      c.fillStyle = theme["--on-gap"];
      c.fillText(`${formatNs(gap[i])} ${CAUSES[causeOf(track.table, i)]}`, (left + right) / 2, row.y + row.height / 2, right - left);
    }
  }
}

// Where a kernel starts before an earlier one of its stream has ended: a hatched box over both lanes.
function drawOverlaps(panel, row, first, last, perPixel) {
  const { context: c } = panel;
  const { start, gap, duration } = row.track.table;
  c.strokeStyle = theme["--ink"];
  for (let i = Math.max(first, row.track.low + 1); i < last; i += 1) {
    const length = Math.min(-gap[i], duration[i]);
    if (length / perPixel < 2) continue;
    const left = xAt(panel, start[i]);
    const right = xAt(panel, start[i] + length);
    c.lineWidth = 1;
    c.strokeRect(left + 0.5, row.y + 0.5, right - left - 1, row.height - 2);
    c.beginPath();
    for (let x = left - row.height; x < right; x += 6) hatch(c, x, left, right, row);
    c.stroke();
  }
}

function hatch(c, x, left, right, row) {
  const from = Math.max(x, left);
  const to = Math.min(x + row.height, right);
  if (to <= from) return;
  c.moveTo(from, row.y + row.height - 1 - (from - x));
  c.lineTo(to, row.y + row.height - 1 - (to - x));
}

function drawMatches(panel, row, first, last) {
  const { matching, context: c } = panel;
  if (!matching) return;
  const { start, name } = row.track.table;
  c.fillStyle = theme["--accent"];
  for (let i = first; i < last; i += 1)
    if (matching.has(name[i])) c.fillRect(xAt(panel, start[i]) - 1, row.y + row.height - 1, 2, 3);
}

// Pixels as busy shares: solid up to the least share of its quarters, lighter to the mean, faint to the
// most. What is left of a kernel track's pixel has the colour of the longest gap's cause.
function drawShares(panel, row, wanted) {
  const { track } = row;
  const { t0, t1 } = panel.view;
  const width = Math.ceil(plotWidth(panel));
  const perPixel = (t1 - t0) / plotWidth(panel);
  const { start } = track.table;
  let i = track.low;
  let known = -1; // the pixel whose left edge `i` and `before` belong to
  let before = 0;
  for (let p = 0; p < width; p += 1) {
    if (wanted && !wanted[p]) continue;
    if (known !== p) {
      i = rowAfter(start, i, track.high, t0 + p * perPixel);
      before = busyUntil(track, i - 1, t0 + p * perPixel);
    }
    const firstRow = i;
    let least = 1;
    let most = 0;
    let now = before;
    for (let q = 1; q <= 4; q += 1) {
      const t = t0 + (p + q / 4) * perPixel;
      i = rowAfter(start, i, track.high, t);
      const next = busyUntil(track, i - 1, t);
      const share = (4 * (next - now)) / perPixel;
      if (share < least) least = share;
      if (share > most) most = share;
      now = next;
    }
    drawColumn(panel, row, GUTTER + p, [least, (now - before) / perPixel, most], firstRow, i);
    before = now;
    known = p + 1;
  }
}

function drawColumn(panel, row, x, [least, mean, most], firstRow, lastRow) {
  const { context: c } = panel;
  const { table } = row.track;
  const { y } = row;
  const height = row.height - 1;
  if (table.kind === "kernel" && mean < 0.999) drawColumnGap(c, row, x, mean, firstRow, lastRow);
  if (most <= 0) return;
  c.fillStyle = theme[KINDS[table.kind].colour];
  // Solid, lighter, faint; what would be thinner than a fifth of a pixel is left to the mark below.
  const tops = [Math.max(least, 0), mean, Math.min(most, 1)];
  const alphas = [1, 0.7, 0.35];
  let below = 0;
  for (let k = 0; k < 3; k += 1) {
    const size = tops[k] * height;
    if (size - below < 0.2 && k > 0) continue;
    c.globalAlpha = alphas[k];
    c.fillRect(x, y + height - size, 1, size - below);
    below = size;
  }
  c.globalAlpha = 1;
  if (below < 1.5) c.fillRect(x, y + height - 1.5, 1, 1.5); // however short, it is seen
  if (table.kind === "kernel" && lastRow > firstRow && row.track.lanes > 1) {
    const deep = extremeGap(table, firstRow, lastRow, table.deepest, deeper);
    if (table.gap[deep] < 0) {
      c.fillStyle = theme["--ink"];
      c.fillRect(x, y + height - 2, 1, 2);
    }
  }
}

function drawColumnGap(c, row, x, mean, firstRow, lastRow) {
  const { track } = row;
  if (firstRow <= track.low && lastRow <= track.low) return; // before the first kernel
  if (firstRow >= track.high) return; // after the last
  const low = Math.max(firstRow, track.low + 1);
  const i = lastRow > low ? extremeGap(track.table, low, lastRow, track.table.longest, longer) : low;
  if (i >= track.high || track.table.gap[i] <= 0) return;
  c.fillStyle = theme[CAUSE_COLOURS[causeOf(track.table, i)]];
  c.fillRect(x, row.y, 1, (1 - mean) * (row.height - 1));
}

function rowOf(panel, table, i) {
  return panel.rows.find((row) => row.track && row.track.table === table && i >= row.track.low && i < row.track.high);
}

function boxOf(panel, { table, i, gap }) {
  const row = rowOf(panel, table, i);
  if (!row) return null;
  const lane = row.track.lanes > 1 && !gap ? table.lane[i] : 0;
  const [from, to] = gap ? gapBounds(table, i) : [table.start[i], table.start[i] + table.duration[i]];
  const left = Math.max(GUTTER - 4, Math.min(panel.width + 4, xAt(panel, from)));
  const right = Math.max(left + 2, Math.min(panel.width + 4, xAt(panel, to)));
  const height = gap ? row.height : row.lane;
  return { left, right, top: row.y + lane * row.lane, bottom: row.y + lane * row.lane + height - 1 };
}

function gapBounds(table, i) {
  return table.gap[i] >= 0
    ? [table.start[i] - table.gap[i], table.start[i]]
    : [table.start[i], table.start[i] + Math.min(-table.gap[i], table.duration[i])];
}

function drawSelection(panel) {
  const { context: c, selected, run } = panel;
  const box = boxOf(panel, selected);
  if (!box) return;
  c.strokeStyle = theme["--accent"];
  c.lineWidth = 2.5;
  outline(c, box);
  if (selected.table.kind !== "kernel" || selected.table.call[selected.i] < 0) return;
  const call = boxOf(panel, { table: run.tables.call, i: selected.table.call[selected.i] });
  if (!call) return;
  outline(c, call);
  c.lineWidth = 1.5;
  c.beginPath();
  c.moveTo((call.left + call.right) / 2, call.bottom);
  c.lineTo(box.left + 1, box.top);
  c.stroke();
}

function outline(c, box) {
  c.strokeRect(box.left - 1, box.top - 1, box.right - box.left + 2, box.bottom - box.top + 2);
}

function drawCritical(panel) {
  const { context: c, critical, run } = panel;
  c.strokeStyle = theme["--accent"];
  c.lineWidth = 1.5;
  c.beginPath();
  critical.forEach((i, k) => {
    const box = boxOf(panel, { table: run.tables.sm, i });
    if (!box) return;
    const y = (box.top + box.bottom) / 2;
    if (k === 0) c.moveTo(box.left, y);
    else c.lineTo(box.left, y);
    c.lineTo(box.right, y);
  });
  c.stroke();
}

// What lies under a point: {table, i}, {table, i, gap: true}, or null
function hit(panel, x, y) {
  if (x < GUTTER) return null;
  const row = panel.rows.find((r) => r.track && y >= r.y - 1 && y < r.y + r.height + 2);
  if (!row) return null;
  const { track } = row;
  const t = timeAt(panel, x);
  const lane = Math.max(0, Math.min(track.lanes - 1, Math.floor((y - row.y) / row.lane)));
  const i = rowAt(track, t, lane);
  if (i >= 0) return { table: track.table, i, row };
  const next = rowAfter(track.table.start, track.low, track.high, t);
  const close = nearest(panel, track, t, next);
  if (close >= 0) return { table: track.table, i: close, row };
  if (track.table.kind !== "kernel" || next <= track.low || next >= track.high) return null;
  if (rowAt(track, t, 1 - lane) >= 0) return { table: track.table, i: rowAt(track, t, 1 - lane), row };
  return { table: track.table, i: next, gap: true, row };
}

// A bar that is not two pixels wide would be hard to meet.
function nearest(panel, track, t, next) {
  const slack = (2 * (panel.view.t1 - panel.view.t0)) / plotWidth(panel);
  const { start, duration } = track.table;
  if (next < track.high && start[next] - t < slack && duration[next] < slack) return next;
  const before = next - 1;
  if (before >= track.low && t - start[before] - duration[before] < slack && duration[before] < slack) return before;
  return -1;
}

// What a pixel of several rows holds, or nothing
function describePixel(panel, { table, row }, x) {
  const perPixel = (panel.view.t1 - panel.view.t0) / plotWidth(panel);
  const from = timeAt(panel, Math.floor(x));
  const low = rowAfter(table.start, row.track.low, row.track.high, from);
  const high = rowAfter(table.start, low, row.track.high, from + perPixel);
  if (high - low < 2) return [];
  const busy = busyUntil(row.track, high - 1, from + perPixel) - busyUntil(row.track, low - 1, from);
  const words = [`${(high - low).toLocaleString("en-US")} start`, `busy ${formatShare(busy, perPixel)} of ${formatNs(perPixel)}`];
  if (table.kind === "kernel") words.push(`longest gap ${formatNs(table.gap[extremeGap(table, low, high, table.longest, longer)])}`);
  return [["in this pixel", words.join(", ")], ["one of them", ""]];
}

// Facts about one thing, as [word, value] pairs
function describe(run, { table, i, gap }) {
  if (gap) return describeGap(run, table, i);
  const facts = [
    ["name", run.names[table.name[i]]],
    ["start", `${formatNs(table.start[i])} (${clock(run, table.start[i])} on the trace's clock)`],
    ["duration", `${formatNs(table.duration[i])}${table.duration[i] >= 1000 ? ` (${table.duration[i].toLocaleString("en-US")} ns)` : ""}`],
  ];
  if (table.kind === "kernel") facts.push(...describeKernel(run, table, i));
  if (table.kind === "copy" && table.bytes[i] >= 0) facts.push(["size", `${table.bytes[i].toLocaleString("en-US")} bytes`]);
  if (table.kind === "replay") facts.push(["kernels", table.kernels[i].toLocaleString("en-US")]);
  if (table.kind === "opaque") facts.push(["kernels", "not in the file: recorded as a whole"]);
  return facts;
}

const clock = (run, t) => `${(BigInt(run.origin) + BigInt(run.offset + Math.round(t))).toLocaleString("en-US")} ns`;

function describeKernel(run, table, i) {
  const facts = [];
  if (causeOf(table, i)) {
    facts.push(["gap before", `${formatNs(table.gap[i], true)}, ${isReplay(table, i) ? "inside a replay" : "between launches"}`]);
    if (table.gap[i] < 0) facts.push(["overlap", "starts before an earlier kernel of its stream has ended"]);
    else if (table.gap[i] > 0 && !isReplay(table, i)) facts.push(["cause", spellCause(table, i)]);
  }
  const shape = run.shapes[table.shape[i]];
  if (shape) facts.push(["grid", shape.slice(0, 3).join(" x ")], ["block", shape.slice(3).join(" x ")]);
  if (table.range[i] >= 0) facts.push(["range", run.names[run.tables.range.name[table.range[i]]]]);
  if (table.replay[i] >= 0) facts.push(["replay", run.names[run.tables.replay.name[table.replay[i]]]]);
  const call = table.call[i];
  if (call >= 0) {
    const calls = run.tables.call;
    facts.push(["launched by", `${run.names[calls.name[call]]}, ${formatNs(table.start[i] - calls.start[call])} before it started`]);
  } else facts.push(["launched by", "not in the file"]);
  return facts;
}

function describeGap(run, table, i) {
  const overlap = table.gap[i] < 0;
  const facts = [
    [overlap ? "overlap" : "gap", `${formatNs(Math.abs(table.gap[i]))} (${table.gap[i].toLocaleString("en-US")} ns)`],
    ["where", isReplay(table, i) ? "inside a replay" : "between launches"],
    ["cause", overlap ? "PDL, or an overrun" : isReplay(table, i) ? "not known inside a replay" : spellCause(table, i)],
    ["after", run.names[table.name[i - 1]]],
    ["before", run.names[table.name[i]]],
    [overlap ? "begins at" : "ends at", `${formatNs(table.start[i])} (${clock(run, table.start[i])} on the trace's clock)`],
  ];
  if (table.range[i] >= 0) facts.push(["range", run.names[run.tables.range.name[table.range[i]]]]);
  return facts;
}
