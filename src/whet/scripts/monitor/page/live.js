"use strict";
/* The live page: asks for news, shows it, and goes on asking when nobody answers. */

(function () {
  const KEPT = 900; // rows, as many as the server keeps
  const RETRY_MS = 1000;
  const HISTORY_MS = 5000;
  const get = (id) => document.getElementById(id);
  const now = { run: "", numRows: 0, rows: [], history: [], state: null, askedHistory: -Infinity };
  let charts = null;
  let window_s = 120;
  let lostAt = null;

  async function ask(path) {
    const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(20000) });
    if (!response.ok) throw new Error(`${path}: ${response.status}`);
    return response.json();
  }

  const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

  async function news() {
    if (!charts) charts = new whet.Charts(get("charts"), await ask("/api/charts"));
    const update = await ask(`/api/update?of=${now.run}&after=${now.numRows}`);
    lostAt = null;
    if (update.run !== now.run) Object.assign(now, { run: update.run, rows: [], history: [], askedHistory: -Infinity });
    now.rows.push(...whet.rows(update.rows));
    now.rows.splice(0, now.rows.length - KEPT);
    now.numRows = update.num_rows;
    now.state = update.state;
    if (needsHistory() && performance.now() - now.askedHistory > HISTORY_MS) await askHistory();
  }

  async function askHistory() {
    const answer = await ask("/api/history");
    if (answer.run === now.run) now.history = whet.rows(answer.rows);
    now.askedHistory = performance.now();
  }

  /* The ring of the latest rows may begin later than the window does. */
  function needsHistory() {
    if (!now.rows.length) return false;
    const from = Math.max(0, now.rows[now.rows.length - 1].ended - window_s);
    return now.rows[0].began > from + 2 * now.state.interval_s;
  }

  function show() {
    const state = now.state;
    document.title = `${state.name} · whet monitor`;
    get("name").textContent = state.name;
    get("command").textContent = state.command;
    const facts = [`process ${state.pid} on ${state.host}`, `began ${new Date(state.started_at).toLocaleString()}`, `a sample every ${state.interval_s} s`];
    get("facts").textContent = facts.join(" · ");
    whet.showTiles(get("tiles"), now.rows, state);
    whet.showRanks(get("ranks"), state);
    showCharts();
    showList("notes", state.notes);
    showList("unavailable", Object.entries(state.unavailable).map(([what, why]) => `${what}: ${why}`));
    showStatus();
  }

  function showCharts() {
    const rows = needsHistory() && now.history.length ? now.history : now.rows;
    const to = rows.length ? rows[rows.length - 1].ended : 0;
    const from = window_s === Infinity ? 0 : Math.max(0, to - window_s);
    const shown = rows.filter((row) => row.ended >= from);
    charts.draw(shown, from, Math.max(to, from + Math.min(window_s, 10)));
  }

  function showList(id, texts) {
    get(id).hidden = texts.length === 0;
    get(id).querySelector("ul").replaceChildren(...texts.map((text) => whet.element("li", {}, text)));
  }

  function showStatus() {
    const state = now.state;
    let [word, kind, text] = ["waiting", "quiet", ""];
    if (state && state.ended) [word, kind, text] = ended(state);
    else if (lostAt !== null) {
      [word, kind] = ["no answer", "bad"];
      text = `Nothing answers since ${lostAt.toLocaleTimeString()}: the watched process was ended, or the machine cannot be reached. ${state ? "The last values stay below. " : ""}Asking again every second.`;
    } else if (state) [word, kind] = ["running", "good"];
    get("status").textContent = state ? `${word} · ${whet.duration(state.elapsed_s)}` : word;
    get("status").className = `badge ${kind}`;
    get("notice").textContent = text;
    get("notice").hidden = !text;
    get("notice").className = `notice ${kind}`;
    document.body.classList.toggle("stale", lostAt !== null || Boolean(state && state.ended));
  }

  function ended(state) {
    const { exit_code: code, message } = state.ended;
    const failed = (code !== null && code !== 0) || message !== "";
    const how = message || (code === null ? "" : `with exit code ${code}`);
    const text = `The watched process has ended${how ? (message ? `: ${message}` : ` ${how}`) : ""}. The last values stay below; a new run at this address takes their place.`;
    return failed ? ["failed", "bad", text] : ["ended", "quiet", text];
  }

  function chooseWindow() {
    const buttons = whet.WINDOWS.map(([label, seconds]) => {
      const button = whet.element("button", { type: "button", "aria-pressed": String(seconds === window_s) }, label);
      button.addEventListener("click", async () => {
        window_s = seconds;
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        try {
          if (needsHistory()) await askHistory();
        } catch {
          // nobody answers: the page shows what it has
        }
        if (now.state && charts) showCharts();
      });
      return button;
    });
    get("windows").append(...buttons);
  }

  async function run() {
    chooseWindow();
    for (;;) {
      try {
        await news();
      } catch {
        lostAt = lostAt || new Date();
        showStatus();
        await pause(RETRY_MS);
        continue;
      }
      try {
        show();
      } catch (error) {
        console.error(error);
        await pause(RETRY_MS);
      }
      if (now.state.ended) await pause(RETRY_MS);
    }
  }

  run();
})();
