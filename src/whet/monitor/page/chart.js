"use strict";
/* One chart: lines with their range, or areas stacked to the whole, over the time since the run began. */

whet.SVG = "http://www.w3.org/2000/svg";
whet.HEIGHT = 190;
whet.MARGIN = { left: 46, right: 10, top: 10, bottom: 24 };

whet.shape = function (name, attributes, text) {
  const element = document.createElementNS(whet.SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

/* About `wanted` round steps from 0 up to at least `top`. */
whet.ticks = function (top, wanted) {
  const rough = top / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((s) => s >= rough * 0.999);
  const values = [];
  for (let i = 0; i * step < top * 0.999 || i < 2; i++) values.push(i * step);
  values.push(values.length * step);
  return values;
};

whet.TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800];

whet.timeTicks = function (from, to, wanted) {
  const step = whet.TIME_STEPS.find((s) => s >= (to - from) / wanted) || 86400 * Math.ceil((to - from) / wanted / 86400);
  const values = [];
  for (let t = Math.ceil(from / step) * step; t <= to + 1e-9; t += step) values.push(t);
  const [name, size] = step >= 3600 ? ["h", 3600] : step >= 30 ? ["min", 60] : ["s", 1];
  return values.map((t) => ({ at: t, label: `${+(t / size).toFixed(1)} ${name}` }));
};

whet.quantile = function (values, q) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
};

/* The lines there are: one for a key itself, one for each "key:SUFFIX" among the rows. */
whet.linesOf = function (spec, rows) {
  const present = new Set();
  for (const row of rows) for (const key in row.cells) present.add(key);
  const lines = [];
  spec.lines.forEach((line, place) => {
    if (present.has(line.key)) lines.push({ key: line.key, label: line.label, colour: place });
    const numbered = [...present].filter((key) => key.startsWith(line.key + ":"));
    numbered.sort((a, b) => Number(a.split(":")[1]) - Number(b.split(":")[1]));
    numbered.forEach((key, i) => {
      const colour = numbered.length > 1 ? lines.length % 7 : place;
      lines.push({ key, label: `${line.label} ${key.split(":")[1]}`, colour, dash: i >= 7 });
    });
  });
  return lines;
};

/* Where the value axis ends. One long first step must not press all others flat: what is cut off is said beside. */
whet.topOf = function (spec, lines, rows) {
  const means = [];
  const highs = [];
  for (const row of rows) {
    for (const line of lines) {
      const cell = row.cells[line.key];
      if (cell) means.push(cell.mean), highs.push(cell.high);
    }
  }
  if (!means.length) return 1;
  const most = Math.max(...highs);
  if (spec.top) return spec.top;
  if (spec.unit === "B") return most * 1.05 || 1;
  const usual = means.length > 20 ? Math.max(whet.quantile(means, 0.98), whet.quantile(highs, 0.9)) : Math.max(...means);
  return (usual > most / 1.5 ? most * 1.05 : usual * 1.1) || 1;
};

whet.Chart = class {
  /* host: an element of a known width. spec: one of the server's charts. */
  constructor(host, spec) {
    this.host = host;
    this.spec = spec;
    this.lines = [];
    this.pointer = null;
    this.title = whet.element("h3", {}, spec.title);
    this.legend = whet.element("div", { class: "legend" });
    this.svg = whet.shape("svg", { class: "plot", height: whet.HEIGHT, role: "img", tabindex: "0" });
    this.tip = whet.element("div", { class: "tip", hidden: "" });
    this.plot = whet.element("div", { class: "plot-box" }, this.svg, this.tip);
    host.append(this.title, this.legend, this.plot);
    if (spec.explanation) host.append(whet.element("p", { class: "quiet" }, spec.explanation));
    this.svg.addEventListener("pointermove", (event) => this.point(event.clientX - this.svg.getBoundingClientRect().left));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.point(null));
  }

  /* Draw rows from `from` to `to` seconds. Returns whether there was anything to draw. */
  draw(rows, from, to) {
    this.rows = rows;
    this.lines = whet.linesOf(this.spec, rows);
    this.host.hidden = this.lines.length === 0;
    if (this.host.hidden) return false;
    this.width = Math.max(240, this.plot.clientWidth || 480);
    this.from = from;
    this.to = Math.max(to, from + 1e-3);
    const top = whet.topOf(this.spec, this.lines, rows);
    this.unit = whet.unitOf(this.spec.unit, top);
    this.values = whet.ticks(top / this.unit.size, 4).map((v) => v * this.unit.size);
    this.top = this.values[this.values.length - 1];
    this.svg.setAttribute("width", this.width);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${whet.HEIGHT}`);
    this.svg.replaceChildren(...this.axes());
    const inside = whet.shape("svg", { x: whet.MARGIN.left, y: 0, width: this.width - whet.MARGIN.left - whet.MARGIN.right, height: whet.HEIGHT - whet.MARGIN.bottom + 1, viewBox: `${whet.MARGIN.left} 0 ${this.width - whet.MARGIN.left - whet.MARGIN.right} ${whet.HEIGHT - whet.MARGIN.bottom + 1}` });
    inside.append(...(this.spec.stacked ? this.areas() : this.curves()));
    this.cursor = whet.shape("line", { class: "cursor", y1: whet.MARGIN.top, y2: whet.HEIGHT - whet.MARGIN.bottom, visibility: "hidden" });
    this.svg.append(inside, this.cursor);
    this.tell();
    if (this.pointer !== null) this.point(this.pointer);
    return true;
  }

  x(t) {
    return whet.MARGIN.left + ((t - this.from) / (this.to - this.from)) * (this.width - whet.MARGIN.left - whet.MARGIN.right);
  }

  y(value) {
    return whet.HEIGHT - whet.MARGIN.bottom - (value / this.top) * (whet.HEIGHT - whet.MARGIN.bottom - whet.MARGIN.top);
  }

  axes() {
    const shapes = [];
    const left = whet.MARGIN.left;
    const right = this.width - whet.MARGIN.right;
    const bottom = whet.HEIGHT - whet.MARGIN.bottom;
    for (const value of this.values) {
      const y = this.y(value);
      shapes.push(whet.shape("line", { class: value ? "grid" : "axis", x1: left, x2: right, y1: y, y2: y }));
      shapes.push(whet.shape("text", { class: "tick", x: left - 6, y: y + 4, "text-anchor": "end" }, (+(value / this.unit.size).toPrecision(4)).toLocaleString("en")));
    }
    for (const tick of whet.timeTicks(this.from, this.to, Math.max(2, this.width / 110))) {
      const x = this.x(tick.at);
      shapes.push(whet.shape("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }));
      const anchor = x > right - 18 ? "end" : x < left + 14 ? "start" : "middle";
      shapes.push(whet.shape("text", { class: "tick", x: Math.min(x, right), y: bottom + 17, "text-anchor": anchor }, tick.label));
    }
    return shapes;
  }

  curves() {
    const shapes = [];
    for (const line of this.lines) {
      const points = this.rows.filter((row) => row.cells[line.key]).map((row) => [this.x((row.began + row.ended) / 2), row.cells[line.key]]);
      const banded = points.some(([, cell]) => cell.high > cell.low);
      if (banded && points.length > 1) {
        const over = points.map(([x, cell]) => `${x.toFixed(1)} ${this.y(cell.high).toFixed(1)}`);
        const under = points.map(([x, cell]) => `${x.toFixed(1)} ${this.y(cell.low).toFixed(1)}`).reverse();
        shapes.push(whet.shape("path", { class: `band c${line.colour}`, d: `M${over.join("L")}L${under.join("L")}Z` }));
      }
      const path = points.map(([x, cell]) => `${x.toFixed(1)} ${this.y(cell.mean).toFixed(1)}`).join("L");
      if (points.length > 1) shapes.push(whet.shape("path", { class: `curve c${line.colour}${line.dash ? " dash" : ""}`, d: `M${path}` }));
      else for (const [x, cell] of points) shapes.push(whet.shape("circle", { class: `dot c${line.colour}`, cx: x, cy: this.y(cell.mean), r: 3 }));
    }
    return shapes;
  }

  areas() {
    const rows = this.rows.filter((row) => this.lines.some((line) => row.cells[line.key]));
    let floor = rows.map(() => 0);
    return this.lines.map((line) => {
      const base = floor;
      floor = rows.map((row, i) => base[i] + (row.cells[line.key] ? row.cells[line.key].mean : 0));
      const ends = (i) => [this.x(i ? rows[i - 1].ended : rows[i].began), this.x(rows[i].ended)];
      const over = rows.flatMap((row, i) => ends(i).map((x) => `${x.toFixed(1)} ${this.y(floor[i]).toFixed(1)}`));
      const under = rows.flatMap((row, i) => ends(i).map((x) => `${x.toFixed(1)} ${this.y(base[i]).toFixed(1)}`)).reverse();
      return whet.shape("path", { class: `area c${line.colour}`, d: `M${over.join("L")}L${under.join("L")}Z` });
    });
  }

  /* The legend with the latest values, and the same in words for those who don't see the chart. */
  tell() {
    const items = this.lines.map((line) => {
      const row = this.rows.findLast((r) => r.cells[line.key]);
      const value = whet.measured(this.spec.unit, row.cells[line.key].mean);
      return { line, value, text: `${line.label} ${value}` };
    });
    const parts = items.map(({ line, value }) =>
      whet.element("span", { class: "item" }, whet.element("i", { class: `swatch c${line.colour}` }), `${line.label} `, whet.element("b", {}, value)));
    const cut = this.spec.stacked ? 0 : Math.max(...this.rows.flatMap((row) => this.lines.map((line) => (row.cells[line.key] ? row.cells[line.key].high : 0))));
    if (cut > this.top * 1.001) parts.push(whet.element("span", { class: "item" }, "highest, beyond the chart ", whet.element("b", {}, whet.measured(this.spec.unit, cut))));
    this.legend.replaceChildren(...parts);
    const unit = this.unit.name === "/s" ? "per second" : this.unit.name;
    this.title.replaceChildren(this.spec.title, whet.element("span", { class: "unit" }, this.spec.unit === "/s" && this.unit.name === "/s" ? "" : ` ${unit}`));
    this.svg.setAttribute("aria-label", `${this.spec.title}: ${items.map((item) => item.text).join(", ")}. Arrow keys read single values.`);
  }

  /* Show the values below the pointer; x in pixels, or null. */
  point(x) {
    this.pointer = x;
    const rows = (this.rows || []).filter((row) => this.lines.some((line) => row.cells[line.key]));
    if (x === null || !rows.length) {
      this.tip.hidden = true;
      if (this.cursor) this.cursor.setAttribute("visibility", "hidden");
      return;
    }
    const place = (row) => this.x((row.began + row.ended) / 2);
    const row = rows.reduce((best, candidate) => (Math.abs(place(candidate) - x) < Math.abs(place(best) - x) ? candidate : best));
    const at = place(row);
    this.cursor.setAttribute("x1", at);
    this.cursor.setAttribute("x2", at);
    this.cursor.setAttribute("visibility", "visible");
    const entries = this.lines.filter((line) => row.cells[line.key]).map((line) => {
      const cell = row.cells[line.key];
      const range = cell.high > cell.low ? ` (${whet.measured(this.spec.unit, cell.low)} to ${whet.measured(this.spec.unit, cell.high)})` : "";
      return whet.element("div", {}, whet.element("i", { class: `swatch c${line.colour}` }), `${line.label} `, whet.element("b", {}, whet.measured(this.spec.unit, cell.mean)), range);
    });
    this.tip.replaceChildren(whet.element("div", { class: "when" }, `at ${whet.duration(row.ended)}`), ...entries);
    this.tip.hidden = false;
    const left = at + 12 + this.tip.offsetWidth > this.width ? at - 12 - this.tip.offsetWidth : at + 12;
    this.tip.style.left = `${Math.max(0, Math.min(left, this.width - this.tip.offsetWidth))}px`;
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.rows.length) return;
    event.preventDefault();
    const pixels = Math.max(1, (this.width - whet.MARGIN.left) / this.rows.length);
    const now = this.pointer === null ? this.width - whet.MARGIN.right : this.pointer;
    this.point(Math.min(Math.max(now + step * pixels, whet.MARGIN.left), this.width - whet.MARGIN.right));
  }
};
