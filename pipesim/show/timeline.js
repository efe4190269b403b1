"use strict";
// Timelines of several schedules on one time axis. Data: see timeline_data.py. Times are seconds from the
// first start. A lane paints its own pixels: boxes of 2.5 px or more as boxes, narrower ones as the exact
// share of each pixel column that they cover.
(() => {
const root = document.getElementById("timelines");
const style = getComputedStyle(document.documentElement);
const PAIR = 13, NONE = -1, BOX_PX = 2.5, SHADES = 4, DIM = 4 * SHADES;
const DEPENDENCY = 2 * DIM, MESSAGE = DEPENDENCY + 1, ENDS = DEPENDENCY + 2, AFTER = DEPENDENCY + 3;
const KINDS = AFTER + 2;
const WORDS = { F: "forward", B: "full backward", I: "input gradient", W: "weight gradient",
  OVERLAP_F_B: "forward and backward together", REDUCE_GRAD: "gradient synchronisation",
  REDUCE_EMBEDDING: "gradients of the embedding", OPTIMIZER: "optimizer", UNSHARD: "gather of weights",
  RESHARD: "release of weights" };

// ---- reading the data

async function unpacked(text) {
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const content = await new Response(stream).arrayBuffer();
  const size = new DataView(content).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(content, 4, size)));
  const arrays = { u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, i4: Int32Array,
    f8: Float64Array };
  const column = ([type, offset, length, form]) => {
    const Kind = arrays[type], from = 4 + size + offset;
    const stored = new Kind(content.slice(from, from + length * Kind.BYTES_PER_ELEMENT));
    if (form === "") return stored;
    const values = new Float64Array(length);
    let sum = 0;
    for (let i = 0; i < length; i++) values[i] = form === "d" ? (sum += stored[i]) : form[stored[i]];
    return values;
  };
  return { head, column };
}

// Times of all actions, and the colour of each; made when a schedule is first shown.
function loaded(entry, column) {
  const run = { ...entry, ranks: entry.offsets.length - 1 };
  for (const name of ["op", "stage", "microbatch", "awaited", "slice", "stage2", "microbatch2"])
    if (entry[name]) run[name] = column(entry[name]);
  const length = run.op.length, tick = entry.tick;
  const [duration, gap, p2p, collective] =
    ["duration", "gap", "p2p", "collective"].map((name) => column(entry[name]));
  for (const name of ["start", "end", "ready", "gap", "p2p", "collective"])
    run[name] = new Float64Array(length);
  run.rank = new Uint16Array(length);
  run.kind = new Uint8Array(length);
  run.kind2 = new Uint8Array(length);
  for (let rank = 0; rank < run.ranks; rank++) {
    const shade = new Map(entry.chunks[rank].map((stage, chunk, all) =>
      [stage, all.length > 1 ? Math.round((SHADES - 1) * chunk / (all.length - 1)) : 0]));
    let now = 0;
    for (let i = run.offsets[rank]; i < run.offsets[rank + 1]; i++) {
      now += gap[i];
      run.start[i] = now * tick;
      run.ready[i] = (now - p2p[i]) * tick;
      now += duration[i];
      run.end[i] = now * tick;
      run.gap[i] = gap[i] * tick;
      run.p2p[i] = p2p[i] * tick;
      run.collective[i] = collective[i] * tick;
      run.rank[i] = rank;
      const op = run.op[i] === PAIR ? 0 : run.op[i];
      run.kind[i] = op * SHADES + shade.get(run.stage[i]);
      run.kind2[i] = run.op[i] === PAIR ? SHADES + shade.get(run.stage[i] + run.stage2[i]) : run.kind[i];
    }
  }
  run.during = column(entry.memory.during).map((value) => value * entry.memory.scale);
  run.held = column(entry.memory.after).map((value) => value * entry.memory.scale);
  const peaks = [...Array(run.ranks).keys()].map((rank) => {
    let most = 0;
    for (let i = run.offsets[rank]; i < run.offsets[rank + 1]; i++) most = Math.max(most, run.during[i], run.held[i]);
    return most;
  });
  run.peak = Math.max(...peaks);
  run.fullest = peaks.indexOf(run.peak);
  run.later = Object.fromEntries(Object.entries(entry.after).map(([name, of]) => [name, column(of)]));
  return run;
}

// First action of a rank that ends after a time.
function firstAfter(run, rank, time) {
  let low = run.offsets[rank], high = run.offsets[rank + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (run.end[middle] > time) high = middle; else low = middle + 1;
  }
  return low;
}

// Action from whose end each one starts, back from the last end: what made the step as long as it is.
function criticalPath(run) {
  const path = new Uint8Array(run.op.length);
  let at = run.end.reduce((best, end, i, all) => (end > all[best] ? i : best), 0);
  for (;;) {
    path[at] = 1;
    const first = at === run.offsets[run.rank[at]];
    if (run.awaited[at] && (first || run.gap[at] > 1.5 * run.tick)) at += run.awaited[at];
    else if (first) return path;
    else at -= 1;
  }
}

function ofMicrobatch(run, microbatch) {
  return Uint8Array.from(run.op, (op, i) => run.microbatch[i] === microbatch
    || (op === PAIR && run.microbatch[i] + run.microbatch2[i] === microbatch) ? 1 : 0);
}

// ---- words

function time(seconds) {
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]])
    if (Math.abs(seconds) >= size || unit === "us") return seconds ? `${+(seconds / size).toPrecision(4)} ${unit}` : "0 s";
}

function amount(value, kind) {
  if (!kind.startsWith("memory")) return `${+value.toPrecision(4)}`;
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (value >= size) return `${+(value / size).toPrecision(3)} ${unit}`;
  return `${Math.round(value)} B`;
}

function titled(run, i) {
  const part = run.slice ? `.${run.slice[i]}` : "";
  if (run.op[i] !== PAIR) return `${run.stage[i]}${OPS[run.op[i]]}${run.microbatch[i]}${part}`;
  return `${run.stage[i]}F${run.microbatch[i]} with ${run.stage[i] + run.stage2[i]}B${run.microbatch[i] + run.microbatch2[i]}`;
}

function cause(run, i) {
  const from = run.awaited[i] ? i + run.awaited[i] : NONE;
  const producer = from === NONE ? "what it needs" : `${titled(run, from)} on rank ${run.rank[from]}`;
  if (i === run.offsets[run.rank[i]])
    return run.gap[i] ? `warm-up ${time(run.gap[i])}: waits for ${producer}` : "the first of its rank";
  if (run.gap[i] <= 1.5 * run.tick) return "no idle time before it";
  const dependency = run.gap[i] - run.p2p[i], parts = [];
  if (dependency > 1.5 * run.tick) parts.push(`${time(dependency)} until ${producer} has ended`);
  if (run.p2p[i] > 1.5 * run.tick) parts.push(`${time(run.p2p[i])} for its message`);
  return `idle ${time(run.gap[i])} before it: ${parts.join(", then ")}`;
}

function described(run, i) {
  const op = WORDS[OPS[run.op[i]]];
  const lines = [`${titled(run, i)}: ${op}, rank ${run.rank[i]}, stage ${run.stage[i]}, microbatch ${run.microbatch[i]}`,
    `${time(run.start[i])} to ${time(run.end[i])}, takes ${time(run.end[i] - run.start[i])}`, cause(run, i)];
  if (run.collective[i] > 1.5 * run.tick) lines.push(`of it ${time(run.collective[i])} waiting for shared-out weights or gradients`);
  if (run.peak) lines.push(`${run.memory.kind}: ${amount(run.during[i], run.memory.kind)}`);
  return lines;
}

function describedAt(run, rank, at) {
  const next = firstAfter(run, rank, at), last = run.offsets[rank + 1];
  if (next < last && run.start[next] <= at) return described(run, next);
  for (let j = 0; j < run.later.rank.length; j++) {
    const start = run.later.start[j] * run.tick, end = start + run.later.duration[j] * run.tick;
    if (run.later.rank[j] === rank && start <= at && at < end)
      return [`rank ${rank}: ${WORDS[OPS[run.later.op[j]]]}`, `${time(start)} to ${time(end)}, takes ${time(end - start)}`];
  }
  if (next < last) return [`rank ${rank} is idle; next is ${titled(run, next)}`, cause(run, next)];
  const done = run.end[last - 1];
  return at <= run.makespan ? [`rank ${rank} is done`, `cool-down ${time(run.makespan - done)}: until every rank is`] : null;
}

// ---- pixels

let OPS = {}, unit = { seconds: 1, words: "seconds" };
let palette = null;

function colours() {
  const parts = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  };
  const mixed = (one, other, share) => one.map((value, i) => Math.round(value + (other[i] - value) * share));
  const packed = ([red, green, blue]) => (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
  const back = parts("--idle");
  const rgb = [];
  ["--f", "--b", "--i", "--w"].forEach((name, op) => {
    for (let shade = 0; shade < SHADES; shade++) {
      const colour = mixed(parts(name), back, 0.45 * shade / (SHADES - 1));
      rgb[op * SHADES + shade] = colour;
      rgb[DIM + op * SHADES + shade] = mixed(colour, back, 0.8);
    }
  });
  ["--dependency", "--message", "--ends", "--sync", "--optimizer"].forEach((name, i) => { rgb[DEPENDENCY + i] = parts(name); });
  const light = ([red, green, blue]) => 0.2126 * (red / 255) ** 2.2 + 0.7152 * (green / 255) ** 2.2 + 0.0722 * (blue / 255) ** 2.2;
  return { idle: packed(back), fill: rgb.map(packed), edge: rgb.map((one) => packed(mixed(one, back, 0.6))),
    letters: rgb.map((one) => (light(one) > 0.18 ? "#000" : "#fff")), rank: packed(parts("--rank")), bold: packed(parts("--bold")),
    paper: packed(parts("--back")),
    text: style.getPropertyValue("--text"), soft: style.getPropertyValue("--soft"), limit: style.getPropertyValue("--limit") };
}

// Pixels of a canvas, and what covers less than a box in each column.
class Raster {
  constructor(canvas, width, height) {
    Object.assign(canvas, { width, height });
    this.context = canvas.getContext("2d");
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.cover = new Float64Array(KINDS * width);
    this.carry = new Float64Array(KINDS);
    this.used = new Set();
    Object.assign(this, { width, height });
  }

  box(left, right, top, bottom, colour, edge) {
    const wide = right - left > 4;
    for (let y = top; y < bottom; y++) {
      this.pixels.fill(colour, y * this.width + left, y * this.width + right);
      if (wide) this.pixels[y * this.width + right - 1] = edge;
    }
  }

  add(kind, from, to, weight) {
    from = Math.max(from, 0);
    to = Math.min(to, this.width);
    if (!(to > from)) return;
    this.used.add(kind);
    const base = kind * this.width, first = Math.floor(from), last = Math.min(Math.floor(to), this.width - 1);
    if (first === last) { this.cover[base + first] += (to - from) * weight; return; }
    this.cover[base + first] += (first + 1 - from) * weight;
    for (let x = first + 1; x < last; x++) this.cover[base + x] += weight;
    this.cover[base + last] += (to - last) * weight;
  }

  // Stack the shares of each column; what rounding leaves goes to the next column, so that areas are right.
  settle(top, bottom) {
    const height = bottom - top, kinds = [...this.used].sort((one, other) => one - other);
    if (!kinds.length) return;
    const { cover, carry, pixels, width } = this;
    for (let x = 0; x < width; x++) {
      let y = top;
      for (const kind of kinds) {
        const wanted = cover[kind * width + x] * height + carry[kind];
        const count = Math.max(0, Math.min(bottom - y, Math.round(wanted)));
        if (cover[kind * width + x] === 0) continue;
        carry[kind] = wanted - count;
        const colour = palette.fill[kind];
        for (const stop = y + count; y < stop; y++) pixels[y * width + x] = colour;
      }
    }
    for (const kind of kinds) { cover.fill(0, kind * width, (kind + 1) * width); carry[kind] = 0; }
    this.used.clear();
  }
}

// ---- one lane: a schedule's ranks, and memory under them

class Lane {
  constructor(run, view) {
    Object.assign(this, { run, view, chosen: NONE, lit: null });
    this.figure = made("figure", { className: "lane" });
    this.caption = made("figcaption", { innerHTML: "" });
    this.caption.append(made("strong", { textContent: run.name }), ` ${run.words}`);
    this.gantt = made("canvas", { className: "gantt", tabIndex: 0 });
    this.gantt.setAttribute("role", "application");
    this.gantt.setAttribute("aria-label", `Timeline of ${run.name}, ${run.ranks} ranks. Arrow keys walk the boxes, `
      + "plus and minus zoom, Enter follows a microbatch, Escape ends it.");
    this.memory = made("canvas", { className: "memory" });
    this.memory.setAttribute("role", "img");
    this.memory.setAttribute("aria-label", `${run.memory.kind} of every rank over the step; at most ${amount(run.peak, run.memory.kind)}, on rank ${run.fullest}.`);
    this.figure.append(this.caption, this.gantt, this.memory);
    listen(this);
  }

  resize() {
    const ratio = window.devicePixelRatio || 1, width = this.figure.clientWidth;
    if (!width || (this.raster && this.width === width && this.ratio === ratio)) return;
    const row = Math.max(5, Math.min(22, Math.floor(330 / this.run.ranks)));
    Object.assign(this, { width, ratio, row, gutter: width > 600 ? 52 : 26 });
    this.size(this.gantt, "raster", row * this.run.ranks, 18);
    if (this.run.peak) this.size(this.memory, "level", 84, 4); else this.memory.hidden = true;
  }

  size(canvas, name, height, below) {
    canvas.style.height = `${height + below}px`;
    canvas.width = Math.round(this.width * this.ratio);
    canvas.height = Math.round((height + below) * this.ratio);
    const inner = document.createElement("canvas");
    this[name] = new Raster(inner, Math.max(1, Math.round((this.width - this.gutter) * this.ratio)), Math.round(height * this.ratio));
    this[name].canvas = inner;
  }

  get visible() {
    const { top, bottom } = this.figure.getBoundingClientRect();
    return bottom > 0 && top < window.innerHeight;
  }

  draw() {
    this.resize();
    if (!this.raster) return;
    this.drawRanks();
    if (this.run.peak) this.drawMemory();
  }

  drawRanks() {
    const { raster, run, view, row, ratio } = this, labels = [];
    const scale = raster.width / (view.to - view.from);
    this.ground = palette.idle;
    raster.pixels.fill(this.ground);
    for (let rank = 0; rank < run.ranks; rank++) {
      const top = Math.round(rank * row * ratio);
      const bottom = Math.round((rank + 1) * row * ratio) - (row > 7 ? Math.round(ratio) : 0);
      this.drawRank(rank, top, bottom, scale, labels);
      if (row > 7) raster.pixels.fill(palette.paper, bottom * raster.width, Math.round((rank + 1) * row * ratio) * raster.width);
    }
    this.drawLater(scale);
    raster.context.putImageData(raster.image, 0, 0);
    this.finish(labels, scale / ratio);
  }

  drawRank(rank, top, bottom, scale, labels) {
    const { raster, run, view, lit } = this, { from, to } = view, last = run.offsets[rank + 1];
    const middle = (top + bottom) >> 1, readable = bottom - top >= 11 * this.ratio;
    let i = firstAfter(run, rank, from);
    const boxes = [];
    for (; i < last && run.start[i] - run.gap[i] < to; i++) {
      if (view.causes && run.gap[i]) this.drawGap(i, rank, top, bottom, scale);
      if (run.start[i] >= to) break;
      const left = (run.start[i] - from) * scale, right = (run.end[i] - from) * scale;
      const dim = lit && !lit[i] ? DIM : 0, one = run.kind[i] + dim, two = run.kind2[i] + dim;
      if (right - left < BOX_PX) {
        if (run.op[i] === PAIR) { raster.add(one, left, right, 0.5); raster.add(two, left, right, 0.5); }
        else raster.add(one, left, right, 1);
      } else {
        const x0 = Math.max(0, Math.round(left)), x1 = Math.min(raster.width, Math.round(right));
        boxes.push(i, x0, x1, one, two);
      }
    }
    if (view.causes && i === last && run.end[last - 1] < run.makespan)
      this.cause(ENDS, run.end[last - 1], run.makespan, top, bottom, scale);
    raster.settle(top, bottom);
    for (let b = 0; b < boxes.length; b += 5) {
      const [at, x0, x1, one, two] = [boxes[b], boxes[b + 1], boxes[b + 2], boxes[b + 3], boxes[b + 4]];
      if (run.op[at] === PAIR) {
        raster.box(x0, x1, top, middle, palette.fill[one], palette.edge[one]);
        raster.box(x0, x1, middle, bottom, palette.fill[two], palette.edge[two]);
      } else raster.box(x0, x1, top, bottom, palette.fill[one], palette.edge[one]);
      if (readable && x1 - x0 >= 9 * this.ratio) labels.push([(x0 + x1) / 2, middle, at, one, x1 - x0]);
    }
  }

  drawGap(i, rank, top, bottom, scale) {
    const { run } = this, begin = run.start[i] - run.gap[i];
    if (i === run.offsets[rank]) return this.cause(ENDS, begin, run.start[i], top, bottom, scale);
    this.cause(DEPENDENCY, begin, run.ready[i], top, bottom, scale);
    this.cause(MESSAGE, run.ready[i], run.start[i], top, bottom, scale);
  }

  cause(kind, begin, end, top, bottom, scale) {
    const { raster, view } = this, left = (begin - view.from) * scale, right = (end - view.from) * scale;
    if (right - left < BOX_PX) return raster.add(kind, left, right, 1);
    const x0 = Math.max(0, Math.round(left)), x1 = Math.min(raster.width, Math.round(right));
    if (x1 > x0) raster.box(x0, x1, top, bottom, palette.fill[kind], palette.fill[kind]);
  }

  drawLater(scale) {
    const { raster, run, view, row, ratio } = this, later = run.later;
    for (let j = 0; j < later.rank.length; j++) {
      const start = later.start[j] * run.tick, end = start + later.duration[j] * run.tick;
      const left = Math.max(0, Math.round((start - view.from) * scale)), right = Math.min(raster.width, Math.round((end - view.from) * scale));
      const kind = OPS[later.op[j]] === "OPTIMIZER" ? AFTER + 1 : AFTER;
      const bottom = Math.round((later.rank[j] + 1) * row * ratio) - Math.round(ratio), top = Math.round((later.rank[j] + 0.6) * row * ratio);
      if (right > left) raster.box(left, right, top, bottom, palette.fill[kind], palette.fill[kind]);
    }
  }

  // Words over the pixels: ranks, numbers in boxes, the time axis, the chosen box, a microbatch's path.
  finish(labels, scale) {
    const { gantt, gutter, ratio, run, row, view } = this, context = gantt.getContext("2d");
    const height = row * run.ranks;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, gantt.width, gantt.height);
    context.drawImage(this.raster.canvas, gantt.width - this.raster.width, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = palette.soft;
    context.textAlign = "right";
    const every = Math.max(1, Math.ceil(13 / row));
    for (let rank = 0; rank < run.ranks; rank += every)
      context.fillText(gutter > 40 ? `rank ${rank}` : rank, gutter - 4, Math.max(6, (rank + 0.5) * row));
    context.textAlign = "center";
    if (labels.length < 3000) for (const [x, y, at, kind, wide] of labels) {
      const number = run.slice ? `${run.microbatch[at]}.${run.slice[at]}` : `${run.microbatch[at]}`;
      const text = wide / ratio > 7 * number.length + 14 && run.op[at] !== PAIR ? OPS[run.op[at]] + number : number;
      if (wide / ratio < 6.5 * text.length + 2) continue;
      context.fillStyle = palette.letters[kind];
      context.fillText(text, gutter + x / ratio, y / ratio + 0.5);
    }
    this.axis(context, height, scale);
    if (view.microbatch !== NONE) this.path(context, scale);
    if (this.chosen !== NONE) {
      const i = this.chosen, left = gutter + (run.start[i] - view.from) * scale;
      context.strokeStyle = palette.text;
      context.lineWidth = 2;
      context.strokeRect(left, run.rank[i] * row + 1, Math.max(2, (run.end[i] - run.start[i]) * scale), row - 2);
    }
  }

  axis(context, height, scale) {
    const { view, gutter, width } = this, wanted = (view.to - view.from) / unit.seconds / Math.max(2, (width - gutter) / 90);
    const power = 10 ** Math.floor(Math.log10(wanted)), step = [1, 2, 5, 10].find((one) => one * power >= wanted) * power;
    context.fillStyle = palette.soft;
    for (let n = Math.ceil(view.from / unit.seconds / step); n * step * unit.seconds <= view.to; n++) {
      const x = gutter + (n * step * unit.seconds - view.from) * scale, text = `${+(n * step).toPrecision(8)}`;
      if (x > width - 4 * text.length - 2) break;
      context.fillRect(x, height, 1, 3);
      context.fillText(text, Math.max(x, gutter), height + 10);
    }
  }

  path(context, scale) {
    const { run, view, row, gutter, lit, width } = this, places = [];
    for (let i = 0; lit && i < lit.length; i++) if (lit[i] && run.op[i] !== 3) places.push(i);
    if (places.length > 4000) return;
    places.sort((one, other) => run.start[one] - run.start[other]);
    context.save();
    context.beginPath();
    context.rect(gutter, 0, width - gutter, row * run.ranks);
    context.clip();
    context.beginPath();
    for (const i of places) context.lineTo(gutter + ((run.start[i] + run.end[i]) / 2 - view.from) * scale, (run.rank[i] + 0.5) * row);
    context.strokeStyle = palette.text;
    context.lineWidth = 1;
    context.stroke();
    context.restore();
  }

  drawMemory() {
    const { level, run, view, memory, ratio, gutter } = this, { width, height, pixels } = level;
    const limit = run.memory.limits[0], top = 1.08 * Math.max(run.peak, limit || 0), scale = width / (view.to - view.from);
    const row = (value) => Math.max(0, Math.min(height - 1, Math.round((1 - value / top) * (height - 1))));
    pixels.fill(0);
    for (let rank = 0; rank < run.ranks; rank++) if (rank !== run.fullest) this.drawLevel(rank, scale, row, palette.rank, 1);
    this.drawLevel(run.fullest, scale, row, palette.bold, Math.ceil(1.6 * ratio));
    level.context.putImageData(level.image, 0, 0);
    const context = memory.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, memory.width, memory.height);
    context.drawImage(level.canvas, memory.width - width, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = palette.soft;
    context.textBaseline = "middle";
    context.fillText("0", gutter - 10, height / ratio - 5);
    for (const [value, words, colour] of [[run.peak, `${run.memory.kind}: at most ${amount(run.peak, run.memory.kind)} on rank ${run.fullest}`, palette.soft],
      ...run.memory.limits.map((one) => [one, `limit ${amount(one, run.memory.kind)}`, palette.limit])]) {
      const y = row(value) / ratio;
      context.fillStyle = context.strokeStyle = colour;
      const isLimit = colour === palette.limit;
      context.setLineDash(isLimit ? [5, 4] : [1, 3]);
      context.beginPath();
      context.moveTo(gutter, y);
      context.lineTo(this.width, y);
      context.stroke();
      const words_x = isLimit ? this.width - 4 - context.measureText(words).width : gutter + 4;
      context.fillText(words, words_x, y < 12 ? y + 8 : y - 7);
    }
    context.setLineDash([]);
  }

  drawLevel(rank, scale, row, colour, thick) {
    const { run, view, level } = this, { width, height, pixels } = level, last = run.offsets[rank + 1];
    const most = new Int32Array(width).fill(-1), least = new Int32Array(width).fill(height);
    const put = (from, to, value) => {
      const x0 = Math.max(0, Math.floor((from - view.from) * scale)), x1 = Math.min(width - 1, Math.floor((to - view.from) * scale)), y = row(value);
      for (let x = x0; x <= x1; x++) { if (y > most[x]) most[x] = y; if (y < least[x]) least[x] = y; }
    };
    let i = firstAfter(run, rank, view.from);
    const begin = run.offsets[rank];
    put(view.from, i < last ? Math.min(run.start[i], view.to) : view.to, i > begin ? run.held[i - 1] : run.held[last - 1]);
    for (; i < last && run.start[i] < view.to; i++) {
      put(run.start[i], run.end[i], run.during[i]);
      put(run.end[i], i + 1 < last ? run.start[i + 1] : view.to, run.held[i]);
    }
    for (let x = 0; x < width; x++)
      for (let y = least[x]; y <= Math.min(height - 1, most[x] + thick - 1); y++) pixels[y * width + x] = colour;
  }

  // Rank and time under a place of the page.
  under(event) {
    const box = this.gantt.getBoundingClientRect();
    const rank = Math.floor((event.clientY - box.top) / this.row), share = (event.clientX - box.left - this.gutter) / (this.width - this.gutter);
    return { rank, share, at: this.view.from + share * (this.view.to - this.view.from) };
  }

  choose(i) {
    const { run, view } = this;
    this.chosen = i;
    const wide = view.to - view.from;
    if (run.start[i] < view.from || run.end[i] > view.to) view.show(run.start[i] - wide / 3, run.start[i] + wide * 2 / 3);
    said(described(run, i).join("; "));
    view.redraw();
  }
}

// ---- the part of the step that all lanes show

class View {
  constructor(longest) { Object.assign(this, { from: 0, to: longest, longest, lanes: [], causes: false, critical: false, microbatch: NONE, asked: false }); }

  show(from, to) {
    const most = to - from > this.longest * (1 - 1e-9) ? this.longest : to - from;
    const wide = Math.max(this.longest * 1e-7, most);
    this.from = wide === this.longest ? 0 : Math.max(0, Math.min(this.longest - wide, from));
    this.to = this.from + wide;
    this.redraw();
  }

  zoom(factor, share = 0.5) {
    const wide = (this.to - this.from) / factor, at = this.from + share * (this.to - this.from);
    this.show(at - share * wide, at - share * wide + wide);
  }

  light() {
    for (const lane of this.lanes) {
      lane.lit = this.critical ? criticalPath(lane.run) : this.microbatch === NONE ? null : ofMicrobatch(lane.run, this.microbatch);
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
  const { gantt, view, run } = lane, fingers = new Map();
  let moved = 0;
  gantt.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    view.zoom(Math.exp(-event.deltaY / 300), lane.under(event).share);
  }, { passive: false });
  gantt.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, event); moved = 0; });
  gantt.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return hint(lane, event);
    const seconds = (view.to - view.from) / (lane.width - lane.gutter);
    if (fingers.size === 1) {
      const dx = event.clientX - before.clientX;
      moved += Math.abs(dx);
      if (moved > 3) { if (event.isPrimary && !gantt.hasPointerCapture(event.pointerId)) gantt.setPointerCapture(event.pointerId); hideHint(); view.show(view.from - dx * seconds, view.to - dx * seconds); }
    } else {
      const [other] = [...fingers.values()].filter((one) => one.pointerId !== event.pointerId);
      const far = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
      moved += 9;
      view.zoom(Math.max(0.5, Math.min(2, far(event) / (far(before) || 1))), lane.under(other).share);
    }
    fingers.set(event.pointerId, event);
  });
  for (const name of ["pointerup", "pointercancel"]) gantt.addEventListener(name, (event) => {
    fingers.delete(event.pointerId);
    if (name === "pointercancel" || moved > 3) return;
    const { rank, at } = lane.under(event);
    if (rank < 0 || rank >= run.ranks) return;
    const next = firstAfter(run, rank, at);
    if (next < run.offsets[rank + 1] && run.start[next] <= at) lane.choose(next);
    else { const words = describedAt(run, rank, at); if (words) said(words.join("; ")); }
  });
  gantt.addEventListener("pointerleave", hideHint);
  gantt.addEventListener("dblclick", () => { if (lane.chosen !== NONE) follow(run.microbatch[lane.chosen]); });
  gantt.addEventListener("keydown", (event) => { if (!event.ctrlKey && !event.metaKey && !event.altKey && walk(lane, event.key)) event.preventDefault(); });
}

function walk(lane, key) {
  const { run, view, chosen } = lane, middle = (view.from + view.to) / 2;
  const near = (rank, at) => Math.min(firstAfter(run, rank, at), run.offsets[rank + 1] - 1);
  const rank = chosen === NONE ? 0 : run.rank[chosen], at = chosen === NONE ? middle : (run.start[chosen] + run.end[chosen]) / 2;
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const to = chosen === NONE ? near(0, middle) : chosen + (key === "ArrowRight" ? 1 : -1);
    if (to >= run.offsets[rank] && to < run.offsets[rank + 1]) lane.choose(to);
  } else if (key === "ArrowUp" || key === "ArrowDown") {
    const to = rank + (key === "ArrowDown" ? 1 : -1);
    if (to >= 0 && to < run.ranks) lane.choose(near(to, at));
  } else if (key === "Home") lane.choose(run.offsets[rank]);
  else if (key === "End") lane.choose(run.offsets[rank + 1] - 1);
  else if (key === "+" || key === "=") view.zoom(1.5, Math.max(0, Math.min(1, (at - view.from) / (view.to - view.from))));
  else if (key === "-") view.zoom(1 / 1.5, Math.max(0, Math.min(1, (at - view.from) / (view.to - view.from))));
  else if (key === "0") view.show(0, view.longest);
  else if (key === "Enter" && chosen !== NONE) follow(run.microbatch[chosen]);
  else if (key === "Escape") { lane.chosen = NONE; follow(NONE); hideHint(); }
  else return false;
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
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, document.documentElement.clientWidth - width - 4))}px`;
  tip.style.top = `${event.clientY + 18 + height > window.innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}

function hideHint() { tip.hidden = true; }
function said(words) { controls.said.textContent = words; }

function made(tag, properties = {}) { return Object.assign(document.createElement(tag), properties); }

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
  one.onclick = () => { const on = one.getAttribute("aria-pressed") !== "true"; one.setAttribute("aria-pressed", String(on)); act(on); };
  return one;
}

function bar(runs) {
  const box = made("div", { className: "bar" }), more = made("div", { className: "more", id: "more-tools" });
  box.setAttribute("role", "toolbar");
  box.setAttribute("aria-label", "Timelines");
  controls.window = made("output", { className: "window" });
  controls.said = made("p", { className: "said", textContent: "Point at a box, or click it and use the arrow keys; drag to move, Ctrl or Cmd and the wheel to zoom." });
  controls.said.setAttribute("aria-live", "polite");
  controls.critical = toggle("Critical path", (on) => { view.critical = on; view.microbatch = NONE; controls.microbatch.value = ""; view.light(); });
  controls.causes = toggle("Why idle", (on) => { view.causes = on; root.classList.toggle("causes", on); view.redraw(); });
  controls.microbatch = made("input", { type: "number", min: 0, max: Math.max(...runs.map((run) => run.microbatches)) - 1 });
  controls.microbatch.onchange = () => { const value = controls.microbatch.value; follow(value === "" ? NONE : Math.max(0, Math.min(+controls.microbatch.max, Math.round(+value)))); };
  const label = made("label", { textContent: "Microbatch " });
  label.append(controls.microbatch);
  const tools = toggle("Tools", (on) => { box.classList.toggle("open", on); tools.setAttribute("aria-expanded", String(on)); });
  tools.className = "tools";
  tools.setAttribute("aria-expanded", "false");
  tools.setAttribute("aria-controls", more.id);
  more.append(button("First tenth", "Show the first tenth", () => view.show(0, view.longest / 10)),
    button("Last tenth", "Show the last tenth", () => view.show(view.longest * 0.9, view.longest)), label, controls.critical, controls.causes);
  box.append(button("+", "Zoom in", () => view.zoom(1.6)), button("\u2212", "Zoom out", () => view.zoom(1 / 1.6)),
    button("\u25c2", "Earlier", () => view.show(view.from - (view.to - view.from) / 3, view.to - (view.to - view.from) / 3)),
    button("\u25b8", "Later", () => view.show(view.from + (view.to - view.from) / 3, view.to + (view.to - view.from) / 3)),
    button("Whole step", "Show the whole step", () => view.show(0, view.longest)), tools, more, controls.window);
  return [box, controls.said];
}

function legend() {
  const list = made("ul", { className: "legend" });
  const entry = (name, words, group = "") => { const line = made("li", { className: group }); const swatch = made("span", { className: "swatch" }); swatch.style.background = `var(${name})`; line.append(swatch, words); list.append(line); };
  const seen = new Set(view.lanes.flatMap(({ run }) => [...new Set(run.op)].flatMap((op) => (op === PAIR ? [0, 1] : [op]))));
  ["--f", "--b", "--i", "--w"].forEach((name, op) => { if (seen.has(op)) entry(name, `${OPS[op]} ${WORDS[OPS[op]]}`); });
  const later = new Set(view.lanes.flatMap(({ run }) => [...new Set(run.later.op)].map((op) => OPS[op])));
  if ([...later].some((name) => name !== "OPTIMIZER")) entry("--sync", WORDS.REDUCE_GRAD);
  if (later.has("OPTIMIZER")) entry("--optimizer", WORDS.OPTIMIZER);
  entry("--idle", "idle", "plain");
  for (const [name, words] of [["--dependency", "waits for a producer"], ["--message", "waits for its message"], ["--ends", "warm-up, cool-down"]]) entry(name, words, "cause");
  if (view.lanes.some(({ run }) => run.chunks.some((stages) => stages.length > 1))) list.append(made("li", { textContent: "the paler, the later the chunk of a rank" }));
  list.append(made("li", { textContent: `time in ${unit.words}` }));
  return list;
}

// ---- the table of schedules: tick boxes, sorting

function value(cell) {
  const [, number, word] = /^([\d.,]+)\s*(\S*)/.exec(cell.textContent.trim()) || [];
  if (number === undefined) return cell.textContent.trim();
  const sizes = { us: 1e-6, ms: 1e-3, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
  return parseFloat(number.replaceAll(",", "")) * (sizes[word] || 1);
}

function sortable(table) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const press = made("button", { type: "button", textContent: head.textContent });
    head.replaceChildren(press);
    press.onclick = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const compared = (one, other) => (typeof one === typeof other ? (one < other ? -1 : one > other ? 1 : 0) : typeof one === "number" ? -1 : 1);
      const rows = [...body.rows].sort((one, other) => compared(value(one.cells[column]), value(other.cells[column])));
      body.append(...(up ? rows : rows.reverse()));
    };
  });
}

function boxes(table, entries, show) {
  const rows = [...table.tBodies[0].rows];
  for (const entry of entries) {
    const box = made("input", { type: "checkbox", checked: entry.shown });
    box.setAttribute("aria-label", `Show the timeline of ${entry.name}`);
    box.onchange = () => { entry.shown = box.checked; show(); };
    rows[entry.row].cells[0].prepend(box);
  }
}

// ---- beginning

async function begin() {
  const { head, column } = await unpacked(document.getElementById("timeline-data").textContent);
  OPS = head.ops;
  unit = head.unit;
  palette = colours();
  document.documentElement.classList.add("live");
  view = new View(Math.max(...head.runs.map((run) => run.step)));
  const lanesBox = made("div", { className: "lanes" }), legendBox = made("div"), lanes = new Map();
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
  if (table) { boxes(table, head.runs, show); sortable(table); }
  root.timelines = { view };
  show();
  const again = () => { palette = colours(); view.redraw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("scroll", () => { if (view.lanes.some((lane) => lane.visible)) view.redraw(); }, { passive: true });
  new ResizeObserver(() => view.redraw()).observe(lanesBox);
}

if (typeof DecompressionStream === "undefined") root.textContent = "This browser is older than 2023 and cannot unpack the timelines; pictures stand in for them.";
else begin().catch((error) => { document.documentElement.classList.remove("live"); root.textContent = `The timelines could not be read (${error.message}); pictures stand in for them.`; });
})();
