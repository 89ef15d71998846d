/* The page of whet stream: frames go to the server one at a time, answers are shown as they come. */

import { get } from "./basics.js";
import { Camera } from "./camera.js";
import { Controls } from "./controls.js";
import { pack, parse } from "./header.js";
import { Latencies } from "./latency.js";
import { Link } from "./link.js";
import { showTiles } from "./tiles.js";

const REFRESH_MS = 300;
const RATE_MS = 3000; // frames per second are counted over so long
const KEY = "whet-stream-key";
const COMPUTED = ["computed", "not finite"]; // kinds of answers that the model was run for
const KIND_WORDS = { still: "still scene", skipped: "repeated", discarded: "repeated", "not finite": "not finite" };

const now = { isCamera: true, isReady: false, wasReady: false, sequence: 0, waiting: null, numSent: 0, shownAt: [], figures: null, hiddenAt: -1, numShown: 0 };
const latencies = new Latencies(get("latency"));
const camera = new Camera(get("input"), pump, () => finish("The camera has stopped. Connect it, and start again.", "bad"));
const link = new Link(hello, { message: take, picture: show, lost, refused: (text) => finish(text, "bad"), keyWanted, ended: () => finish("", "quiet") });
const controls = new Controls((message) => link.send(message));
let drawn = Promise.resolve(); // answers are drawn in the order in which they came

function hello() {
  const key = sessionStorage.getItem(KEY) || "";
  return { type: "start", source: now.isCamera ? "camera" : "server", ...(key ? { key } : {}) };
}

/* Send the newest frame, unless the one before is still being computed. */
async function pump() {
  if (!now.isReady || now.waiting !== null || !camera.isFresh || !link.isOpen) return;
  const sequence = now.sequence++ >>> 0;
  now.waiting = sequence;
  const socket = link.socket;
  const frame = await camera.take();
  if (socket !== link.socket) return; // the connection was lost meanwhile
  if (!frame.jpeg) {
    now.waiting = null;
    return;
  }
  now.numSent += 1;
  link.send(new Blob([pack("frame", sequence, frame.captured_ms), frame.jpeg]));
}

async function take(message) {
  switch (message.type) {
    case "ready":
      await ready(message);
      break;
    case "next":
      if (message.sequence === now.waiting) now.waiting = null;
      pump();
      break;
    case "figures":
      now.figures = message;
      break;
    case "settings":
      controls.settled(message);
      break;
    case "note":
      notice(message.text, "busy");
      break;
    case "ended":
      link.stop();
      finish(message.is_error ? `The stream has ended: ${message.why}` : "The source has come to its end.", message.is_error ? "bad" : "quiet");
  }
}

async function ready(facts) {
  document.title = `${facts.model} · whet stream`;
  get("model").textContent = facts.model;
  for (const id of ["input", "output"]) {
    const canvas = get(id);
    if (canvas.width !== facts.width || canvas.height !== facts.height) Object.assign(canvas, { width: facts.width, height: facts.height });
  }
  get("input-size").textContent = `${facts.width} × ${facts.height}${now.isCamera ? "" : `, ${facts.own_source}`}`;
  const steps = facts.steps === null ? "" : ` · at best ${facts.steps} step${facts.steps === 1 ? "" : "s"} of ${facts.sampler}`;
  get("facts").textContent = `${facts.model}${steps} · frames go to the server that sent this page, and nowhere else`;
  controls.show(facts);
  Object.assign(now, { waiting: null, figures: null, shownAt: [] });
  if (now.isCamera && !camera.isOpen) {
    try {
      await camera.open(facts.width, facts.height);
    } catch (error) {
      link.stop();
      finish(error.message, "bad");
      return;
    }
    if (!link.isOpen) return;
  }
  now.isReady = now.wasReady = true;
  notice("");
  status("running", "good");
  pump();
}

/* Show an answer, or what went into the server's own source. */
function show(buffer) {
  const { socket } = link;
  const picture = parse(buffer);
  const painted = async () => {
    try {
      await paint(picture);
    } catch (error) {
      notice(`A picture of the server cannot be shown: ${error.message}`, "bad");
    }
    if (picture.kind !== "input" && socket === link.socket) link.send({ type: "shown" });
  };
  drawn = drawn.then(painted);
}

async function paint({ kind, captured_ms, jpeg }) {
  const bitmap = await createImageBitmap(jpeg);
  await new Promise((resolve) => requestAnimationFrame(resolve));
  const canvas = get(kind === "input" ? "input" : "output");
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  if (kind === "input") return;
  const at = performance.now();
  now.numShown += 1;
  document.body.dataset.shown = now.numShown;
  get("output-kind").textContent = KIND_WORDS[kind] || "";
  if (!COMPUTED.includes(kind)) return; // a repeated answer waited for no model
  if (now.isCamera && captured_ms > now.hiddenAt) latencies.add(at - captured_ms);
  if (kind === "computed") now.shownAt.push(at);
}

function fps() {
  const from = performance.now() - RATE_MS;
  while (now.shownAt.length && now.shownAt[0] < from) now.shownAt.shift();
  const { length } = now.shownAt;
  return length > 1 ? ((length - 1) * 1000) / (now.shownAt[length - 1] - now.shownAt[0]) : null;
}

function refresh() {
  if (document.hidden) return;
  if (now.isCamera) latencies.draw();
  showTiles({ fps: fps(), latencies: latencies.percentiles(), isCamera: now.isCamera, numLeftOut: Math.max(0, camera.numFrames - now.numSent), figures: now.figures });
}

function notice(text, kind = "bad") {
  get("notice").textContent = text;
  get("notice").className = `notice ${kind}`;
  get("notice").hidden = !text;
}

function status(word, kind) {
  get("status").textContent = word;
  get("status").className = `badge ${kind}`;
  document.body.classList.toggle("stale", kind !== "good" && now.wasReady);
}

function lost(why, pause_s) {
  now.isReady = false;
  const wait = `Trying again in ${pause_s} s.`;
  if (why) notice(`The model is in use: ${why}. ${wait}`, "busy");
  else notice(`The server does not answer: it was ended, or the network is gone. ${wait}`, "bad");
  status(why ? "waiting" : "no connection", why ? "busy" : "bad");
}

function keyWanted(why) {
  const wasGiven = Boolean(sessionStorage.getItem(KEY));
  sessionStorage.removeItem(KEY);
  get("key-field").hidden = get("key-hint").hidden = false;
  finish(wasGiven ? `Not started: ${why}.` : "This server asks for an API key. Type it in, and start again.", wasGiven ? "bad" : "busy");
  get("key").focus();
}

/* End the stream, and say why. */
function finish(text, kind) {
  link.stop();
  camera.close();
  now.isReady = false;
  if (text || kind !== "quiet") notice(text, kind);
  status("ended", kind === "bad" ? "bad" : "quiet");
  choosing(true);
}

function choosing(isOn) {
  get("start").hidden = !isOn;
  get("stop").hidden = isOn;
  for (const radio of document.querySelectorAll("[name=source]")) radio.disabled = !isOn;
}

function start(event) {
  event.preventDefault();
  if (get("key").value) sessionStorage.setItem(KEY, get("key").value);
  now.isCamera = document.querySelector("[name=source]:checked").value === "camera";
  Object.assign(now, { numSent: 0, waiting: null, figures: null, shownAt: [] });
  latencies.clear();
  get("latency-part").hidden = !now.isCamera;
  choosing(false);
  notice("");
  status("connecting", "busy");
  link.start();
}

get("start-form").addEventListener("submit", start);
get("stop").addEventListener("click", () => finish("", "quiet"));
document.addEventListener("visibilitychange", () => {
  now.hiddenAt = performance.now(); // what was captured before is shown late for no fault of the stream
});
setInterval(refresh, REFRESH_MS);
refresh();
