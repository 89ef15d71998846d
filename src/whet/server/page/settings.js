/* Hold the settings of a request. The API key is kept only in sessionStorage: it is deleted with the tab. */

import { get } from "./basics.js";

const KEY = "whet-serve-key";
const TOKENS = 256;
let isTokensChosen = false;

export const key = () => get("key").value.trim();

/* Return the settings as fields of a request. Empty ones are left out, so that the server's default applies. */
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

/* Lower the default number of tokens for models with a short context, which a conversation soon fills. */
export function fitTokens(maxModelLen) {
  if (isTokensChosen || !maxModelLen) return;
  get("max-tokens").value = Math.max(1, Math.min(TOKENS, Math.floor(maxModelLen / 4)));
  tell();
}

/* Return whether all fields are valid, and show the first that is not. */
export function areValid() {
  const wrong = [...get("settings").querySelectorAll("input")].find((field) => !field.validity.valid);
  if (wrong) get("settings").open = true;
  return !wrong || wrong.reportValidity();
}

export function askForKey() {
  get("settings").open = true;
  get("key").focus();
}

/* Summarise the settings in a few words, to be shown while they are closed. */
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
    // the browser stores nothing for this page: the key is kept until the page is loaded again
  }
}

try {
  get("key").value = sessionStorage.getItem(KEY) || "";
} catch {
  // the browser stores nothing for this page: begin without a key
}
get("max-tokens").addEventListener("input", () => (isTokensChosen = true));
get("key").addEventListener("input", remember);
get("settings").addEventListener("input", tell);
tell();
