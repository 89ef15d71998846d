/* Change the prompt and the guidance while the stream runs. */

import { element, get } from "./basics.js";

const LABELS = { none: "None", full: "Full", self: "Self", onetime: "Onetime", embedded: "Embedded" };
const RESIDUAL = ["self", "onetime"];

export class Controls {
  /* send: sends a message to the server. */
  constructor(send) {
    this.send = send;
    get("prompt-form").addEventListener("submit", (event) => this.sendPrompt(event));
    get("guidance-form").addEventListener("submit", (event) => this.sendGuidance(event));
    get("kinds").addEventListener("change", () => this.showDelta());
  }

  /* Show what the model takes and what holds: facts is the server's "ready" message. */
  show(facts) {
    get("controls").hidden = facts.prompt === null && facts.guidance === null;
    get("prompt-form").hidden = facts.prompt === null;
    get("guidance-form").hidden = facts.guidance === null;
    if (facts.guidance !== null && !get("kinds").querySelector("input")) {
      get("kinds").append(...facts.guidance_kinds.map((kind) => {
        return element("label", {}, element("input", { type: "radio", name: "kind", value: kind }), ` ${LABELS[kind] || kind}`);
      }));
    }
    this.fill(facts);
  }

  /* Show the answer to a change. */
  settled(message) {
    if (!message.error) this.fill(message);
    get("settings-said").textContent = message.error ? `Not changed: ${message.error}` : `Set. ${this.summary(message)}`;
  }

  fill({ prompt, negative, guidance }) {
    if (prompt !== null) {
      get("prompt").value = prompt;
      get("negative").value = negative;
    }
    if (guidance !== null) {
      for (const radio of get("kinds").querySelectorAll("input")) radio.checked = radio.value === guidance.kind;
      get("weight").value = guidance.weight;
      get("delta").value = guidance.delta;
      this.showDelta();
    }
    get("settings-said").textContent = this.summary({ prompt, guidance });
  }

  summary({ prompt, guidance }) {
    const parts = [];
    if (guidance !== null) parts.push(guidance.kind === "none" ? "No guidance." : `Guidance: ${(LABELS[guidance.kind] || guidance.kind).toLowerCase()}, weight ${guidance.weight}.`);
    if (prompt !== null) parts.push(prompt ? `Prompt: ${prompt}.` : "No prompt.");
    return parts.join(" ");
  }

  get kind() {
    const chosen = get("kinds").querySelector("input:checked");
    return chosen ? chosen.value : "none";
  }

  showDelta() {
    get("delta-field").hidden = !RESIDUAL.includes(this.kind);
  }

  sendPrompt(event) {
    event.preventDefault();
    get("settings-said").textContent = "Setting the prompt ...";
    this.send({ type: "prompt", prompt: get("prompt").value, negative: get("negative").value });
  }

  sendGuidance(event) {
    event.preventDefault();
    get("settings-said").textContent = "Setting the guidance ...";
    this.send({ type: "guidance", kind: this.kind, weight: Number(get("weight").value), delta: Number(get("delta").value) });
  }
}
