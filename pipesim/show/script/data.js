// Reads the timelines of several schedules and says in words what happens in them; see timeline_data.py.
// Times are seconds from the first start. The files of this folder are one script, in the order of page.py.
const root = document.getElementById("timelines");
const style = getComputedStyle(document.documentElement);
const PAIR = 13;
const NONE = -1;
const BOX_PX = 2.5;
const SHADES = 4;
const DIM = 4 * SHADES;
const DEPENDENCY = 2 * DIM;
const MESSAGE = DEPENDENCY + 1;
const ENDS = DEPENDENCY + 2;
const AFTER = DEPENDENCY + 3;
const KINDS = AFTER + 2;

// ---- reading the data

async function unpacked(text) {
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const content = await new Response(stream).arrayBuffer();
  const size = new DataView(content).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(content, 4, size)));
  const arrays = {
    u1: Uint8Array,
    i1: Int8Array,
    u2: Uint16Array,
    i2: Int16Array,
    i4: Int32Array,
    f8: Float64Array,
  };
  const column = ([type, offset, length, form]) => {
    const Kind = arrays[type],
      from = 4 + size + offset;
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
  const length = run.op.length,
    tick = entry.tick;
  const [duration, gap, p2p, collective] = ["duration", "gap", "p2p", "collective"].map((name) =>
    column(entry[name]),
  );
  for (const name of ["start", "end", "ready", "gap", "p2p", "collective"])
    run[name] = new Float64Array(length);
  run.rank = new Uint16Array(length);
  run.kind = new Uint8Array(length);
  run.kind2 = new Uint8Array(length);
  for (let rank = 0; rank < run.ranks; rank++) {
    const shade = new Map(
      entry.chunks[rank].map((stage, chunk, all) => [
        stage,
        all.length > 1 ? Math.round(((SHADES - 1) * chunk) / (all.length - 1)) : 0,
      ]),
    );
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
    for (let i = run.offsets[rank]; i < run.offsets[rank + 1]; i++)
      most = Math.max(most, run.during[i], run.held[i]);
    return most;
  });
  run.peak = Math.max(...peaks);
  run.fullest = peaks.indexOf(run.peak);
  run.later = Object.fromEntries(Object.entries(entry.after).map(([name, of]) => [name, column(of)]));
  return run;
}

// First action of a rank that ends after a time.
function firstAfter(run, rank, time) {
  let low = run.offsets[rank],
    high = run.offsets[rank + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (run.end[middle] > time) high = middle;
    else low = middle + 1;
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
  return Uint8Array.from(run.op, (op, i) =>
    run.microbatch[i] === microbatch || (op === PAIR && run.microbatch[i] + run.microbatch2[i] === microbatch)
      ? 1
      : 0,
  );
}

// ---- words

function time(seconds) {
  for (const [unit, size] of [
    ["s", 1],
    ["ms", 1e-3],
    ["us", 1e-6],
  ])
    if (Math.abs(seconds) >= size || unit === "us")
      return seconds ? `${+(seconds / size).toPrecision(4)} ${unit}` : "0 s";
}

function amount(value, kind) {
  if (!kind.startsWith("memory")) return `${+value.toPrecision(4)}`;
  for (const [unit, size] of [
    ["TB", 1e12],
    ["GB", 1e9],
    ["MB", 1e6],
    ["kB", 1e3],
  ])
    if (value >= size) return `${+(value / size).toPrecision(3)} ${unit}`;
  return `${Math.round(value)} B`;
}

function titled(run, i) {
  const part = run.slice ? `.${run.slice[i]}` : "";
  if (run.op[i] !== PAIR) return `${run.stage[i]}${OPS[run.op[i]]}${run.microbatch[i]}${part}`;
  const backward = `${run.stage[i] + run.stage2[i]}B${run.microbatch[i] + run.microbatch2[i]}`;
  return `${run.stage[i]}F${run.microbatch[i]} with ${backward}`;
}

function cause(run, i) {
  const from = run.awaited[i] ? i + run.awaited[i] : NONE;
  const producer = from === NONE ? "what it needs" : `${titled(run, from)} on rank ${run.rank[from]}`;
  if (i === run.offsets[run.rank[i]])
    return run.gap[i] ? `warm-up ${time(run.gap[i])}: waits for ${producer}` : "the first of its rank";
  if (run.gap[i] <= 1.5 * run.tick) return "no idle time before it";
  const dependency = run.gap[i] - run.p2p[i],
    parts = [];
  if (dependency > 1.5 * run.tick) parts.push(`${time(dependency)} until ${producer} has ended`);
  if (run.p2p[i] > 1.5 * run.tick) parts.push(`${time(run.p2p[i])} for its message`);
  return `idle ${time(run.gap[i])} before it: ${parts.join(", then ")}`;
}

function described(run, i) {
  const op = WORDS[OPS[run.op[i]]];
  const lines = [
    `${titled(run, i)}: ${op}, rank ${run.rank[i]}, stage ${run.stage[i]}, microbatch ${run.microbatch[i]}`,
    `${time(run.start[i])} to ${time(run.end[i])}, takes ${time(run.end[i] - run.start[i])}`,
    cause(run, i),
  ];
  if (run.collective[i] > 1.5 * run.tick)
    lines.push(`of it ${time(run.collective[i])} waiting for shared-out weights or gradients`);
  if (run.peak) lines.push(`${run.memory.kind}: ${amount(run.during[i], run.memory.kind)}`);
  return lines;
}

function describedAt(run, rank, at) {
  const next = firstAfter(run, rank, at),
    last = run.offsets[rank + 1];
  if (next < last && run.start[next] <= at) return described(run, next);
  for (let j = 0; j < run.later.rank.length; j++) {
    const start = run.later.start[j] * run.tick,
      end = start + run.later.duration[j] * run.tick;
    if (run.later.rank[j] === rank && start <= at && at < end)
      return [
        `rank ${rank}: ${WORDS[OPS[run.later.op[j]]]}`,
        `${time(start)} to ${time(end)}, takes ${time(end - start)}`,
      ];
  }
  if (next < last) return [`rank ${rank} is idle; next is ${titled(run, next)}`, cause(run, next)];
  const done = run.end[last - 1];
  return at <= run.makespan
    ? [`rank ${rank} is done`, `cool-down ${time(run.makespan - done)}: until every rank is`]
    : null;
}
