/* One small chart: lines over the last seconds, the newest at the right. */

import { element } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 118;
const MARGIN = { left: 40, right: 8, top: 8, bottom: 20 };
const GAP_S = 3.5; // samples further apart than this have nothing between them that could be drawn

function shape(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/* Round steps from 0 up to at least `top`. */
export function ticks(top, wanted, isWhole) {
  const rough = Math.max(top / wanted, isWhole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = (isWhole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map((n) => n * power).find((s) => s >= rough * 0.999);
  const values = [0];
  while (values.length < 2 || values[values.length - 1] < top * 0.999) values.push(values.length * step);
  return values;
}

const ago = (seconds) => (seconds === 0 ? "now" : `${seconds / 60} min ago`);

export class Chart {
  /* spec: {title, lines: [[key, label]], show(value), top or null, isWhole}; span_s: how far back it reaches. */
  constructor(host, spec, span_s) {
    Object.assign(this, { spec, span_s, rows: [], pointer: null });
    this.legend = element("div", { class: "legend" });
    this.svg = shape("svg", { class: "plot", height: HEIGHT, role: "img", tabindex: "0" });
    this.plot = element("div", { class: "plot-box" }, this.svg);
    const title = element("h3", {}, spec.title);
    const head = element("div", { class: "chart-head" }, title, this.legend);
    host.append(element("div", { class: "chart" }, head, this.plot));
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("blur", () => this.point(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw(this.rows, this.now_s)).observe(this.plot);
  }

  /* rows: [{at_s, KEY: value or null}], in order; now_s: what the right edge stands for. */
  draw(rows, now_s) {
    Object.assign(this, { rows, now_s, width: Math.max(160, this.plot.clientWidth) });
    const { lines, top, isWhole } = this.spec;
    const most = Math.max(0, ...rows.flatMap((row) => lines.map(([key]) => row[key] ?? 0)));
    this.values = ticks(top ?? (most || 1), 3, isWhole);
    this.top = this.values[this.values.length - 1];
    this.svg.setAttribute("width", this.width);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.cursor = shape("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, visibility: "hidden" });
    this.svg.replaceChildren(...this.axes(), ...lines.flatMap(([key], place) => this.curve(key, place)), this.cursor);
    this.point(this.pointer);
  }

  x(at_s) {
    return this.width - MARGIN.right - ((this.now_s - at_s) / this.span_s) * (this.width - MARGIN.left - MARGIN.right);
  }

  y(value) {
    return HEIGHT - MARGIN.bottom - (Math.min(value, this.top) / this.top) * (HEIGHT - MARGIN.bottom - MARGIN.top);
  }

  axes() {
    const right = this.width - MARGIN.right;
    const shapes = this.values.flatMap((value) => {
      const y = this.y(value);
      const label = (+value.toPrecision(4)).toLocaleString("en");
      return [
        shape("line", { class: value ? "grid" : "axis", x1: MARGIN.left, x2: right, y1: y, y2: y }),
        shape("text", { class: "tick", x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, label),
      ];
    });
    for (const [back_s, anchor] of [[this.span_s, "start"], [this.span_s / 2, "middle"], [0, "end"]]) {
      const x = right - (back_s / this.span_s) * (right - MARGIN.left);
      shapes.push(shape("text", { class: "tick", x, y: HEIGHT - 5, "text-anchor": anchor }, ago(back_s)));
    }
    return shapes;
  }

  /* The line, in parts where values are missing; a value that stands alone is a dot. */
  curve(key, place) {
    const parts = [];
    let before = null;
    for (const row of this.rows) {
      if (row[key] === null || row[key] === undefined) {
        before = null;
        continue;
      }
      if (before === null || row.at_s - before > GAP_S) parts.push([]);
      parts[parts.length - 1].push([this.x(row.at_s).toFixed(1), this.y(row[key]).toFixed(1)]);
      before = row.at_s;
    }
    return parts.map((points) => {
      const [[cx, cy]] = points;
      if (points.length === 1) return shape("circle", { class: `dot c${place}`, cx, cy, r: 2.5 });
      return shape("path", { class: `curve c${place}`, d: `M${points.map((point) => point.join(" ")).join("L")}` });
    });
  }

  /* Read the values below the pointer, x in pixels, or the newest for null: in the legend, where nothing is hidden. */
  point(x) {
    this.pointer = x;
    let row = this.rows[this.rows.length - 1];
    if (x !== null && row) {
      const far = (candidate) => Math.abs(this.x(candidate.at_s) - x);
      row = this.rows.reduce((best, candidate) => (far(candidate) < far(best) ? candidate : best));
      this.cursor.setAttribute("x1", this.x(row.at_s));
      this.cursor.setAttribute("x2", this.x(row.at_s));
    }
    if (this.cursor) this.cursor.setAttribute("visibility", x === null || !row ? "hidden" : "visible");
    this.tell(row || {}, x !== null && row ? `${Math.round(this.now_s - row.at_s)} s ago` : "");
  }

  tell(row, when) {
    const { title, lines, show } = this.spec;
    const parts = lines.map(([key, label], place) => {
      const value = element("b", {}, show(row[key]));
      if (!label) return value;
      return element("span", {}, element("i", { class: `swatch c${place}` }), `${label} `, value);
    });
    if (when) parts.unshift(element("span", {}, when));
    this.legend.replaceChildren(...parts);
    const words = lines.map(([key, label]) => `${label} ${show(row[key])}`.trim()).join(", ");
    this.svg.setAttribute("aria-label", `${title}: ${words}. Arrow keys read earlier values.`);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.rows.length) return;
    event.preventDefault();
    const pixels = (this.width - MARGIN.left - MARGIN.right) / this.span_s;
    const from = this.pointer ?? this.width - MARGIN.right;
    this.point(Math.min(Math.max(from + step * pixels, MARGIN.left), this.width - MARGIN.right));
  }
}
