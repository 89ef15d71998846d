/* Show the tuned models: what each takes and returns, how it is called, and how many samples it has answered. */

import { copyButton } from "./code.js";
import { count, element, get } from "./basics.js";
import { key } from "./settings.js";

const MOST_WRITTEN = 64; // numbers of one tensor; more are made by a command
const LENGTH = 8; // of free dimensions after the first

let shown = null; // the models on the page, as JSON

const size = (sizes) => sizes.reduce((product, one) => product * one, 1);
const example = (shape) => shape.map((one, place) => (one >= 0 ? one : place === 0 ? 1 : LENGTH));
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
const url = (name) => `${location.origin}/v2/models/${encodeURIComponent(name)}/infer`;

/* Return a shell command that sends ones to a model. Long tensors are filled by `yes`. */
export function command(model) {
  const filler = (datatype) => (datatype === "BOOL" ? "true" : "1");
  const isLong = model.inputs.some((input) => size(example(input.shape)) > MOST_WRITTEN);
  const made = [];
  const inputs = model.inputs.map(({ name, datatype, shape }) => {
    const sizes = example(shape);
    const head = JSON.stringify({ name, datatype, shape: sizes }).slice(0, -1);
    if (!isLong) return `${head},"data":[${Array(size(sizes)).fill(filler(datatype)).join(",")}]}`;
    made.push(`"$(yes ${filler(datatype)} | head -n ${size(sizes)} | paste -sd, -)"`);
    return `${head.replaceAll("\\", "\\\\").replaceAll("%", "%%")},"data":[%s]}`;
  });
  const body = quoted(`{"inputs":[${inputs.join(",")}]}`);
  const headers = `-H 'Content-Type: application/json'${key() ? ` -H "Authorization: Bearer $KEY"` : ""}`;
  const address = quoted(url(model.name));
  if (!isLong) return `curl ${address} ${headers} -d ${body}`;
  return `printf ${body} ${made.join(" ")} | curl ${address} ${headers} --data-binary @-`;
}

function tensors(title, specs) {
  const rows = specs.map(({ name, datatype, shape }) => {
    const sizes = shape.map((one) => (one < 0 ? "any" : count(one))).join(" × ");
    return element("li", {}, element("code", {}, name), ` ${datatype} [${sizes}]`);
  });
  return element("div", {}, element("h4", {}, title), element("ul", {}, ...rows));
}

function card(model) {
  const answered = element("p", { class: "quiet", "data-answered": model.name });
  const call = command(model);
  const head = element("div", { class: "code-head" }, element("span", {}, "shell"), copyButton(() => command(model)));
  const code = element("div", { class: "code" }, head, element("pre", { tabindex: "0" }, element("code", {}, call)));
  const both = element("div", { class: "tensors" }, tensors("Inputs", model.inputs), tensors("Outputs", model.outputs));
  return element("article", { class: "card", "data-model": model.name }, element("h3", {}, model.name), answered, both, code);
}

/* Put the models into the page, if they are others than before. */
export function showTuned(models, hasChat) {
  const now = JSON.stringify([models, hasChat, key() !== ""]);
  if (now === shown) return;
  shown = now;
  document.body.classList.toggle("tuned-only", !hasChat);
  get("chat").hidden = !hasChat;
  get("tuned").hidden = models.length === 0;
  get("no-chat").hidden = hasChat;
  get("models").replaceChildren(...models.map(card));
}

/* Show how many samples each model has answered, as /metrics tells. */
export function showAnswered(metrics) {
  for (const place of get("models").querySelectorAll("[data-answered]")) {
    const label = `{model_name=${JSON.stringify(place.dataset.answered)}} `;
    const line = metrics.split("\n").find((one) => one.startsWith(`whet:infer_samples_total${label}`));
    const number = line === undefined ? null : Number(line.slice(line.lastIndexOf(" ") + 1));
    place.textContent = number === null ? "" : `${count(number)} ${number === 1 ? "sample" : "samples"} answered`;
  }
}
