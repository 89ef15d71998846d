/* The fields of a request. The API key lives in sessionStorage only: it goes with the tab. */

import { get } from "./format.js";

const KEY = "whet-serve-key";
const TOKENS = 256;
let isTokensChosen = false;

export const key = () => get("key").value.trim();

/* What the fields say, as a request's fields; an empty one is left out, so that the server's own default holds. */
export function sampling() {
  const fields = { temperature: "temperature", max_tokens: "max-tokens", seed: "seed" };
  const given = {};
  for (const [name, id] of Object.entries(fields)) {
    const value = get(id).valueAsNumber;
    if (!Number.isNaN(value)) given[name] = value;
  }
  return given;
}

export const system = () => get("system").value.trim();

/* A short context has no room for the usual number of tokens, again and again as a conversation grows. */
export function fitTokens(maxModelLen) {
  if (isTokensChosen || !maxModelLen) return;
  get("max-tokens").value = Math.max(1, Math.min(TOKENS, Math.floor(maxModelLen / 4)));
  tell();
}

/* Whether the fields hold what can be asked; shows the first that does not. */
export function areValid() {
  const wrong = [...get("settings").querySelectorAll("input")].find((field) => !field.validity.valid);
  if (wrong) get("settings").open = true;
  return !wrong || wrong.reportValidity();
}

export function askForKey() {
  get("settings").open = true;
  get("key").focus();
}

/* The choices in a few words, to be read while the fields are closed. */
function tell() {
  const { temperature, max_tokens: tokens, seed } = sampling();
  const parts = [`temperature ${temperature ?? "unset"}`, tokens ? `${tokens} tokens` : "as many tokens as fit"];
  if (seed !== undefined) parts.push(`seed ${seed}`);
  if (key()) parts.push("with a key");
  get("chosen").textContent = parts.join(", ");
}

function remember() {
  try {
    if (key()) sessionStorage.setItem(KEY, key());
    else sessionStorage.removeItem(KEY);
  } catch {
    // the browser keeps nothing for this page: the key holds until it is loaded again
  }
}

try {
  get("key").value = sessionStorage.getItem(KEY) || "";
} catch {
  // as above
}
get("max-tokens").addEventListener("input", () => (isTokensChosen = true));
get("key").addEventListener("input", remember);
get("settings").addEventListener("input", tell);
tell();
