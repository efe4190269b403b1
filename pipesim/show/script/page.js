// What lanes share, the hands that move them, the bar above, and the table of schedules.
// ---- the part of the step that all lanes show

class View {
  constructor(longest) {
    Object.assign(this, {
      from: 0,
      to: longest,
      longest,
      lanes: [],
      causes: false,
      critical: false,
      microbatch: NONE,
      asked: false,
    });
  }

  show(from, to) {
    const most = to - from > this.longest * (1 - 1e-9) ? this.longest : to - from;
    const wide = Math.max(this.longest * 1e-7, most);
    this.from = wide === this.longest ? 0 : Math.max(0, Math.min(this.longest - wide, from));
    this.to = this.from + wide;
    this.redraw();
  }

  zoom(factor, share = 0.5) {
    const wide = (this.to - this.from) / factor,
      at = this.from + share * (this.to - this.from);
    this.show(at - share * wide, at - share * wide + wide);
  }

  light() {
    for (const lane of this.lanes) {
      lane.lit = this.critical
        ? criticalPath(lane.run)
        : this.microbatch === NONE
          ? null
          : ofMicrobatch(lane.run, this.microbatch);
    }
    this.redraw();
  }

  redraw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      for (const lane of this.lanes) if (lane.visible) lane.draw();
      controls.window.textContent = `${time(this.from)} to ${time(this.to)} of ${time(this.longest)}`;
    });
  }
}

// ---- hands

function listen(lane) {
  const { gantt, view, run } = lane,
    fingers = new Map();
  let moved = 0;
  gantt.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      view.zoom(Math.exp(-event.deltaY / 300), lane.under(event).share);
    },
    { passive: false },
  );
  gantt.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event);
    moved = 0;
  });
  gantt.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return hint(lane, event);
    const seconds = (view.to - view.from) / (lane.width - lane.gutter);
    if (fingers.size === 1) {
      const dx = event.clientX - before.clientX;
      moved += Math.abs(dx);
      if (moved > 3) {
        if (event.isPrimary && !gantt.hasPointerCapture(event.pointerId))
          gantt.setPointerCapture(event.pointerId);
        hideHint();
        view.show(view.from - dx * seconds, view.to - dx * seconds);
      }
    } else {
      const [other] = [...fingers.values()].filter((one) => one.pointerId !== event.pointerId);
      const far = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
      moved += 9;
      view.zoom(Math.max(0.5, Math.min(2, far(event) / (far(before) || 1))), lane.under(other).share);
    }
    fingers.set(event.pointerId, event);
  });
  for (const name of ["pointerup", "pointercancel"])
    gantt.addEventListener(name, (event) => {
      fingers.delete(event.pointerId);
      if (name === "pointercancel" || moved > 3) return;
      const { rank, at } = lane.under(event);
      if (rank < 0 || rank >= run.ranks) return;
      const next = firstAfter(run, rank, at);
      if (next < run.offsets[rank + 1] && run.start[next] <= at) lane.choose(next);
      else {
        const words = describedAt(run, rank, at);
        if (words) said(words.join("; "));
      }
    });
  gantt.addEventListener("pointerleave", hideHint);
  gantt.addEventListener("dblclick", () => {
    if (lane.chosen !== NONE) follow(run.microbatch[lane.chosen]);
  });
  gantt.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && walk(lane, event.key)) event.preventDefault();
  });
}

function walk(lane, key) {
  const { run, view, chosen } = lane,
    middle = (view.from + view.to) / 2;
  const near = (rank, at) => Math.min(firstAfter(run, rank, at), run.offsets[rank + 1] - 1);
  const rank = chosen === NONE ? 0 : run.rank[chosen],
    at = chosen === NONE ? middle : (run.start[chosen] + run.end[chosen]) / 2;
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const to = chosen === NONE ? near(0, middle) : chosen + (key === "ArrowRight" ? 1 : -1);
    if (to >= run.offsets[rank] && to < run.offsets[rank + 1]) lane.choose(to);
  } else if (key === "ArrowUp" || key === "ArrowDown") {
    const to = rank + (key === "ArrowDown" ? 1 : -1);
    if (to >= 0 && to < run.ranks) lane.choose(near(to, at));
  } else if (key === "Home") lane.choose(run.offsets[rank]);
  else if (key === "End") lane.choose(run.offsets[rank + 1] - 1);
  else if (key === "+" || key === "=")
    view.zoom(1.5, Math.max(0, Math.min(1, (at - view.from) / (view.to - view.from))));
  else if (key === "-")
    view.zoom(1 / 1.5, Math.max(0, Math.min(1, (at - view.from) / (view.to - view.from))));
  else if (key === "0") view.show(0, view.longest);
  else if (key === "Enter" && chosen !== NONE) follow(run.microbatch[chosen]);
  else if (key === "Escape") {
    lane.chosen = NONE;
    follow(NONE);
    hideHint();
  } else return false;
  return true;
}

const tip = made("div", { className: "tip", hidden: true });

function hint(lane, event) {
  if (event.pointerType === "touch") return;
  const { rank, share, at } = lane.under(event);
  const words = share < 0 || rank < 0 || rank >= lane.run.ranks ? null : describedAt(lane.run, rank, at);
  tip.hidden = !words;
  if (!words) return;
  tip.replaceChildren(...words.map((line) => made("div", { textContent: line })));
  const { width, height } = tip.getBoundingClientRect();
  const most = document.documentElement.clientWidth - width - 4;
  const below = event.clientY + 18 + height <= window.innerHeight;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, most))}px`;
  tip.style.top = `${below ? event.clientY + 18 : event.clientY - height - 10}px`;
}

function hideHint() {
  tip.hidden = true;
}
function said(words) {
  controls.said.textContent = words;
}

function made(tag, properties = {}) {
  return Object.assign(document.createElement(tag), properties);
}

// ---- the bar above the lanes

const controls = {};
let view = null;

function follow(microbatch) {
  view.microbatch = microbatch;
  view.critical = false;
  controls.critical.setAttribute("aria-pressed", "false");
  controls.microbatch.value = microbatch === NONE ? "" : microbatch;
  if (microbatch !== NONE) said(`Following microbatch ${microbatch} through every rank; Escape ends it.`);
  view.light();
}

function button(words, name, act) {
  const one = made("button", { type: "button", textContent: words, onclick: act });
  one.setAttribute("aria-label", name);
  return one;
}

function toggle(words, act) {
  const one = made("button", { type: "button", textContent: words });
  one.setAttribute("aria-pressed", "false");
  one.onclick = () => {
    const on = one.getAttribute("aria-pressed") !== "true";
    one.setAttribute("aria-pressed", String(on));
    act(on);
  };
  return one;
}

function bar(runs) {
  const box = made("div", { className: "bar" }),
    more = made("div", { className: "more", id: "more-tools" });
  box.setAttribute("role", "toolbar");
  box.setAttribute("aria-label", "Timelines");
  controls.window = made("output", { className: "window" });
  controls.said = made("p", {
    className: "said",
    textContent:
      "Point at a box, or click it and use the arrow keys; drag to move, Ctrl or Cmd and the wheel to zoom.",
  });
  controls.said.setAttribute("aria-live", "polite");
  controls.critical = toggle("Critical path", (on) => {
    view.critical = on;
    view.microbatch = NONE;
    controls.microbatch.value = "";
    view.light();
  });
  controls.causes = toggle("Why idle", (on) => {
    view.causes = on;
    root.classList.toggle("causes", on);
    view.redraw();
  });
  controls.microbatch = made("input", {
    type: "number",
    min: 0,
    max: Math.max(...runs.map((run) => run.microbatches)) - 1,
  });
  controls.microbatch.onchange = () => {
    const value = controls.microbatch.value;
    follow(value === "" ? NONE : Math.max(0, Math.min(+controls.microbatch.max, Math.round(+value))));
  };
  const label = made("label", { textContent: "Microbatch " });
  label.append(controls.microbatch);
  const tools = toggle("Tools", (on) => {
    box.classList.toggle("open", on);
    tools.setAttribute("aria-expanded", String(on));
  });
  tools.className = "tools";
  tools.setAttribute("aria-expanded", "false");
  tools.setAttribute("aria-controls", more.id);
  more.append(
    button("First tenth", "Show the first tenth", () => view.show(0, view.longest / 10)),
    button("Last tenth", "Show the last tenth", () => view.show(view.longest * 0.9, view.longest)),
    label,
    controls.critical,
    controls.causes,
  );
  box.append(
    button("+", "Zoom in", () => view.zoom(1.6)),
    button("\u2212", "Zoom out", () => view.zoom(1 / 1.6)),
    button("\u25c2", "Earlier", () =>
      view.show(view.from - (view.to - view.from) / 3, view.to - (view.to - view.from) / 3),
    ),
    button("\u25b8", "Later", () =>
      view.show(view.from + (view.to - view.from) / 3, view.to + (view.to - view.from) / 3),
    ),
    button("Whole step", "Show the whole step", () => view.show(0, view.longest)),
    tools,
    more,
    controls.window,
  );
  return [box, controls.said];
}

function legend() {
  const list = made("ul", { className: "legend" });
  const entry = (name, words, group = "") => {
    const line = made("li", { className: group });
    const swatch = made("span", { className: "swatch" });
    swatch.style.background = `var(${name})`;
    line.append(swatch, words);
    list.append(line);
  };
  const seen = new Set(
    view.lanes.flatMap(({ run }) => [...new Set(run.op)].flatMap((op) => (op === PAIR ? [0, 1] : [op]))),
  );
  ["--f", "--b", "--i", "--w"].forEach((name, op) => {
    if (seen.has(op)) entry(name, `${OPS[op]} ${WORDS[OPS[op]]}`);
  });
  const later = new Set(view.lanes.flatMap(({ run }) => [...new Set(run.later.op)].map((op) => OPS[op])));
  if ([...later].some((name) => name !== "OPTIMIZER")) entry("--sync", WORDS.REDUCE_GRAD);
  if (later.has("OPTIMIZER")) entry("--optimizer", WORDS.OPTIMIZER);
  entry("--idle", "idle", "plain");
  for (const [name, words] of [
    ["--dependency", "waits for a producer"],
    ["--message", "waits for its message"],
    ["--ends", "warm-up, cool-down"],
  ])
    entry(name, words, "cause");
  if (view.lanes.some(({ run }) => run.chunks.some((stages) => stages.length > 1)))
    list.append(made("li", { textContent: "the paler, the later the chunk of a rank" }));
  list.append(made("li", { textContent: `time in ${unit.words}` }));
  return list;
}

// ---- the table of schedules: tick boxes, sorting

// What a cell is sorted by: its number in one unit, else its words, which come after all numbers.
function value(cell) {
  const words = cell.textContent.trim();
  const [, number, unit] = (cell.tagName === "TD" && /^([-+]?[\d.,]+)\s*(\S*)/.exec(words)) || [];
  const sizes = { us: 1e-6, ms: 1e-3, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
  return number ? [parseFloat(number.replaceAll(",", "")) * (sizes[unit] || 1), ""] : [Infinity, words];
}

function inOrder([one, words], [other, others]) {
  return one === other ? words.localeCompare(others) : one - other;
}

function sortable(table) {
  const body = table.tBodies[0],
    heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const press = made("button", { type: "button", textContent: head.textContent });
    head.replaceChildren(press);
    press.onclick = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].sort((one, other) =>
        inOrder(value(one.cells[column]), value(other.cells[column])),
      );
      body.append(...(up ? rows : rows.reverse()));
    };
  });
}

function boxes(table, entries, show) {
  const rows = [...table.tBodies[0].rows];
  for (const entry of entries) {
    const box = made("input", { type: "checkbox", checked: entry.shown });
    box.setAttribute("aria-label", `Show the timeline of ${entry.name}`);
    box.onchange = () => {
      entry.shown = box.checked;
      show();
    };
    rows[entry.row].cells[0].prepend(box);
  }
}

// ---- beginning

async function begin() {
  const { head, column } = await unpacked(document.getElementById("timeline-data").textContent);
  OPS = head.ops;
  WORDS = head.words;
  unit = head.unit;
  palette = colours();
  document.documentElement.classList.add("live");
  view = new View(Math.max(...head.runs.map((run) => run.step)));
  const lanesBox = made("div", { className: "lanes" }),
    legendBox = made("div"),
    lanes = new Map();
  for (const entry of head.runs) entry.shown = head.shown.includes(entry.row);
  const show = () => {
    const shown = head.runs.filter((entry) => entry.shown);
    view.lanes = shown.map((entry) => {
      if (!lanes.has(entry.row)) lanes.set(entry.row, new Lane(loaded(entry, column), view));
      return lanes.get(entry.row);
    });
    lanesBox.replaceChildren(...view.lanes.map((lane) => lane.figure));
    legendBox.replaceChildren(legend());
    view.light();
  };
  root.append(...bar(head.runs), legendBox, lanesBox, tip);
  const table = document.querySelector("table.schedules");
  if (table) {
    boxes(table, head.runs, show);
    sortable(table);
  }
  root.timelines = { view };
  show();
  const again = () => {
    palette = colours();
    view.redraw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  for (const event of ["scroll", "resize"])
    window.addEventListener(event, () => view.redraw(), { passive: true });
  new ResizeObserver(() => view.redraw()).observe(lanesBox);
}

if (typeof DecompressionStream === "undefined")
  root.textContent =
    "This browser is older than 2023 and cannot unpack the timelines; pictures stand in for them.";
else
  begin().catch((error) => {
    document.documentElement.classList.remove("live");
    root.textContent = `The timelines could not be read (${error.message}); pictures stand in for them.`;
  });
