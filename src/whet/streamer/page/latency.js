/* Draw the histogram of the time from the camera to the page, and tell its percentiles. */

import { element, latency } from "./basics.js";

const KEPT = 1000; // frames
const NUM_BARS = 40;
const LEAST_MS = 20; // the axis is at least so long

export class Latencies {
  constructor(host) {
    this.values = [];
    this.bars = [];
    this.legend = element("div", { class: "legend" });
    const drawing = element("div");
    const head = element("div", { class: "chart-head" }, element("h3", {}, "Latency, camera to page ", element("small", {}, "ms")), this.legend);
    host.append(element("div", { class: "chart" }, head, element("div", { class: "plot-box" }, drawing)));
    this.plot = new whetPlot.Plot(drawing, { height: 170, left: 40 }, (place) => this.point(place));
  }

  add(milliseconds) {
    this.values.push(milliseconds);
    if (this.values.length > KEPT) this.values.shift();
  }

  clear() {
    this.values = [];
  }

  /* Return percentiles in seconds, or null where there are no frames. */
  percentiles() {
    if (!this.values.length) return null;
    const sorted = [...this.values].sort((a, b) => a - b);
    const at = (percent) => sorted[Math.min(sorted.length - 1, Math.ceil((percent / 100) * sorted.length) - 1)] / 1000;
    return { p50: at(50), p90: at(90), p99: at(99) };
  }

  draw() {
    const found = this.percentiles();
    const xTicks = whetPlot.ticks(Math.max(found ? found.p99 * 1200 : 0, LEAST_MS), 5);
    const top = xTicks[xTicks.length - 1];
    const counts = new Array(NUM_BARS).fill(0);
    for (const value of this.values) counts[Math.min(NUM_BARS - 1, Math.max(0, Math.floor((value / top) * NUM_BARS)))] += 1;
    const edge = (i) => (i * top) / NUM_BARS;
    this.bars = counts.map((count, i) => ({ from: edge(i), to: edge(i + 1), count }));
    this.plot.draw({
      from: 0,
      to: top,
      places: counts.map((_, i) => edge(i + 0.5)),
      ends: [...counts.map((_, i) => edge(i)), top],
      lines: [{ colour: 0, values: counts }],
      xTicks: xTicks.map((value) => ({ at: value, label: String(+value.toPrecision(4)) })),
      yTicks: whetPlot.ticks(Math.max(1, ...counts), 3, true).map((value) => ({ at: value, label: value.toLocaleString("en") })),
    });
  }

  /* Show the percentiles in the legend, or one bar, by its number. */
  point(place) {
    const found = this.percentiles();
    const bar = place === null ? null : this.bars[place];
    const parts = bar
      ? [["frames", bar.count.toLocaleString("en")], ["from", `${+bar.from.toPrecision(3)} to ${+bar.to.toPrecision(3)} ms`]]
      : found
        ? [["P50", latency(found.p50)], ["P90", latency(found.p90)], ["P99", latency(found.p99)]]
        : [];
    this.legend.replaceChildren(...parts.map(([name, value]) => element("span", {}, `${name} `, element("b", {}, value))));
    if (this.plot) this.plot.describe(`Latency of the last ${this.values.length} frames: ${parts.map((part) => part.join(" ")).join(", ") || "none yet"}`);
  }
}
