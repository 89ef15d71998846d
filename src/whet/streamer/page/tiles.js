/* Show the figures: frames per second, latency, the budget, the level, the model's time; and what became of the frames. */

import { DASH, count, digits, element, get, latency, percent } from "./basics.js";

const COUNTS = [
  ["arrived", "arrived"],
  ["final", "computed to the end"],
  ["still", "of a still scene, repeated"],
  ["skipped", "repeated to keep the budget"],
  ["discarded", "discarded as the level changed"],
  ["not_finite", "not finite: the answer before is shown"],
  ["unwritten", "not sent, as a newer one was there"],
];

/* How a measure of drift is called, and how its number is shown. */
const MEASURES = [
  ["colour", "colours, distance from the input's", (value) => value.toFixed(3)],
  ["contrast", "contrast over the input's", (value) => `${digits(value)}x`],
  ["sharpness", "sharpness over the input's", (value) => `${digits(value)}x`],
];

const LONGEST_FIGURE = 8; // longer words are set smaller

function tile(label, value, unit, detail, isMain = false) {
  const shown = element("dd", { class: value.length > LONGEST_FIGURE ? "value words" : "value" }, value);
  if (unit) shown.append(element("span", { class: "unit" }, ` ${unit}`));
  return element("div", { class: isMain ? "tile main" : "tile", "data-label": label }, element("dt", {}, label), shown, element("dd", { class: "detail" }, detail));
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/* times is {p50, p90, p99} in seconds, or null. */
const others = (times) => (times ? `P90 ${latency(times.p90)} · P99 ${latency(times.p99)}` : "");

const split = (times) => (times ? latency(times.p50).split(" ") : [DASH, ""]);

/* A model may take less than a millisecond. */
const short = (seconds) => (seconds < 0.01 ? `${digits(seconds * 1e3)} ms` : latency(seconds));
const fine = (times) => (times ? [...short(times.p50).split(" "), `P90 ${short(times.p90)} · P99 ${short(times.p99)}`] : [DASH, "", ""]);

/* now is {fps, latencies: {p50, p90, p99} or null, isCamera, numLeftOut, figures: the server's last message or null}. */
export function showTiles(now) {
  const { figures } = now;
  const counts = figures ? figures.counts : {};
  const lateness = figures && figures.budget_s !== null
    ? [...latency(figures.budget_s).split(" "), `${count(counts.late || 0)} late · ${count(counts.dropped || 0)} dropped · ${percent(100 * (figures.late_share || 0))}`]
    : [figures ? "none" : DASH, "", figures ? `${count(counts.dropped || 0)} dropped` : ""];
  const times = now.isCamera ? now.latencies : figures && figures.sent;
  get("tiles").replaceChildren(
    tile("Final frames per second", digits(now.fps), "", now.fps === null ? "" : "repeated frames don't count", true),
    tile(now.isCamera ? "Latency, camera to page" : "Latency, in the server", ...split(times), others(times)),
    tile("Budget of a frame", ...lateness),
    tile("Level", figures ? capital(figures.level) : DASH, "", figures && figures.levels.length ? `changed ${count(counts.level_changes)} times` : ""),
    tile("Model's time", ...fine(figures && figures.model)),
  );
  showFrames(counts, figures ? figures.problems : {}, now);
  showLevels(figures ? figures.levels : []);
  showDrift(figures ? figures.drift : null);
}

/* drift is {name: {first, last}}, or null while there are too few answers. */
function showDrift(drift) {
  const cell = (moved, form) => (moved.first === null || moved.last === null ? DASH : `${form(moved.first)} → ${form(moved.last)}`);
  const rows = MEASURES.map(([name, label, form]) => [label, drift ? cell(drift[name], form) : DASH]);
  get("drift").replaceChildren(...rows.flatMap(([label, value]) => [element("dt", {}, label), element("dd", { "data-measure": label }, value)]));
}

function showFrames(counts, problems, now) {
  const rows = COUNTS.filter(([name], i) => i < 2 || counts[name]).map(([name, label]) => [label, counts[name] || 0]);
  if (now.isCamera) rows.unshift(["camera's, not sent", now.numLeftOut]);
  rows.push(...Object.entries(problems));
  get("frames").replaceChildren(...rows.flatMap(([label, value]) => [element("dt", {}, label), element("dd", {}, count(value))]));
}

function showLevels(levels) {
  get("levels-part").hidden = levels.length === 0;
  get("levels").replaceChildren(...levels.map(([frame, level]) => element("li", {}, `from frame ${count(frame)}: ${level}`)));
}
