/* Show the live figures. They are fetched every second, also while the server does not answer. */

import { Chart } from "./chart.js";
import { DASH, count, digits, duration, element, get, percent } from "./basics.js";
import { fitTokens, key } from "./settings.js";
import { authorised, failureOf } from "./stream.js";
import { showAnswered, showTuned } from "./tuned.js";

const PERIOD_MS = 1000;
const TIMEOUT_MS = 5000;
const SPAN_S = 120;
const SHARE_S = 10; // the seconds over which shares of tokens are computed

const SHARES = `Shares, last ${SHARE_S} s`;
const SHARED = [["hits", "prefix hits"], ["drafts", "drafts accepted"]];

const CHARTS = [
  { title: "Tokens per second", lines: [["tokens_per_s", ""]], show: digits, top: null, isWhole: false },
  { title: "Requests", lines: [["running", "running"], ["waiting", "waiting"]], show: count, top: null, isWhole: true },
  { title: "KV cache in use", lines: [["cache", ""]], show: percent, top: 100, isWhole: false },
  { title: SHARES, lines: SHARED, show: percent, top: 100, isWhole: false },
];

const PHASES = { loading: ["loading", "quiet"], draining: ["about to end", "bad"] };

const now_s = () => performance.now() / 1e3;
const share = (part, whole) => (whole > 0 ? (100 * part) / whole : null);

let rows = []; // one for each answer of the last two minutes: {at_s, stats, and the values of the charts}
let stats = null;
let failure = null; // why there are no new figures: {since, message, status}
let charts = null;
let served = null; // what the server serves, asked again after each failure

/* Return the name of the served model for requests, or null before the server has answered. */
export const model = () => (stats ? stats.model || null : null);

async function ask(path) {
  let response;
  try {
    const signal = AbortSignal.timeout(TIMEOUT_MS);
    response = await fetch(path, { cache: "no-store", headers: authorised(key()), signal });
  } catch {
    throw new Error("Nothing answers: the server has ended, or the connection to it is broken.");
  }
  if (!response.ok) throw await failureOf(response);
  return response;
}

const askJson = async (path) => (await ask(path)).json();

/* Return what the server serves: whether a language model is there, and the tuned models with their tensors. */
async function askServed() {
  const { data } = await askJson("/v1/models");
  const names = data.filter((one) => one.max_model_len === null).map((one) => one.id);
  const tuned = await Promise.all(names.map((name) => askJson(`/v2/models/${encodeURIComponent(name)}`)));
  return { hasChat: tuned.length === 0 || data.length > names.length, tuned };
}

/* Return the share of one counter in another over the last seconds, or null if nothing was counted. */
function lately(at_s, latest, part, whole) {
  const first = rows.find((row) => row.at_s >= at_s - SHARE_S) || { stats: latest };
  return share(latest[part] - first.stats[part], latest[whole] - first.stats[whole]);
}

function keep(latest) {
  const at_s = now_s();
  // If counters have fallen, another server has started: differences to older rows have no meaning.
  if (stats && latest.uptime_s < stats.uptime_s) rows = rows.map((row) => ({ ...row, stats: latest }));
  stats = latest;
  rows = rows.filter((row) => row.at_s > at_s - SPAN_S);
  rows.push({
    at_s,
    stats: latest,
    tokens_per_s: latest.tokens_per_s,
    running: latest.num_running,
    waiting: latest.num_waiting,
    cache: 100 * latest.kv_cache_usage,
    hits: lately(at_s, latest, "prefix_cache_hits", "prefix_cache_queries"),
    drafts: lately(at_s, latest, "num_accepted_tokens", "num_draft_tokens"),
  });
}

/* Return [label, value, text below it] for each tile. */
function tiles() {
  const hits = share(stats.prefix_cache_hits, stats.prefix_cache_queries);
  const drafts = share(stats.num_accepted_tokens, stats.num_draft_tokens);
  const drafted = { off: "speculation off", paused: "paused: no gain" }[stats.speculation];
  const ends = Object.entries(stats.request_success || {}).filter(([, number]) => number > 0);
  const numEnded = ends.reduce((sum, [, number]) => sum + number, 0);
  const ended = ends.map(([reason, number]) => `${count(number)} ${reason}`).join(" · ");
  return [
    ["Tokens/s", digits(stats.tokens_per_s), `${count(stats.generation_tokens_total)} made`],
    ["Running", count(stats.num_running), stats.max_num_seqs ? `of ${count(stats.max_num_seqs)} at once` : ""],
    ["Waiting", count(stats.num_waiting), "in the queue"],
    ["KV cache", percent(100 * stats.kv_cache_usage), "in use"],
    ["Prefix hits", hits === null ? DASH : percent(hits), `of ${count(stats.prefix_cache_queries)} tokens`],
    ["Drafts accepted", drafts === null ? DASH : percent(drafts), drafted || `of ${count(stats.num_draft_tokens)} tokens`],
    ["Preemptions", count(stats.num_preemptions), "since the start"],
    ["Prompt tokens", count(stats.prompt_tokens_total), "since the start"],
    ["Requests ended", count(numEnded), ended],
  ];
}

function showTiles() {
  const made = tiles().map(([label, value, detail]) => {
    const [name, figure] = [element("dt", {}, label), element("dd", { class: "value" }, value)];
    const below = element("dd", { class: "detail" }, detail);
    return element("div", { class: "tile", "data-label": label }, name, figure, below);
  });
  get("tiles").replaceChildren(...made);
}

function showCharts() {
  charts = charts || CHARTS.map((spec) => new Chart(get("charts"), spec, SPAN_S));
  for (const chart of charts) chart.draw(rows, now_s());
}

/* Name a server that has only tuned models. */
function showTunedNames() {
  const names = served.tuned.map((one) => one.name).join(", ");
  document.title = `${names} · whet serve`;
  get("model").textContent = names;
  get("facts").textContent = "";
}

function showNames() {
  const name = stats.model || "a model";
  document.title = `${name} · whet serve`;
  get("model").textContent = name;
  get("demo").hidden = !stats.is_demo;
  const requests = `${count(stats.num_running)} running · ${count(stats.num_waiting)} waiting`;
  const cache = `cache ${percent(100 * stats.kv_cache_usage)}`;
  get("strip").textContent = `${digits(stats.tokens_per_s)} tokens/s · ${requests} · ${cache}`;
  const limits = stats.max_model_len ? [`${count(stats.max_model_len)} tokens of context`] : [];
  get("facts").textContent = [...limits, `up for ${duration(stats.uptime_s)}`].join(" · ");
}

/* Set the status only if it has changed: screen readers read a status aloud whenever it is written. */
function showStatus() {
  const lost = failure && [failure.status === 401 ? "key wanted" : "no answer", "bad"];
  const [word, kind] = lost || PHASES[stats?.phase] || ["serving", "good"];
  const since = failure ? failure.since.toLocaleTimeString() : "";
  const text = failure ? `${failure.message} No figures since ${since}; asking again every second.` : "";
  if (get("status").textContent !== word) get("status").textContent = word;
  if (get("notice").textContent !== text) get("notice").textContent = text;
  get("status").className = `badge ${kind}`;
  get("notice").hidden = !text;
  document.body.classList.toggle("stale", failure !== null);
}

async function news() {
  try {
    served = served || (await askServed());
    showTuned(served.tuned, served.hasChat);
    if (served.tuned.length) showAnswered(await (await ask("/metrics")).text());
    if (served.hasChat) keep(await askJson("/live"));
    else [stats, rows] = [null, []];
    failure = null;
    if (stats) fitTokens(stats.max_model_len);
  } catch (error) {
    served = null; // another server may answer next
    failure = { since: failure ? failure.since : new Date(), message: error.message, status: error.status };
  }
  showStatus();
  if (stats) showCharts();
  if (failure) return;
  if (!stats) return showTunedNames();
  showTiles();
  showNames();
}

async function run() {
  for (;;) {
    const began = performance.now();
    try {
      await news();
    } catch (error) {
      console.error(error); // figures in an unexpected form: the chat still works
    }
    await new Promise((resolve) => setTimeout(resolve, Math.max(200, PERIOD_MS - (performance.now() - began))));
  }
}

run();
