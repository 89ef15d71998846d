/* Hold the conversation: ask, show the answer as it is generated, stop it, and explain errors in words. */

import { get, pause } from "./basics.js";
import { model } from "./live.js";
import { areValid, askForKey, key, sampling, system } from "./settings.js";
import { Failure, ask } from "./stream.js";
import { Turn } from "./turn.js";

const MAX_TRIES = 5;
const EMPTY = {
  chat: "Nothing said yet. The model sees the whole conversation each time.",
  complete: "The model goes on with the text as it stands, without a chat template: for base models.",
};
const LABELS = { chat: "Message", complete: "Text to go on with" };

let messages = []; // questions and answers, in the form in which the model gets them again
let running = null; // stops the answer that is being generated

const mode = () => document.querySelector("input[name=mode]:checked").value;

function requestFor(turn) {
  const named = model() ? { model: model() } : {};
  if (turn.mode === "complete") return ["/v1/completions", { ...named, prompt: turn.prompt, ...sampling() }];
  const first = system() ? [{ role: "system", content: system() }] : [];
  const asked = { role: "user", content: turn.prompt };
  return ["/v1/chat/completions", { ...named, messages: [...first, ...messages, asked], ...sampling() }];
}

/* Ask. If the server is full or not ready, and says for how long, wait and ask again. */
async function answer(turn, signal) {
  for (let numTries = 1; ; numTries++) {
    turn.begin();
    try {
      for await (const piece of ask(...requestFor(turn), key(), signal)) turn.take(piece);
      return;
    } catch (error) {
      if (!(error instanceof Failure) || error.retry_s === null || numTries === MAX_TRIES) throw error;
      for (let left = error.retry_s; left > 0; left--) {
        turn.wait(`${error.message} Asking again in ${left} s.`);
        await pause(1000, signal);
      }
    }
  }
}

/* A stopped answer stays a part of the conversation. A failed one does not, until it is asked for again. */
async function run(turn) {
  if (running || !areValid()) return;
  running = new AbortController();
  show();
  const { signal } = running;
  try {
    await answer(turn, signal);
    turn.end();
  } catch (error) {
    if (!signal.aborted) return failed(turn, error);
    turn.end(true);
  } finally {
    running = null;
    show();
  }
  if (turn.mode === "chat" && turn.isShown() && turn.numPieces) {
    messages.push({ role: "user", content: turn.prompt }, { role: "assistant", content: turn.text });
  }
}

function failed(turn, error) {
  if (!(error instanceof Failure)) console.error(error);
  const words = error instanceof Failure ? error.message : `The page could not read the answer: ${error.message}`;
  turn.fail(words, () => run(turn));
  if (error.status === 401) askForKey();
}

function send() {
  const prompt = mode() === "chat" ? get("prompt").value.trim() : get("prompt").value;
  if (running || !prompt.trim() || !areValid()) return;
  get("prompt").value = "";
  get("empty").hidden = true;
  run(new Turn(mode(), prompt));
}

function stop() {
  if (running) running.abort();
}

function clear() {
  stop();
  messages = [];
  get("log").replaceChildren(get("empty"));
  get("empty").hidden = false;
  get("prompt").focus();
}

function show() {
  const hadFocus = [get("send"), get("stop")].includes(document.activeElement);
  get("send").hidden = running !== null;
  get("stop").hidden = running === null;
  if (hadFocus) get("prompt").focus(); // keep the keyboard focus when the focused button disappears
  get("empty").textContent = EMPTY[mode()];
  get("prompt-label").textContent = LABELS[mode()];
  get("prompt").placeholder = LABELS[mode()];
  get("system-field").hidden = mode() === "complete";
  get("clear").textContent = mode() === "chat" ? "New chat" : "Clear";
}

get("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
get("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
get("stop").addEventListener("click", stop);
get("clear").addEventListener("click", clear);
for (const choice of document.querySelectorAll("input[name=mode]")) choice.addEventListener("change", show);
show();
