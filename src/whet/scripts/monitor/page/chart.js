"use strict";
/* One chart: lines with their range, or areas stacked to the whole, over the time since the run began. */

whet.HEIGHT = 190;
whet.LEFT = 46; // pixels for the labels of values

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
    Object.assign(this, { host, spec, lines: [], rows: [] });
    this.title = whet.element("h3", {}, spec.title);
    this.legend = whet.element("div", { class: "legend" });
    this.tip = whet.element("div", { class: "tip", hidden: "" });
    const drawing = whet.element("div");
    host.append(this.title, this.legend, whet.element("div", { class: "plot-box" }, drawing, this.tip));
    if (spec.explanation) host.append(whet.element("p", { class: "quiet" }, spec.explanation));
    this.plot = new whetPlot.Plot(drawing, { height: whet.HEIGHT, left: whet.LEFT }, (place) => this.point(place));
  }

  /* Draw rows from `from` to `to` seconds. */
  draw(rows, from, to) {
    this.lines = whet.linesOf(this.spec, rows);
    this.rows = rows.filter((row) => this.lines.some((line) => row.cells[line.key]));
    this.host.hidden = this.lines.length === 0;
    if (this.host.hidden) return;
    const top = whet.topOf(this.spec, this.lines, rows);
    this.unit = whet.unitOf(this.spec.unit, top);
    const yTicks = whetPlot.ticks(top / this.unit.size, 4).map((value) => ({ at: value * this.unit.size, label: (+value.toPrecision(4)).toLocaleString("en") }));
    this.top = yTicks[yTicks.length - 1].at;
    const end = Math.max(to, from + 1e-3);
    this.plot.draw({
      from,
      to: end,
      places: this.rows.map((row) => (row.began + row.ended) / 2),
      ends: this.spec.stacked ? [this.rows[0].began, ...this.rows.map((row) => row.ended)] : null,
      lines: this.lines.map((line) => this.values(line)),
      xTicks: whet.timeTicks(from, end, Math.max(2, this.plot.width / 110)),
      yTicks,
    });
    this.tell();
  }

  /* A line's values, and its range where it has one. */
  values(line) {
    const cells = this.rows.map((row) => row.cells[line.key] || null);
    const column = (name) => cells.map((cell) => cell && cell[name]);
    const drawn = { colour: line.colour, dash: line.dash, values: column("mean") };
    const isBanded = cells.some((cell) => cell && cell.high > cell.low);
    return isBanded && !this.spec.stacked ? { ...drawn, low: column("low"), high: column("high") } : drawn;
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
    this.plot.describe(`${this.spec.title}: ${items.map((item) => item.text).join(", ")}`);
  }

  /* Show the values of a row, by its number, beside it; null: of none. */
  point(place) {
    this.tip.hidden = place === null;
    if (place === null) return;
    const row = this.rows[place];
    const entries = this.lines.filter((line) => row.cells[line.key]).map((line) => {
      const cell = row.cells[line.key];
      const range = cell.high > cell.low ? ` (${whet.measured(this.spec.unit, cell.low)} to ${whet.measured(this.spec.unit, cell.high)})` : "";
      return whet.element("div", {}, whet.element("i", { class: `swatch c${line.colour}` }), `${line.label} `, whet.element("b", {}, whet.measured(this.spec.unit, cell.mean)), range);
    });
    this.tip.replaceChildren(whet.element("div", { class: "when" }, `at ${whet.duration(row.ended)}`), ...entries);
    const { width } = this.plot;
    const at = whet.LEFT + this.plot.uplot.cursor.left;
    const left = at + 12 + this.tip.offsetWidth > width ? at - 12 - this.tip.offsetWidth : at + 12;
    this.tip.style.left = `${Math.max(0, Math.min(left, width - this.tip.offsetWidth))}px`;
  }
};
