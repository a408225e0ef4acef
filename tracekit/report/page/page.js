"use strict";
// The page around the timelines: moving about, searching, tables, charts.

const LEAST_SPAN = 20; // ns that a view shows at least
const view = { t0: 0, t1: 1, low: 0, high: 1 };
const state = { panels: [], inside: null, active: null, drawing: false, hashTimer: 0, map: null, matches: null };

// Moving about

// All timelines share one view; the inside of a megakernel has its own.
function setView(t0, t1, on = view) {
  const span = Math.max(LEAST_SPAN, Math.min(t1 - t0, on.high - on.low));
  const start = Math.max(on.low, Math.min(t0, on.high - span));
  on.t0 = start;
  on.t1 = start + span;
  requestDraw();
  window.clearTimeout(state.hashTimer);
  state.hashTimer = window.setTimeout(writeHash, 250);
}

function zoomAt(t, factor, on = view) {
  setView(t - (t - on.t0) * factor, t + (on.t1 - t) * factor, on);
}

function pan(share, on = view) {
  const by = (on.t1 - on.t0) * share;
  setView(on.t0 + by, on.t1 + by, on);
}

const allPanels = () => (state.inside ? [...state.panels, state.inside] : state.panels);

function requestDraw() {
  if (state.drawing) return;
  state.drawing = true;
  requestAnimationFrame(() => {
    state.drawing = false;
    for (const panel of allPanels()) drawPanel(panel);
    drawMap();
  });
}

function layOut() {
  readTheme();
  const width = byId("timelines").clientWidth;
  for (const panel of allPanels()) sizePanel(panel, width);
  state.map = null;
  requestDraw();
}

// The fragment: #t=start..end in ns after the first GPU activity, and what is selected

function writeHash() {
  const { selected, run } = state.panels.includes(state.active) ? state.active : {};
  const chosen = selected ? `&sel=${selected.table.kind}:${selected.i}${selected.gap ? ":gap" : ""}` : "";
  const which = selected && state.panels.length > 1 ? `&run=${state.panels.findIndex((p) => p.run === run)}` : "";
  const hash = `#t=${Math.round(view.t0)}..${Math.round(view.t1)}${chosen}${which}`;
  if (hash !== location.hash) history.replaceState(null, "", hash);
}

function readHash() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const times = /^(-?\d+)\.\.(-?\d+)$/.exec(wanted.get("t") || "");
  if (times) setView(Number(times[1]), Number(times[2]));
  const panel = state.panels[Number(wanted.get("run") || 0)];
  const [kind, i, gap] = (wanted.get("sel") || "").split(":");
  const table = panel && panel.run.tables[kind];
  if (table && Number(i) < table.gap.length) select(panel, { table, i: Number(i), gap: gap === "gap" });
}

// Selecting

const activePanel = () => (state.panels.includes(state.active) ? state.active : state.panels[0]);

function select(panel, what) {
  for (const other of allPanels()) other.selected = null;
  state.active = panel;
  panel.selected = what;
  const detail = byId("detail");
  detail.replaceChildren();
  if (what) {
    for (const [word, value] of describe(panel.run, what)) detail.append(element("dt", word), element("dd", value));
    if (what.table.kind === "kernel" && what.table.call[what.i] >= 0) {
      const button = element("button", "show the launch call (c)");
      button.addEventListener("click", showCall);
      detail.append(element("dt"), wrap("dd", button));
    }
  } else detail.append(element("dt", "Nothing selected"), element("dd", "Click a bar or a gap."));
  requestDraw();
  window.clearTimeout(state.hashTimer);
  state.hashTimer = window.setTimeout(writeHash, 250);
}

function wrap(tag, child) {
  const made = element(tag);
  made.append(child);
  return made;
}

// Clicking a call selects the first kernel that it launched, which lights up both.
function choose(panel, found) {
  if (found && found.table.kind === "call" && panel.run.tables.kernel) {
    const i = panel.run.tables.kernel.call.indexOf(found.i);
    if (i >= 0) return select(panel, { table: panel.run.tables.kernel, i });
  }
  return select(panel, found ? { table: found.table, i: found.i, gap: found.gap } : null);
}

function showCall() {
  const { selected, run } = state.active || {};
  if (!selected || selected.table.kind !== "kernel") return;
  const call = selected.table.call[selected.i];
  if (call < 0) return;
  const from = run.tables.call.start[call];
  const to = selected.table.start[selected.i] + selected.table.duration[selected.i];
  const margin = (to - from) * 0.15;
  setView(from - margin, to + margin);
}

function goTo(panel, table, i, gap) {
  const [from, to] = gap ? gapBounds(table, i) : [table.start[i], table.start[i] + table.duration[i]];
  const span = Math.max((to - from) * 4, 2000);
  setView((from + to - span) / 2, (from + to + span) / 2);
  select(panel, { table, i, gap });
}

// n and p: the next and the previous of the longest gaps in order of time; N and P: the next longer, shorter
function stepGap(direction, bySize) {
  const panel = activePanel();
  const { kernel } = panel.run.tables;
  if (!kernel) return;
  const key = bySize ? (i) => kernel.gap[i] : (i) => kernel.start[i];
  const all = [...panel.run.longest.replay, ...panel.run.longest.launch];
  const ordered = all.sort((a, b) => key(a) - key(b) || a - b);
  const { selected } = panel;
  const here = selected && selected.table === kernel ? [key(selected.i), selected.i] : bySize ? null : [(view.t0 + view.t1) / 2, -1];
  const i = nextOf(ordered, key, here, direction);
  if (i !== undefined) goTo(panel, kernel, i, true);
}

function nextOf(ordered, key, here, direction) {
  if (!here) return ordered.at(-1);
  const after = (i) => (key(i) - here[0] || i - here[1]) * direction > 0;
  return direction > 0 ? ordered.find(after) : ordered.findLast(after);
}

// Pointer and keys

function listen(panel) {
  const { canvas } = panel;
  canvas.addEventListener("wheel", (event) => turnWheel(panel, event), { passive: false });
  canvas.addEventListener("pointerdown", (event) => startDrag(panel, event));
  canvas.addEventListener("pointermove", (event) => hover(panel, event));
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", () => setView(panel.view.low, panel.view.high, panel.view));
}

function turnWheel(panel, event) {
  if (event.offsetX < GUTTER) return; // over the labels the page scrolls
  event.preventDefault();
  const size = event.deltaMode === 1 ? 16 : 1;
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX * size) / plotWidth(panel), panel.view);
  else zoomAt(timeAt(panel, event.offsetX), Math.exp(Math.max(-1, Math.min(1, (event.deltaY * size) / 400))), panel.view);
}

function startDrag(panel, event) {
  if (event.button !== 0 || event.offsetX < GUTTER) return;
  const { canvas } = panel;
  const from = { x: event.offsetX, y: event.offsetY, t0: panel.view.t0, t1: panel.view.t1 };
  const box = event.shiftKey;
  let moved = false;
  const move = (at) => {
    moved = moved || Math.abs(at.offsetX - from.x) > 3;
    if (moved && !box) {
      const by = ((from.x - at.offsetX) / plotWidth(panel)) * (from.t1 - from.t0);
      setView(from.t0 + by, from.t1 + by, panel.view);
    }
  };
  const end = (at) => {
    canvas.removeEventListener("pointermove", move);
    canvas.removeEventListener("pointerup", end);
    if (!moved) choose(panel, hit(panel, at.offsetX, at.offsetY));
    else if (box) {
      const sides = [timeAt(panel, from.x), timeAt(panel, at.offsetX)].sort((a, b) => a - b);
      setView(...sides, panel.view);
    }
  };
  canvas.setPointerCapture(event.pointerId);
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("pointerup", end);
}

function hover(panel, event) {
  const found = event.buttons ? null : hit(panel, event.offsetX, event.offsetY);
  if (!found) return hideTip();
  const tip = byId("tip");
  tip.replaceChildren();
  const facts = [...describePixel(panel, found, event.offsetX), ...describe(panel.run, found)];
  for (const [word, value] of facts) tip.append(element("dt", word), element("dd", shorten(value, 300)));
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${below ? event.clientY + 18 : Math.max(4, event.clientY - tip.offsetHeight - 10)}px`;
  return undefined;
}

function hideTip() {
  byId("tip").hidden = true;
}

const KEYS = {
  n: () => stepGap(1, false),
  p: () => stepGap(-1, false),
  N: () => stepGap(1, true),
  P: () => stepGap(-1, true),
  c: showCall,
  "+": () => zoomAt((view.t0 + view.t1) / 2, 0.6),
  "=": () => zoomAt((view.t0 + view.t1) / 2, 0.6),
  "-": () => zoomAt((view.t0 + view.t1) / 2, 1 / 0.6),
  0: () => setView(view.low, view.high),
  ArrowLeft: () => pan(-0.2),
  ArrowRight: () => pan(0.2),
  "/": () => byId("search").focus(),
  Escape: () => state.active && select(state.active, null),
};

function pressKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, .js-plotly-plot")) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

// The minimap: busy share of each run's kernel tracks over the whole recording

function drawMap() {
  const canvas = byId("map");
  if (!state.map) paintMap(canvas);
  const c = canvas.getContext("2d");
  c.drawImage(state.map, 0, 0);
  const scale = (canvas.width - 2) / (view.high - view.low);
  const left = (view.t0 - view.low) * scale;
  const right = (view.t1 - view.low) * scale;
  c.fillStyle = theme["--veil"];
  c.fillRect(0, 0, left, canvas.height);
  c.fillRect(right, 0, canvas.width - right, canvas.height);
  c.strokeStyle = theme["--accent"];
  c.lineWidth = 2;
  c.strokeRect(left + 1, 1, Math.max(3, right - left), canvas.height - 2);
}

function paintMap(canvas) {
  const width = byId("timelines").clientWidth;
  canvas.width = width;
  canvas.height = 34 * state.panels.length;
  state.map = element("canvas");
  state.map.width = width;
  state.map.height = canvas.height;
  const c = state.map.getContext("2d");
  c.fillStyle = theme["--paper"];
  c.fillRect(0, 0, width, canvas.height);
  c.fillStyle = theme["--kernel"];
  state.panels.forEach((panel, k) => {
    const shares = mapShares(panel.run, width);
    shares.forEach((share, x) => c.fillRect(x, 34 * (k + 1) - 2 - 30 * share, 1, 30 * share));
  });
}

function mapShares(run, width) {
  const shares = new Float64Array(width);
  const tracks = run.tracks.filter((track) => ["kernel", "opaque"].includes(track.table.kind));
  const perPixel = (view.high - view.low) / width;
  for (const track of tracks) {
    let i = track.low;
    let before = 0;
    for (let x = 0; x < width; x += 1) {
      const t = view.low + (x + 1) * perPixel;
      i = rowAfter(track.table.start, i, track.high, t);
      const next = busyUntil(track, i - 1, t);
      shares[x] = Math.min(1, Math.max(shares[x], (next - before) / perPixel));
      before = next;
    }
  }
  return shares;
}

function dragMap(event) {
  if (!event.buttons) return;
  const at = view.low + (event.offsetX / event.target.clientWidth) * (view.high - view.low);
  const half = (view.t1 - view.t0) / 2;
  setView(at - half, at + half);
}

// Search

function search(text) {
  const wanted = text.toLowerCase();
  let found = 0;
  for (const panel of state.panels) {
    panel.matching = null;
    if (!wanted) continue;
    const codes = panel.run.names.flatMap((name, code) => (name.toLowerCase().includes(wanted) ? [code] : []));
    panel.matching = new Set(codes);
    for (const table of Object.values(panel.run.tables))
      for (let i = 0; i < table.name.length; i += 1) if (panel.matching.has(table.name[i])) found += 1;
  }
  byId("found").textContent = wanted ? count(found, "match").replace("matchs", "matches") : "";
  requestDraw();
}

function goToMatch(direction) {
  const panel = activePanel();
  if (!panel.matching) return;
  const { selected } = panel;
  const from = selected ? selected.table.start[selected.i] : (view.t0 + view.t1) / 2;
  let best = null;
  for (const table of Object.values(panel.run.tables))
    for (let i = 0; i < table.name.length; i += 1) {
      const ahead = (table.start[i] - from) * direction;
      if (ahead <= 0 || !panel.matching.has(table.name[i])) continue;
      if (!best || ahead < best.ahead) best = { table, i, ahead };
    }
  if (best) goTo(panel, best.table, best.i, false);
}

// Tables: a column is [title, value for sorting, text, is it a number]

function fillTable(id, columns, rows, act) {
  const table = byId(id);
  const box = byId(`${id}-box`);
  if (box) box.hidden = rows.length === 0;
  const body = element("tbody");
  const heads = columns.map(([title, value, , numeric], k) => {
    const head = element("th", "", numeric ? "number" : "");
    const button = element("button", title);
    button.addEventListener("click", () => sortTable(heads, k, rows, value, fill));
    head.append(button);
    return head;
  });
  const fill = (sorted) => body.replaceChildren(...sorted.map((row) => makeRow(row, columns, act)));
  const top = element("tr");
  top.append(...heads);
  table.replaceChildren(wrap("thead", top), body);
  fill(rows);
}

function sortTable(heads, k, rows, value, fill) {
  const down = heads[k].getAttribute("aria-sort") !== "descending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[k].setAttribute("aria-sort", down ? "descending" : "ascending");
  const order = (a, b) => (typeof a === "string" ? a.localeCompare(b) : (a ?? -Infinity) - (b ?? -Infinity));
  fill([...rows].sort((a, b) => order(value(a), value(b)) * (down ? -1 : 1)));
}

function makeRow(row, columns, act) {
  const line = element("tr");
  for (const [, value, words, numeric] of columns) {
    const cell = element("td", shorten(words(row), 36), numeric ? "number" : "name"); // both ends tell names apart
    if (numeric) cell.dataset.value = String(value(row));
    else cell.title = words(row);
    line.append(cell);
  }
  if (act) {
    line.tabIndex = 0;
    line.addEventListener("click", () => act(row));
    line.addEventListener("keydown", (event) => event.key === "Enter" && act(row));
  }
  return line;
}

const nsColumn = (title, value, signed = false) => [title, value, (row) => formatNs(value(row), signed), true];
const nameColumn = (title, value) => [title, value, value, false];

function fillGaps(panel) {
  const { run } = panel;
  const { kernel, range } = run.tables;
  if (!kernel) return;
  const rows = [...run.longest.launch, ...run.longest.replay].sort((a, b) => kernel.gap[b] - kernel.gap[a] || a - b);
  const columns = [
    nsColumn("gap", (i) => kernel.gap[i]),
    nameColumn("where", (i) => (isReplay(kernel, i) ? "replay" : "launch")),
    nameColumn("cause", (i) => (isReplay(kernel, i) ? "-" : CAUSES[causeOf(kernel, i)] + (kernel.cause[i] & INTERRUPTED ? ", interrupted" : ""))),
    nameColumn("after", (i) => run.names[kernel.name[i - 1]]),
    nameColumn("before", (i) => run.names[kernel.name[i]]),
    nameColumn("range", (i) => (kernel.range[i] >= 0 ? run.names[range.name[kernel.range[i]]] : "-")),
    nsColumn("at", (i) => kernel.start[i]),
  ];
  fillTable("gaps", columns, rows, (i) => jump(panel, kernel, i));
}

function fillPairs(panel) {
  const { run } = panel;
  const columns = [
    nameColumn("previous", (row) => row.previous),
    nameColumn("next", (row) => row.next),
    nameColumn("where", (row) => row.where),
    ["boundaries", (row) => row.boundaries, (row) => row.boundaries.toLocaleString("en-US"), true],
    nsColumn("median", (row) => row.median),
    nsColumn("p10", (row) => row.p10),
    nsColumn("p90", (row) => row.p90),
    nsColumn("head", (row) => row.head, true),
    ["overlap", (row) => row.overlapping / row.boundaries, (row) => (row.overlapping ? formatShare(row.overlapping, row.boundaries) : "none"), true],
    nsColumn("white space", (row) => row.white),
  ];
  fillTable("pairs", columns, run.pairs, (row) => {
    const i = longestOf(run, row);
    if (i > 0) jump(panel, run.tables.kernel, i);
  });
}

function jump(panel, table, i) {
  goTo(panel, table, i, true);
  byId("timeline").scrollIntoView({ block: "start" });
}

// The longest gap of a pair
function longestOf(run, row) {
  const { gap, name, cause } = run.tables.kernel;
  const [a, b] = [run.names.indexOf(row.previous), run.names.indexOf(row.next)];
  let best = -1;
  for (let i = 1; i < name.length; i += 1) {
    const here = name[i] === b && name[i - 1] === a && cause[i] !== 0 && isReplay(run.tables.kernel, i) === (row.where === "replay");
    if (here && (best < 0 || gap[i] > gap[best])) best = i;
  }
  return best;
}

// Charts

function drawChart(id, traces, layout) {
  const ink = theme["--ink"];
  const axis = { gridcolor: theme["--grid"], zerolinecolor: theme["--quiet"], automargin: true };
  const whole = {
    margin: { l: 60, r: 16, t: 12, b: 44 },
    paper_bgcolor: theme["--paper"],
    plot_bgcolor: theme["--paper"],
    font: { color: ink, size: 12 },
    showlegend: false,
    hovermode: "closest",
    height: 280,
    ...layout,
    xaxis: { ...axis, ...layout.xaxis },
    yaxis: { ...axis, ...layout.yaxis },
  };
  window.Plotly.react(byId(id), traces, whole, { responsive: true, displaylogo: false });
}

// The unit that suits the largest of some values: [word, nanoseconds]
function unitOf(values) {
  const most = values.reduce((sofar, value) => Math.max(sofar, Math.abs(value)), 0);
  return [["s", 1e9], ["ms", 1e6], ["us", 1e3]].find(([, size]) => most >= 2 * size) || ["ns", 1];
}

const percentile = (sorted, share) => sorted[Math.round(share * (sorted.length - 1))];

function chartHistogram(run, where) {
  const histogram = run.histograms[where];
  byId(`histogram-${where}-box`).hidden = !histogram;
  if (!histogram) return;
  const gaps = histogram.counts.map((_, k) => histogram.first_ns + k * histogram.bin_ns);
  const shown = gaps.map((value) => `${formatNs(value)}: `);
  const [unit, size] = unitOf(gaps);
  const x = gaps.map((value) => value / size);
  const colour = theme[where === "replay" ? "--in-replay" : "--host"];
  const bars = { type: "bar", x, y: histogram.counts, width: histogram.bin_ns / size, text: shown, textposition: "none", hovertemplate: "%{text}%{y}<extra></extra>", marker: { color: colour } };
  drawChart(`histogram-${where}`, [bars], { bargap: 0, xaxis: { title: { text: `gap, ${unit} (bins of ${formatNs(histogram.bin_ns)})` } }, yaxis: { title: { text: "boundaries" } } });
  const outside = [[histogram.below, "below"], [histogram.above, "above"]].filter(([n]) => n);
  byId(`histogram-${where}-note`).textContent = outside.map(([n, word]) => `${n.toLocaleString("en-US")} ${word} the picture`).join(", ");
}

function chartSteps({ steps }) {
  byId("steps-box").hidden = !steps;
  if (!steps) return;
  const words = `${steps.label}: ${steps.alike} of ${count(steps.length_ns.length, "instance")} have ${count(steps.kernels, "kernel")}; ${steps.shown.length} drawn, the median of all ${steps.alike} is the thick line.`;
  byId("steps-note").textContent = words;
  chartAligned(steps);
  chartJitter(steps);
  const [unit, size] = unitOf(steps.length_ns);
  const lengths = { type: "bar", y: steps.length_ns.map((ns) => ns / size), text: steps.length_ns.map((ns) => formatNs(ns)), textposition: "none", marker: { color: theme["--kernel"] }, hovertemplate: "instance %{x}: %{text}<extra></extra>" };
  drawChart("lengths", [lengths], { height: 200, xaxis: { title: { text: "instance" } }, yaxis: { title: { text: `length, ${unit}` } } });
}

function chartAligned(steps) {
  const [unit, size] = unitOf(steps.median_ns);
  const line = (starts, name, style) => ({ type: "scatter", mode: "lines", x: starts.map((ns) => ns / size), y: steps.point, line: style, hovertemplate: `${name}, kernel %{y}: %{x} ${unit}<extra></extra>` });
  const thin = { width: 1, color: theme["--thin"] };
  const lines = steps.start_ns.map((starts, k) => line(starts, `instance ${steps.shown[k]}`, thin));
  const median = line(steps.median_ns, "median", { width: 3, color: theme["--accent"] });
  drawChart("steps", [...lines, median], { height: 320, xaxis: { title: { text: `start after the step's first kernel, ${unit}` } }, yaxis: { title: { text: "kernel of the step" } } });
}

// One step out of line must not flatten all others: the picture holds what is near the middle four fifths,
// a double click shows all.
function chartJitter(steps) {
  const late = steps.start_ns.map((starts) => starts.map((ns, i) => ns - steps.median_ns[i]));
  const sorted = late.flat().sort((a, b) => a - b);
  const [p10, p90] = [percentile(sorted, 0.1), percentile(sorted, 0.9)];
  const near = sorted.filter((ns) => ns >= p10 - 3 * (p90 - p10) && ns <= p90 + 3 * (p90 - p10));
  const ends = [near[0], near.at(-1)];
  const [unit, size] = unitOf(ends);
  const margin = (ends[1] - ends[0]) * 0.05 + size * 0.01;
  const lines = late.map((values, k) => ({ type: "scatter", mode: "lines", x: steps.point, y: values.map((ns) => ns / size), line: { width: 1, color: theme["--thin"] }, hovertemplate: `instance ${steps.shown[k]}, kernel %{x}: %{y} ${unit}<extra></extra>` }));
  const zero = { type: "scatter", mode: "lines", x: [0, steps.kernels - 1], y: [0, 0], line: { width: 3, color: theme["--accent"] }, hoverinfo: "skip" };
  drawChart("jitter", [...lines, zero], { height: 320, xaxis: { title: { text: "kernel of the step" } }, yaxis: { title: { text: `later than the median, ${unit}` }, range: [(ends[0] - margin) / size, (ends[1] + margin) / size] } });
}

function chartBudget({ budget }) {
  byId("budget-box").hidden = !budget;
  if (!budget) return;
  let sum = 0;
  const bases = budget.map(([, ns]) => (sum += ns) - ns);
  const labels = [...budget.map(([label]) => plain(label)), "step"];
  const times = [...budget.map(([, ns]) => ns), sum];
  const [unit, size] = unitOf(times);
  const values = times.map((ns) => ns / size);
  const colours = [...budget.map(([, ns]) => theme[ns < 0 ? "--in-replay" : "--kernel"]), theme["--quiet"]];
  const bars = { type: "bar", x: labels, y: values, base: [...bases.map((ns) => ns / size), 0], text: times.map((ns) => formatNs(ns)), textposition: "outside", cliponaxis: false, hovertemplate: "%{x}: %{text}<extra></extra>", marker: { color: colours } };
  drawChart("budget", [bars], { yaxis: { title: { text: unit } }, height: 340, margin: { l: 60, r: 16, t: 28, b: 44 } });
}

const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // Plotly reads tags in labels

function chartPrediction({ prediction }) {
  byId("prediction-box").hidden = !prediction;
  if (!prediction) return;
  const [xUnit, xSize] = unitOf(prediction.gap_ns);
  const [unit, size] = unitOf([...prediction.step_ns, prediction.measured_ns]);
  const x = prediction.gap_ns.map((ns) => ns / xSize);
  const y = prediction.step_ns.map((ns) => ns / size);
  const measured = prediction.measured_ns / size;
  const line = { type: "scatter", mode: "lines+markers", x, y, name: "predicted", line: { color: theme["--kernel"] }, hovertemplate: `g = %{x} ${xUnit}: %{y} ${unit}<extra></extra>` };
  const flat = { type: "scatter", mode: "lines", x: [x[0], x.at(-1)], y: [measured, measured], name: "measured", line: { color: theme["--accent"], dash: "dash" }, hovertemplate: `measured: %{y} ${unit}<extra></extra>` };
  drawChart("prediction", [line, flat], { showlegend: true, xaxis: { title: { text: `boundary cost g, ${xUnit}` } }, yaxis: { title: { text: `step, ${unit}` }, rangemode: "tozero" } });
}

function drawCharts(run) {
  byId("sizes-box").hidden = !Object.keys(run.histograms).length;
  chartHistogram(run, "replay");
  chartHistogram(run, "launch");
  chartSteps(run);
  chartBudget(run);
  chartPrediction(run);
}

// Plotly's own script is text on this page: its hash is in the content-security policy.
async function loadPlotly() {
  const script = element("script", new TextDecoder().decode(await inflate("plotly")));
  document.head.append(script);
}

// The difference between two runs

function fillDifference(difference) {
  byId("difference-box").hidden = !difference;
  if (!difference) return;
  byId("difference-notes").replaceChildren(...difference.notes.map((note) => element("li", note)));
  const columns = (words) => [
    ...words.map((word) => nameColumn(word, (row) => row[word])),
    nameColumn("where", (row) => row.where),
    ["first", (row) => row.first_count, (row) => row.first_count.toLocaleString("en-US"), true],
    ["second", (row) => row.second_count, (row) => row.second_count.toLocaleString("en-US"), true],
    nsColumn("first, median", (row) => row.first_ns),
    nsColumn("second, median", (row) => row.second_ns),
    nsColumn("difference", (row) => row.difference_ns, true),
  ];
  fillTable("pair-difference", columns(["previous", "next"]), difference.pairs);
  fillTable("class-difference", columns(["class"]), difference.classes);
}

// Start

async function addInside(meta) {
  byId("inside-box").hidden = !meta;
  if (!meta) return;
  const run = await readRun(meta);
  state.inside = makePanel(run, { t0: 0, t1: run.end, low: 0, high: run.end });
  state.inside.critical = run.critical;
  byId("inside").append(state.inside.canvas);
  listen(state.inside);
  layOut();
}

function addPanel(run, several) {
  const panel = makePanel(run, view);
  if (several) byId("timelines").append(element("h3", run.file));
  byId("timelines").append(panel.canvas);
  listen(panel);
  return panel;
}

async function openPage() {
  const meta = JSON.parse(new TextDecoder().decode(await inflate("meta")));
  const runs = await Promise.all(meta.runs.map(readRun));
  const margin = Math.max(...runs.map((run) => run.end)) * 0.01;
  view.low = Math.min(...runs.map((run) => -run.offset)) - margin;
  view.high = Math.max(...runs.map((run) => run.end)) + margin;
  state.panels = runs.map((run) => addPanel(run, runs.length > 1));
  [state.active] = state.panels;
  layOut();
  setView(-margin, Math.max(...runs.map((run) => run.gpu_end)) + margin);
  readHash();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    performance.mark("first-picture");
    byId("page").dataset.drawn = "yes";
    window.setTimeout(() => finish(meta, runs), 30);
  }));
}

async function finish(meta, runs) {
  addEvents();
  fillGaps(state.panels[0]);
  fillPairs(state.panels[0]);
  fillDifference(meta.difference);
  await addInside(meta.inside);
  await loadPlotly();
  drawCharts(runs[0]);
  byId("page").dataset.ready = "yes";
}

function addEvents() {
  document.addEventListener("keydown", pressKey);
  window.addEventListener("hashchange", readHash);
  window.addEventListener("resize", layOut);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    layOut();
    drawCharts(state.panels[0].run);
  });
  const map = byId("map");
  map.addEventListener("pointerdown", dragMap);
  map.addEventListener("pointermove", dragMap);
  const input = byId("search");
  input.addEventListener("input", () => search(input.value));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") goToMatch(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") input.blur();
  });
  byId("all").addEventListener("click", () => setView(view.low, view.high));
  byId("next-gap").addEventListener("click", () => stepGap(1, false));
  byId("previous-gap").addEventListener("click", () => stepGap(-1, false));
  byId("picture").addEventListener("click", savePicture);
}

function savePicture() {
  const link = element("a");
  link.download = "timeline.png";
  link.href = activePanel().canvas.toDataURL("image/png");
  link.click();
}

openPage().catch((error) => {
  byId("failed").hidden = false;
  byId("failed").textContent = `The page could not be drawn: ${error.message}`;
  throw error;
});
