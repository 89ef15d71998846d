/* Show code in an answer, with its language, a copy button and coloured syntax.
 *
 * The colours come from highlight.js 11.12.0, the common build (BSD-3-Clause, its text in highlight.LICENSE), as
 * published on npm. */

import { element } from "./basics.js";

const MOST_COLOURED = 20_000; // characters; longer code stays in one colour
const SAID_MS = 2000;

/* Copy a text. navigator.clipboard needs a secure context (HTTPS or this machine); elsewhere, copy a selection. */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = element("textarea", { readonly: "", class: "unseen" });
  const before = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  before?.focus();
  if (!isCopied) throw new Error("the browser does not copy");
}

/* Return a button that copies what `text` returns, and says whether that worked. */
export function copyButton(text, label = "Copy") {
  const button = element("button", { type: "button", class: "plain copy" }, label);
  button.addEventListener("click", async () => {
    try {
      await copy(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => (button.textContent = label), SAID_MS);
  });
  return button;
}

/* Return the nodes of highlight.js's tree. A scope such as "title.function" says what a word is. */
function nodes(children) {
  return children.map((child) => {
    if (typeof child === "string") return child;
    const scope = (child.scope || "").split(".")[0];
    return element("span", scope ? { class: `hljs-${scope}` } : {}, ...nodes(child.children));
  });
}

function coloured(code, language) {
  if (code.length > MOST_COLOURED || !window.hljs.getLanguage(language)) return [code];
  return nodes(window.hljs.highlight(code, { language, ignoreIllegals: true })._emitter.root.children);
}

/* Return a block of code. language: as the answer names it, or "". */
export function codeBlock(code, language) {
  const head = element("div", { class: "code-head" }, element("span", {}, language || "code"), copyButton(() => code));
  const shown = element("code", {}, ...coloured(code.replace(/\n$/, ""), language));
  return element("div", { class: "code" }, head, element("pre", { tabindex: "0" }, shown));
}
