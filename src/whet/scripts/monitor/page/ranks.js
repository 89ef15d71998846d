"use strict";
/* The table of ranks, where several processes train together, and the one that the others wait for. */

whet.RANK_COLUMNS = [
  ["rank", (row) => `${row.rank}`],
  ["machine", (row) => `${row.host}, process ${row.pid}`],
  ["step", (row) => whet.measured("ms", row.step_ms)],
  ["own work", (row) => whet.measured("ms", row.own_ms)],
  ["waiting for others", (row) => whet.measured("%", row.waits === null ? null : 100 * row.waits)],
  ["samples", (row) => whet.measured("/s", row.samples_per_s)],
  ["tokens", (row) => whet.measured("/s", row.tokens_per_s)],
  ["memory", (row) => whet.measured("B", row.rss_bytes)],
];

whet.showRanks = function (host, state) {
  host.hidden = state.ranks.length === 0;
  const straggler = host.querySelector("#straggler");
  straggler.hidden = state.straggler === "";
  straggler.textContent = state.straggler;
  const head = whet.element("tr", {}, ...whet.RANK_COLUMNS.map(([name]) => whet.element("th", { scope: "col" }, name)));
  const rows = state.ranks.map((row) => {
    const cells = whet.RANK_COLUMNS.map(([, text], i) => whet.element(i ? "td" : "th", i ? {} : { scope: "row" }, text(row)));
    if (row.is_straggler) cells[0].append(" ", whet.element("span", { class: "badge bad" }, "straggler"));
    return whet.element("tr", row.is_straggler ? { class: "straggler" } : {}, ...cells);
  });
  host.querySelector("table").replaceChildren(whet.element("thead", {}, head), whet.element("tbody", {}, ...rows));
};
