"use strict";
/* The key figures at the top of the live page. */

whet.tile = function (label, unit, value, detail) {
  const [number, name] = whet.parts(unit, value);
  return { label, number, unit: name, detail };
};

/* The latest cell of a key, or null. */
whet.latest = function (rows, key) {
  const row = rows.findLast((r) => r.cells[key]);
  return row ? row.cells[key] : null;
};

whet.stepTiles = function (rows, state) {
  const latest = (key) => whet.latest(rows, key);
  const step = latest("step_ms");
  if (!step) return [{ label: "Step latency", missing: "no step yet", detail: state.unavailable.steps || "" }];
  const percentiles = [`P50 ${whet.measured("ms", state.p50_ms)}`, `P90 ${whet.measured("ms", state.p90_ms)}`];
  if (state.p99_ms !== undefined) percentiles.push(`P99 ${whet.measured("ms", state.p99_ms)}`);
  const tiles = [whet.tile("Step latency", "ms", step.mean, percentiles.join(" · "))];
  const since = state.elapsed_s - state.last_step_s;
  const done = since > Math.max(10, (5 * step.high) / 1e3) && !state.ended ? `last step ${whet.duration(since)} ago` : `${whet.count(state.num_steps)} steps`;
  const samples = latest("samples_per_s");
  const rate = samples || latest("steps_per_s");
  const counted = samples ? `${whet.count(state.num_samples)} samples · ${done}` : done;
  tiles.push(whet.tile(samples ? "Samples per second" : "Steps per second", "/s", rate ? rate.mean : null, counted));
  const tokens = latest("tokens_per_s");
  if (tokens) tiles.push(whet.tile("Tokens per second", "/s", tokens.mean, `${whet.count(state.num_tokens)} tokens`));
  const wait = latest("share:data_wait");
  if (wait) tiles.push(whet.tile("Data wait", "%", wait.mean, `of the step; compute and the rest ${whet.measured("%", 100 - wait.mean)}`));
  return tiles;
};

whet.machineTiles = function (rows, state) {
  const latest = (key) => whet.latest(rows, key);
  const mean = (key) => (latest(key) ? latest(key).mean : null);
  const cores = `${state.num_cores} core${state.num_cores === 1 ? "" : "s"}`;
  const peak = Math.max(0, ...rows.map((row) => (row.cells.rss_bytes ? row.cells.rss_bytes.high : 0)));
  const memory = `peak ${peak ? whet.measured("B", state.peak_rss_bytes || peak) : whet.DASH} · whole machine ${whet.measured("B", mean("machine_memory_bytes"))} of ${whet.measured("B", state.memory_bytes)}`;
  return [
    whet.tile("CPU, this run", "%", mean("cpu"), `of ${cores} · whole machine ${whet.measured("%", mean("machine_cpu"))}`),
    whet.tile("Memory", "B", mean("rss_bytes"), memory),
  ];
};

whet.gpuTiles = function (rows, state) {
  const numbers = new Set();
  const last = rows[rows.length - 1];
  for (const key of Object.keys(last ? last.cells : {})) {
    const [name, number] = key.split(":");
    if (/^(gpu|cuda)_/.test(name)) numbers.add(number);
  }
  return [...numbers].flatMap((number) => {
    const cell = (key) => whet.latest(rows, `${key}:${number}`);
    const busy = cell("gpu_utilisation");
    const used = cell("gpu_memory_bytes");
    const reserved = cell("cuda_reserved_bytes");
    const split = cell("cuda_fragmentation");
    const held = reserved ? `reserved ${whet.measured("B", reserved.mean)} · fragmentation ${whet.measured("%", split.mean)}` : "nothing held by this run";
    const memory = used || reserved;
    const tiles = [
      busy ? whet.tile(`GPU ${number}`, "%", busy.mean, state.gpus[number] || "") : null,
      memory ? whet.tile(`GPU ${number} memory`, "B", memory.mean, held) : null,
    ];
    return tiles.filter(Boolean);
  });
};

/* Put the figures into the page; a tile that is there already only gets its new numbers, so that nothing jumps. */
whet.showTiles = function (host, rows, state) {
  const tiles = [...whet.stepTiles(rows, state), ...whet.machineTiles(rows, state), ...whet.gpuTiles(rows, state)];
  const shown = tiles.map((tile) => {
    const value = tile.missing
      ? whet.element("dd", { class: "missing" }, tile.missing)
      : whet.element("dd", { class: "value" }, tile.number, whet.element("span", { class: "unit" }, tile.unit && !tile.unit.startsWith("/") ? ` ${tile.unit}` : tile.unit));
    return whet.element("div", { class: "tile", "data-label": tile.label }, whet.element("dt", {}, tile.label), value, whet.element("dd", { class: "detail" }, tile.detail));
  });
  host.replaceChildren(...shown);
  host.style.setProperty("--columns", whet.columns(tiles.length, 6));
  host.style.setProperty("--few-columns", whet.columns(tiles.length, 4));
};

/* Return the largest number of columns, at most `most`, in which no row holds a single tile. */
whet.columns = function (numTiles, most) {
  for (let columns = Math.min(numTiles, most); columns > 2; columns--) if (numTiles % columns !== 1) return columns;
  return Math.max(1, Math.min(numTiles, 2));
};
