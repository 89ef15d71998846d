"use strict";
/* The chart of whet's pages, drawn by uPlot: lines with their range, or areas stacked up, over the time. */

var whetPlot = (function () {
  const BAND = "2e"; // opacity of a line's range, as the last byte of #rrggbbaa

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /* Round steps from 0 up to at least `top`, about `wanted` of them. */
  function ticks(top, wanted, isWhole = false) {
    const rough = Math.max(top / wanted, isWhole ? 1 : 0);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = (isWhole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map((n) => n * power).find((s) => s >= rough * 0.999);
    const values = [0];
    while (values.length < 2 || values[values.length - 1] < top * 0.999) values.push(values.length * step);
    return values;
  }

  /* The points of a line that have no neighbour: a line cannot show them. */
  function lonely(values) {
    const missing = (i) => values[i] === null || values[i] === undefined;
    return values.flatMap((_, i) => (!missing(i) && missing(i - 1) && missing(i + 1) ? [i] : []));
  }

  class Plot {
    /* host: where it goes. size: {height, left: pixels for the labels of values}. onPoint: called with the place that
     * is pointed at, by its number, or null. */
    constructor(host, size, onPoint) {
      Object.assign(this, { host, size, onPoint, shape: "", left: null, uplot: null, drawn: null });
      host.classList.add("plot");
      host.setAttribute("role", "img");
      host.setAttribute("tabindex", "0");
      host.plot = this;
      host.addEventListener("keydown", (event) => this.key(event));
      host.addEventListener("blur", () => this.point(null));
      host.addEventListener("pointerleave", () => this.point(null));
      host.addEventListener("pointermove", (event) => {
        if (this.uplot) this.point(event.clientX - this.uplot.over.getBoundingClientRect().left);
      });
      new ResizeObserver(() => this.fit()).observe(host);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.uplot && this.uplot.redraw());
    }

    get width() {
      return Math.max(160, this.host.clientWidth || 480);
    }

    /* drawn: {
     *   from, to: what the edges stand for;
     *   places: where it can be pointed at, in order;
     *   gap: how far apart two places are that no line joins; without, all are joined;
     *   ends: for areas, the edges of the places, one more than these; without, lines are drawn;
     *   lines: [{colour: N of the page's --cN, dash, values, low, high: of the range, or none}];
     *   xTicks, yTicks: [{at, label}], from 0 to the top } */
    draw(drawn) {
      this.drawn = drawn;
      const shape = JSON.stringify([Boolean(drawn.ends), drawn.lines.map((line) => [line.colour, line.dash, Boolean(line.low)])]);
      const data = drawn.ends ? this.areas() : this.lines();
      if (shape === this.shape) {
        this.fit();
        this.uplot.setData(data);
      } else {
        if (this.uplot) this.uplot.destroy();
        this.shape = shape;
        this.uplot = new uPlot(this.options(), data, this.host);
      }
    }

    /* Take the width that there is. */
    fit() {
      if (this.uplot && this.uplot.width !== this.width) this.uplot.setSize({ width: this.width, height: this.size.height });
    }

    /* Point at a place, by its distance from the left edge in pixels; null: at none. */
    point(left) {
      const { places } = this.drawn || { places: [] };
      this.left = left;
      const at = left === null || !places.length ? null : this.nearest(left);
      const shown = at === null ? -10 : this.uplot.valToPos(places[at], "x");
      if (this.uplot) this.uplot.setCursor({ left: shown, top: shown });
      this.onPoint(at);
    }

    nearest(left) {
      const { places } = this.drawn;
      const far = (i) => Math.abs(this.uplot.valToPos(places[i], "x") - left);
      return places.reduce((best, _, i) => (far(i) < far(best) ? i : best), 0);
    }

    key(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.drawn || !this.drawn.places.length) return;
      event.preventDefault();
      const last = this.drawn.places.length - 1;
      const now = this.left === null ? last : this.nearest(this.left) + step;
      this.point(this.uplot.valToPos(this.drawn.places[Math.min(Math.max(now, 0), last)], "x"));
    }

    /* What a reader hears who doesn't see the chart. */
    describe(text) {
      this.host.setAttribute("aria-label", `${text}. Arrow keys read single values.`);
    }

    /* The columns of the lines, with a place without values in every gap. */
    lines() {
      const { places, lines, gap } = this.drawn;
      const columns = lines.flatMap((line) => (line.low ? [line.values, line.high, line.low] : [line.values]));
      const isGap = (i) => i > 0 && gap && places[i] - places[i - 1] > gap;
      const broken = (column, between) => column.flatMap((value, i) => (isGap(i) ? [between(i), value] : [value]));
      return [broken(places, (i) => (places[i - 1] + places[i]) / 2), ...columns.map((column) => broken(column, () => null))];
    }

    /* The sums from the last area down to the first: each is painted over what lies behind it. */
    areas() {
      const { ends, lines } = this.drawn;
      let floor = ends.slice(1).map(() => 0);
      const sums = lines.map((line) => {
        floor = floor.map((sum, i) => sum + (line.values[i] || 0));
        return [floor[0], ...floor];
      });
      return [ends, ...sums.reverse()];
    }

    series() {
      const { ends, lines } = this.drawn;
      if (ends) {
        const paths = uPlot.paths.stepped({ align: -1 });
        return [...lines].reverse().map((line) => {
          const fill = () => css(`--c${line.colour}`);
          return { fill, stroke: () => css("--paper"), width: 0.7, paths, points: { show: false } };
        });
      }
      return lines.flatMap((line) => {
        const stroke = () => css(`--c${line.colour}`);
        const filter = (u, place) => lonely(u.data[place]);
        const dash = line.dash ? [6, 3] : undefined;
        const curve = { stroke, width: 1.8, dash, points: { show: false, filter, size: 6, fill: stroke, width: 0 } };
        const edge = { width: 0, points: { show: false } };
        return line.low ? [curve, edge, edge] : [curve];
      });
    }

    bands() {
      const bands = [];
      let place = 1;
      for (const line of this.drawn.ends ? [] : this.drawn.lines) {
        if (line.low) bands.push({ series: [place + 1, place + 2], fill: () => css(`--c${line.colour}`) + BAND });
        place += line.low ? 3 : 1;
      }
      return bands;
    }

    options() {
      const muted = () => css("--muted");
      const column = (of, name) => () => this.drawn[of].map((tick) => tick[name]);
      const axis = (of) => ({ stroke: muted, font: `12px ${css("--font")}`, space: 1, splits: column(of, "at"), values: column(of, "label") });
      const nothing = () => null; // Plot listens itself, to touches too
      const bind = { mousemove: nothing, mouseleave: nothing, mousedown: nothing, dblclick: nothing };
      const line = { show: true, stroke: muted, width: 1 };
      return {
        width: this.width,
        height: this.size.height,
        padding: [10, 18, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { setScale: false, x: false, y: false }, points: { show: false }, bind },
        scales: {
          x: { time: false, range: () => [this.drawn.from, this.drawn.to] },
          y: { range: () => [0, this.drawn.yTicks[this.drawn.yTicks.length - 1].at] },
        },
        axes: [
          { ...axis("xTicks"), size: 24, gap: 3, grid: { show: false }, ticks: { ...line, size: 4 }, border: line },
          { ...axis("yTicks"), size: this.size.left, gap: 6, grid: { stroke: () => css("--rule"), width: 1 }, ticks: { show: false } },
        ],
        series: [{}, ...this.series()],
        bands: this.bands(),
        hooks: { draw: [() => this.point(this.left)] }, // uPlot draws a moment after it was asked to
      };
    }
  }

  return { Plot, ticks };
})();
