/* Show questions and answers as entries of the log. */

import { copyButton } from "./code.js";
import { count, digits, element, get, latency } from "./basics.js";
import { Growing } from "./markdown.js";

const NAMES = { chat: ["You", "Model"], complete: ["Prompt", "Continuation"] };
const ENDS = { length: "cut off at the limit of tokens", abort: "ended by the server", error: "ended by an error" };

let isFollowing = true; // false once the reader scrolls back from the end
let lastTop = 0;

function keepEnd() {
  if (isFollowing) get("log").scrollTop = get("log").scrollHeight;
}

function follow(change) {
  change();
  keepEnd();
}

get("log").addEventListener("scroll", ({ target: log }) => {
  if (log.scrollHeight - log.scrollTop - log.clientHeight < 40) isFollowing = true;
  else if (log.scrollTop < lastTop) isFollowing = false;
  lastTop = log.scrollTop;
});
new ResizeObserver(keepEnd).observe(get("log")); // such as when the settings below it are opened

/* Show one question with its answer. */
export class Turn {
  constructor(mode, prompt) {
    const [asker, answerer] = NAMES[mode];
    this.mode = mode;
    this.prompt = prompt;
    this.text = "";
    this.isDrawing = false;
    this.shown = element("div", { class: mode === "chat" ? "text markdown" : "text" });
    this.growing = mode === "chat" ? new Growing(this.shown) : null; // what goes on with a text is shown as it is
    this.figures = element("p", { class: "figures" });
    this.copy = copyButton(() => this.text, "Copy answer");
    this.asked = entry("asked", asker, element("div", { class: "text" }, prompt));
    this.answer = entry("answer", answerer, this.shown, element("div", { class: "foot" }, this.figures, this.copy));
    this.box = element("div", { class: "turn" }, this.asked, this.answer);
    this.begin();
  }

  /* Begin a new attempt: remove the results of the last one, and move the entry to the end. */
  begin() {
    if (this.failure) this.failure.remove();
    this.failure = null;
    this.text = "";
    this.draw();
    this.copy.hidden = true;
    this.figures.textContent = "";
    this.answer.hidden = false;
    this.answer.setAttribute("aria-busy", "true"); // screen readers read it aloud once it is complete, not word by word
    Object.assign(this, { beganAt: performance.now(), firstAt: null, lastAt: null });
    Object.assign(this, { numPieces: 0, usage: null, finish: null });
    get("log").append(this.box);
    isFollowing = true;
    keepEnd();
  }

  /* Return whether this entry is still a part of the conversation. */
  isShown() {
    return this.box.isConnected;
  }

  take(piece) {
    this.usage = piece.usage || this.usage;
    this.finish = piece.finish || this.finish;
    if (!piece.text) return;
    this.lastAt = performance.now();
    this.firstAt = this.firstAt ?? this.lastAt;
    this.numPieces += 1;
    this.text += piece.text;
    if (this.isDrawing) return; // many pieces may come before the page is painted again
    this.isDrawing = true;
    requestAnimationFrame(() => {
      this.isDrawing = false;
      this.draw();
    });
  }

  draw() {
    follow(() => (this.growing ? this.growing.show(this.text) : (this.shown.textContent = this.text)));
  }

  wait(text) {
    follow(() => (this.figures.textContent = text));
  }

  end(isStopped = false) {
    this.close();
    follow(() => (this.figures.textContent = this.summary(isStopped)));
  }

  /* The answer has ended: show all of it, also in a tab that is not painted. */
  close() {
    this.draw();
    this.answer.setAttribute("aria-busy", "false");
    this.copy.hidden = this.numPieces === 0;
  }

  /* Show an error in words. again is called if the reader asks for another attempt. */
  fail(words, again) {
    this.close();
    this.answer.hidden = this.numPieces === 0;
    const button = element("button", { type: "button", class: "plain" }, "Try again");
    button.addEventListener("click", again);
    this.failure = element("div", { class: "failure", role: "alert" }, element("p", {}, words), button);
    follow(() => {
      if (this.numPieces) this.figures.textContent = this.summary(true);
      this.box.append(this.failure);
    });
  }

  /* Return the tokens, the tokens per second after the first, and the time to the first. If the answer was stopped
   * before the server sent a count, the number of pieces is a lower bound: each holds at least one token. */
  summary(isStopped) {
    if (isStopped && !this.numPieces) return "stopped before the first token";
    const tokens = this.usage ? this.usage.completion_tokens : this.numPieces;
    const parts = [`${this.usage ? "" : "at least "}${count(tokens)} token${tokens === 1 ? "" : "s"}`];
    const span_s = (this.lastAt - this.firstAt) / 1e3;
    if (tokens > 1 && span_s > 0) parts.push(`${digits((tokens - 1) / span_s)} tokens/s`);
    if (this.firstAt !== null) parts.push(`first after ${latency((this.firstAt - this.beganAt) / 1e3)}`);
    if (isStopped) parts.push("stopped");
    else if (ENDS[this.finish]) parts.push(ENDS[this.finish]);
    return parts.join(" · ");
  }
}

function entry(kind, name, ...children) {
  return element("article", { class: kind, "aria-label": name }, element("h2", {}, name), ...children);
}
