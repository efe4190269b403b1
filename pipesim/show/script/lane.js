// Draws a schedule's ranks, and memory under them. A lane paints its own pixels: boxes of 2.5 px or more as
// boxes, narrower ones as the exact share of each pixel column that they cover.

// ---- pixels

let OPS = {};
let WORDS = {};
let unit = { seconds: 1, words: "seconds" };
let palette = null;

function colours() {
  const parts = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  };
  const mixed = (one, other, share) => one.map((value, i) => Math.round(value + (other[i] - value) * share));
  const packed = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  const back = parts("--idle");
  const rgb = [];
  ["--f", "--b", "--i", "--w"].forEach((name, op) => {
    for (let shade = 0; shade < SHADES; shade++) {
      const colour = mixed(parts(name), back, (0.45 * shade) / (SHADES - 1));
      rgb[op * SHADES + shade] = colour;
      rgb[DIM + op * SHADES + shade] = mixed(colour, back, 0.8);
    }
  });
  ["--dependency", "--message", "--ends", "--sync", "--optimizer"].forEach((name, i) => {
    rgb[DEPENDENCY + i] = parts(name);
  });
  const light = ([red, green, blue]) =>
    0.2126 * (red / 255) ** 2.2 + 0.7152 * (green / 255) ** 2.2 + 0.0722 * (blue / 255) ** 2.2;
  return {
    idle: packed(back),
    fill: rgb.map(packed),
    edge: rgb.map((one) => packed(mixed(one, back, 0.6))),
    letters: rgb.map((one, kind) =>
      kind >= DIM && kind < 2 * DIM ? style.getPropertyValue("--soft") : light(one) > 0.18 ? "#000" : "#fff",
    ),
    rank: packed(parts("--rank")),
    bold: packed(parts("--bold")),
    paper: packed(parts("--back")),
    text: style.getPropertyValue("--text"),
    soft: style.getPropertyValue("--soft"),
    limit: style.getPropertyValue("--limit"),
  };
}

// Pixels of a canvas, and what covers less than a box in each column.
class Raster {
  constructor(canvas, width, height) {
    Object.assign(canvas, { width, height });
    this.context = canvas.getContext("2d");
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.cover = new Float64Array(KINDS * width);
    this.filled = new Int32Array(width);
    this.used = new Uint8Array(KINDS);
    this.most = new Int32Array(width);
    this.least = new Int32Array(width);
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
    this.used[kind] = 1;
    const base = kind * this.width,
      first = Math.floor(from),
      last = Math.min(Math.floor(to), this.width - 1);
    if (first === last) {
      this.cover[base + first] += (to - from) * weight;
      return;
    }
    this.cover[base + first] += (first + 1 - from) * weight;
    for (let x = first + 1; x < last; x++) this.cover[base + x] += weight;
    this.cover[base + last] += (to - last) * weight;
  }

  // Stack the shares of each column; what rounding leaves goes to the next column, so that areas are right.
  settle(top, bottom) {
    const { cover, pixels, width, used, filled } = this,
      height = bottom - top;
    filled.fill(top * width);
    for (let kind = 0; kind < KINDS; kind++) {
      if (!used[kind]) continue;
      const colour = palette.fill[kind],
        base = kind * width;
      let carry = 0;
      for (let x = 0; x < width; x++) {
        const share = cover[base + x];
        if (share === 0) continue;
        const wanted = share * height + carry,
          from = filled[x],
          to = Math.min(bottom * width, from + Math.max(0, Math.round(wanted)) * width);
        for (let at = from + x; at < to; at += width) pixels[at] = colour;
        filled[x] = to;
        carry = wanted - (to - from) / width;
      }
      cover.fill(0, base, base + width);
      used[kind] = 0;
    }
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
    this.gantt.setAttribute(
      "aria-label",
      `Timeline of ${run.name}, ${run.ranks} ranks. Arrow keys walk the boxes, ` +
        "plus and minus zoom, Enter follows a microbatch, Escape ends it.",
    );
    this.memory = made("canvas", { className: "memory" });
    this.memory.setAttribute("role", "img");
    const most = amount(run.peak, run.memory.kind);
    this.memory.setAttribute(
      "aria-label",
      `${run.memory.kind} of every rank over the step; at most ${most}, on rank ${run.fullest}.`,
    );
    this.figure.append(this.caption, this.gantt, this.memory);
    listen(this);
  }

  resize() {
    const ratio = window.devicePixelRatio || 1,
      width = this.figure.clientWidth;
    if (!width || (this.raster && this.width === width && this.ratio === ratio)) return;
    const row = Math.max(5, Math.min(22, Math.floor(330 / this.run.ranks)));
    Object.assign(this, { width, ratio, row, gutter: width > 600 ? 52 : 26 });
    this.size(this.gantt, "raster", row * this.run.ranks, 18);
    if (this.run.peak) this.size(this.memory, "level", 84, 4);
    else this.memory.hidden = true;
  }

  size(canvas, name, height, below) {
    canvas.style.height = `${height + below}px`;
    canvas.width = Math.round(this.width * this.ratio);
    canvas.height = Math.round((height + below) * this.ratio);
    const inner = document.createElement("canvas");
    this[name] = new Raster(
      inner,
      Math.max(1, Math.round((this.width - this.gutter) * this.ratio)),
      Math.round(height * this.ratio),
    );
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
    const { raster, run, view, row, ratio } = this,
      labels = [];
    const scale = raster.width / (view.to - view.from);
    this.ground = palette.idle;
    raster.pixels.fill(this.ground);
    for (let rank = 0; rank < run.ranks; rank++) {
      const top = Math.round(rank * row * ratio);
      const bottom = Math.round((rank + 1) * row * ratio) - (row > 7 ? Math.round(ratio) : 0);
      this.drawRank(rank, top, bottom, scale, labels);
      if (row > 7)
        raster.pixels.fill(
          palette.paper,
          bottom * raster.width,
          Math.round((rank + 1) * row * ratio) * raster.width,
        );
    }
    this.drawLater(scale);
    raster.context.putImageData(raster.image, 0, 0);
    this.finish(labels, scale / ratio);
  }

  drawRank(rank, top, bottom, scale, labels) {
    const { raster, run, view, lit } = this,
      { from, to } = view,
      last = run.offsets[rank + 1];
    const middle = (top + bottom) >> 1,
      readable = bottom - top >= 11 * this.ratio;
    let i = firstAfter(run, rank, from);
    const boxes = [];
    for (; i < last && run.start[i] - run.gap[i] < to; i++) {
      if (view.causes && run.gap[i]) this.drawGap(i, rank, top, bottom, scale);
      if (run.start[i] >= to) break;
      const left = (run.start[i] - from) * scale,
        right = (run.end[i] - from) * scale;
      const dim = lit && !lit[i] ? DIM : 0,
        one = run.kind[i] + dim,
        two = run.kind2[i] + dim;
      if (right - left < BOX_PX) {
        if (run.op[i] === PAIR) {
          raster.add(one, left, right, 0.5);
          raster.add(two, left, right, 0.5);
        } else raster.add(one, left, right, 1);
      } else {
        const x0 = Math.max(0, Math.round(left)),
          x1 = Math.min(raster.width, Math.round(right));
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
    const { run } = this,
      begin = run.start[i] - run.gap[i];
    if (i === run.offsets[rank]) return this.cause(ENDS, begin, run.start[i], top, bottom, scale);
    this.cause(DEPENDENCY, begin, run.ready[i], top, bottom, scale);
    this.cause(MESSAGE, run.ready[i], run.start[i], top, bottom, scale);
  }

  cause(kind, begin, end, top, bottom, scale) {
    const { raster, view } = this,
      left = (begin - view.from) * scale,
      right = (end - view.from) * scale;
    if (right - left < BOX_PX) return raster.add(kind, left, right, 1);
    const x0 = Math.max(0, Math.round(left)),
      x1 = Math.min(raster.width, Math.round(right));
    if (x1 > x0) raster.box(x0, x1, top, bottom, palette.fill[kind], palette.fill[kind]);
  }

  drawLater(scale) {
    const { raster, run, view, row, ratio } = this,
      later = run.later;
    for (let j = 0; j < later.rank.length; j++) {
      const start = later.start[j] * run.tick,
        end = start + later.duration[j] * run.tick;
      const left = Math.max(0, Math.round((start - view.from) * scale)),
        right = Math.min(raster.width, Math.round((end - view.from) * scale));
      const kind = OPS[later.op[j]] === "OPTIMIZER" ? AFTER + 1 : AFTER;
      const bottom = Math.round((later.rank[j] + 1) * row * ratio) - Math.round(ratio),
        top = Math.round((later.rank[j] + 0.6) * row * ratio);
      if (right > left) raster.box(left, right, top, bottom, palette.fill[kind], palette.fill[kind]);
    }
  }

  // Words over the pixels: ranks, numbers in boxes, the time axis, the chosen box, a microbatch's path.
  finish(labels, scale) {
    const { gantt, gutter, ratio, run, row, view } = this,
      context = gantt.getContext("2d");
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
    if (labels.length < 3000)
      for (const [x, y, at, kind, wide] of labels) {
        const number = run.slice ? `${run.microbatch[at]}.${run.slice[at]}` : `${run.microbatch[at]}`;
        const text =
          wide / ratio > 7 * number.length + 14 && run.op[at] !== PAIR ? OPS[run.op[at]] + number : number;
        if (wide / ratio < 6.5 * text.length + 2) continue;
        context.fillStyle = palette.letters[kind];
        context.fillText(text, gutter + x / ratio, y / ratio + 0.5);
      }
    this.axis(context, height, scale);
    if (view.microbatch !== NONE) this.path(context, scale);
    if (this.chosen !== NONE) {
      const i = this.chosen,
        left = gutter + (run.start[i] - view.from) * scale;
      context.strokeStyle = palette.text;
      context.lineWidth = 2;
      context.strokeRect(
        left,
        run.rank[i] * row + 1,
        Math.max(2, (run.end[i] - run.start[i]) * scale),
        row - 2,
      );
    }
  }

  axis(context, height, scale) {
    const { view, gutter, width } = this,
      wanted = (view.to - view.from) / unit.seconds / Math.max(2, (width - gutter) / 90);
    const power = 10 ** Math.floor(Math.log10(wanted)),
      step = [1, 2, 5, 10].find((one) => one * power >= wanted) * power;
    context.fillStyle = palette.soft;
    for (let n = Math.ceil(view.from / unit.seconds / step); n * step * unit.seconds <= view.to; n++) {
      const x = gutter + (n * step * unit.seconds - view.from) * scale,
        text = `${+(n * step).toPrecision(8)}`;
      if (x > width - 4 * text.length - 2) break;
      context.fillRect(x, height, 1, 3);
      context.fillText(text, Math.max(x, gutter), height + 10);
    }
  }

  path(context, scale) {
    const { run, view, row, gutter, lit, width } = this,
      places = [];
    for (let i = 0; lit && i < lit.length; i++) if (lit[i] && run.op[i] !== 3) places.push(i);
    if (places.length > 4000) return;
    places.sort((one, other) => run.start[one] - run.start[other]);
    context.save();
    context.beginPath();
    context.rect(gutter, 0, width - gutter, row * run.ranks);
    context.clip();
    context.beginPath();
    for (const i of places)
      context.lineTo(
        gutter + ((run.start[i] + run.end[i]) / 2 - view.from) * scale,
        (run.rank[i] + 0.5) * row,
      );
    context.strokeStyle = palette.text;
    context.lineWidth = 1;
    context.stroke();
    context.restore();
  }

  drawMemory() {
    const { level, run, view, memory, ratio, gutter } = this,
      { width, height, pixels } = level;
    const limit = run.memory.limits[0],
      top = 1.08 * Math.max(run.peak, limit || 0),
      scale = width / (view.to - view.from);
    const row = (value) => Math.max(0, Math.min(height - 1, Math.round((1 - value / top) * (height - 1))));
    pixels.fill(0);
    for (let rank = 0; rank < run.ranks; rank++)
      if (rank !== run.fullest) this.drawLevel(rank, scale, row, palette.rank, 1);
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
    for (const [value, words, colour] of [
      [
        run.peak,
        `${run.memory.kind}: at most ${amount(run.peak, run.memory.kind)} on rank ${run.fullest}`,
        palette.soft,
      ],
      ...run.memory.limits.map((one) => [one, `limit ${amount(one, run.memory.kind)}`, palette.limit]),
    ]) {
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
    const { run, view, level } = this,
      { width, height, pixels } = level,
      last = run.offsets[rank + 1];
    const most = level.most.fill(-1),
      least = level.least.fill(height);
    const put = (from, to, value) => {
      const x0 = Math.max(0, Math.floor((from - view.from) * scale)),
        x1 = Math.min(width - 1, Math.floor((to - view.from) * scale)),
        y = row(value);
      for (let x = x0; x <= x1; x++) {
        if (y > most[x]) most[x] = y;
        if (y < least[x]) least[x] = y;
      }
    };
    let i = firstAfter(run, rank, view.from);
    const begin = run.offsets[rank];
    put(
      view.from,
      i < last ? Math.min(run.start[i], view.to) : view.to,
      i > begin ? run.held[i - 1] : run.held[last - 1],
    );
    for (; i < last && run.start[i] < view.to; i++) {
      put(run.start[i], run.end[i], run.during[i]);
      put(run.end[i], i + 1 < last ? run.start[i + 1] : view.to, run.held[i]);
    }
    for (let x = 0; x < width; x++)
      for (let y = least[x]; y <= Math.min(height - 1, most[x] + thick - 1); y++)
        pixels[y * width + x] = colour;
  }

  // Rank and time under a place of the page.
  under(event) {
    const box = this.gantt.getBoundingClientRect();
    const rank = Math.floor((event.clientY - box.top) / this.row),
      share = (event.clientX - box.left - this.gutter) / (this.width - this.gutter);
    return { rank, share, at: this.view.from + share * (this.view.to - this.view.from) };
  }

  choose(i) {
    const { run, view } = this;
    this.chosen = i;
    const wide = view.to - view.from;
    if (run.start[i] < view.from || run.end[i] > view.to)
      view.show(run.start[i] - wide / 3, run.start[i] + (wide * 2) / 3);
    said(described(run, i).join("; "));
    view.redraw();
  }
}
