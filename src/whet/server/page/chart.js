/* Draw one small chart: lines over the last seconds, the newest at the right. */

import { element } from "./basics.js";

const HEIGHT = 118;
const LEFT = 40; // pixels for the labels of values
const GAP_S = 3.5; // no line is drawn between samples that are further apart

const ago = (seconds) => (seconds === 0 ? "now" : `${seconds / 60} min ago`);

export class Chart {
  /* spec is {title, lines: [[key, label]], show(value), top or null, isWhole}. The chart shows the last span_s seconds. */
  constructor(host, spec, span_s) {
    Object.assign(this, { spec, span_s, rows: [], now_s: 0 });
    this.legend = element("div", { class: "legend" });
    const drawing = element("div");
    const head = element("div", { class: "chart-head" }, element("h3", {}, spec.title), this.legend);
    host.append(element("div", { class: "chart" }, head, element("div", { class: "plot-box" }, drawing)));
    this.plot = new whetPlot.Plot(drawing, { height: HEIGHT, left: LEFT }, (place) => this.point(place));
  }

  /* rows are [{at_s, KEY: value or null}], in order. now_s is the time at the right edge. */
  draw(rows, now_s) {
    Object.assign(this, { rows, now_s });
    const { lines, top, isWhole } = this.spec;
    const most = Math.max(0, ...rows.flatMap((row) => lines.map(([key]) => row[key] ?? 0)));
    const values = whetPlot.ticks(top ?? (most || 1), 3, isWhole);
    this.plot.draw({
      from: now_s - this.span_s,
      to: now_s,
      places: rows.map((row) => row.at_s),
      gap: GAP_S,
      lines: lines.map(([key], colour) => ({ colour, values: rows.map((row) => row[key] ?? null) })),
      xTicks: [this.span_s, this.span_s / 2, 0].map((back_s) => ({ at: now_s - back_s, label: ago(back_s) })),
      yTicks: values.map((value) => ({ at: value, label: (+value.toPrecision(4)).toLocaleString("en") })),
    });
  }

  /* Show the values of a row in the legend. The row is given by its number, or null for the newest. */
  point(place) {
    const row = this.rows[place ?? this.rows.length - 1] || {};
    const { title, lines, show } = this.spec;
    const parts = lines.map(([key, label], colour) => {
      const value = element("b", {}, show(row[key]));
      if (!label) return value;
      return element("span", {}, element("i", { class: `swatch c${colour}` }), `${label} `, value);
    });
    if (place !== null) parts.unshift(element("span", {}, `${Math.round(this.now_s - row.at_s)} s ago`));
    this.legend.replaceChildren(...parts);
    this.plot?.describe(`${title}: ${lines.map(([key, label]) => `${label} ${show(row[key])}`.trim()).join(", ")}`);
  }
}
