"use strict";
/* The grid of charts with the choice of how far back they reach. */

whet.WINDOWS = [["2 min", 120], ["15 min", 900], ["whole run", Infinity]];

whet.Charts = class {
  constructor(host, specs) {
    this.charts = specs.map((spec) => {
      const figure = whet.element("section", { class: "chart" });
      host.append(figure);
      return new whet.Chart(figure, spec);
    });
  }

  /* rows: what there is to draw, in order; from, to: seconds since the run began. */
  draw(rows, from, to) {
    // Samples counted: steps per second says nothing more.
    const samples = rows.some((row) => row.cells.samples_per_s);
    for (const chart of this.charts) {
      const spare = samples && chart.spec.lines[0].key === "steps_per_s";
      chart.host.hidden = false; // a hidden chart has no width
      chart.draw(spare ? [] : rows, from, to);
    }
  }
};
