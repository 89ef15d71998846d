/* Show the Markdown of an answer as nodes of the page.
 *
 * markdown-it 14.3.3 (MIT, its text in markdown-it.LICENSE, as published on npm) splits the text into tokens. This file
 * makes a node from each token. No text is ever parsed as HTML: nothing here uses `innerHTML`, and the page's
 * Content-Security-Policy forbids it. Formulas stay as they are written. */

import { codeBlock } from "./code.js";
import { element } from "./basics.js";

const TAGS = new Set("p ul ol li blockquote table thead tbody tr th td strong em s".split(" "));
const PROTOCOLS = new Set(["http:", "https:", "mailto:"]);
const HEADINGS_ABOVE = 2; // the page's own: the model's name and the speaker's
const MOST_MATHS = 2000; // characters of one formula; this bounds the time of the search for its end
const MATHS = new RegExp(
  ["\\$\\$[^]{1,N}?\\$\\$", "\\$(?![\\s$])(?:[^$\\\\\\n]|\\\\.){1,N}?(?<!\\s)\\$(?!\\d)", "\\\\\\([^]{1,N}?\\\\\\)", "\\\\\\[[^]{1,N}?\\\\\\]"]
    .join("|").replaceAll("N", String(MOST_MATHS)), "y",
);

/* Return whether a link may be followed. Relative links may not: an answer has no address that they could refer to. */
function isSafe(url) {
  try {
    return PROTOCOLS.has(new URL(url).protocol);
  } catch {
    return false;
  }
}

/* Read a formula within a line, so that its underscores and asterisks are not read as emphasis. */
function inlineMaths(state, silent) {
  MATHS.lastIndex = state.pos;
  const found = MATHS.exec(state.src);
  if (!found || MATHS.lastIndex > state.posMax) return false;
  if (!silent) state.push("maths_inline", "", 0).content = found[0];
  state.pos += found[0].length;
  return true;
}

/* Read a formula on lines of its own. A formula without an end reaches to the next empty line. */
function blockMaths(state, first, end, silent) {
  const line = (n) => state.src.slice(state.bMarks[n] + state.tShift[n], state.eMarks[n]).trim();
  const opening = line(first).slice(0, 2);
  const closing = { $$: "$$", "\\[": "\\]" }[opening];
  if (!closing || state.sCount[first] - state.blkIndent >= 4) return false;
  const rest = line(first).slice(2);
  if (rest.includes(closing) && !rest.endsWith(closing)) return false; // text follows the formula
  let last = first;
  if (!rest.endsWith(closing)) {
    do last++;
    while (last < end && !line(last).endsWith(closing) && line(last) !== "");
    if (last === end || line(last) === "") last--;
  }
  if (silent) return true;
  const token = state.push("maths_block", "", 0);
  token.content = state.getLines(first, last + 1, state.blkIndent, false).trimEnd();
  token.map = [first, last + 1];
  state.line = last + 1;
  return true;
}

function reader() {
  const made = window.markdownit({ html: false, linkify: true, breaks: true });
  made.disable("lheading"); // the first dash of a list would turn the line above into a heading
  made.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
  made.validateLink = isSafe;
  made.inline.ruler.before("escape", "maths_inline", inlineMaths);
  made.block.ruler.before("fence", "maths_block", blockMaths, { alt: ["paragraph", "blockquote", "list"] });
  return made;
}

const markdown = reader();

function link(url, ...children) {
  return isSafe(url) ? element("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, ...children) : element("span", {}, ...children);
}

/* Return the element that a token opens. */
function opened(token) {
  if (token.type === "link_open") return link(token.attrGet("href"));
  if (token.type === "heading_open") return element(`h${Math.min(6, Number(token.tag[1]) + HEADINGS_ABOVE)}`);
  const made = element(TAGS.has(token.tag) ? token.tag : "span");
  const aligned = /text-align:(right|center)/.exec(token.attrGet("style") || "");
  if (aligned) made.classList.add(aligned[1] === "right" ? "number" : "centred");
  if (token.tag === "ol" && Number.isInteger(Number(token.attrGet("start") ?? "x"))) made.setAttribute("start", token.attrGet("start"));
  return made;
}

/* Return the node of a token that contains no others. */
function leaf(token) {
  switch (token.type) {
    case "code_inline":
      return element("code", {}, token.content);
    case "softbreak":
    case "hardbreak":
      return element("br");
    case "hr":
      return element("hr");
    case "fence":
    case "code_block":
      return codeBlock(token.content, token.info.trim().split(/\s+/)[0]);
    case "image": // no picture is loaded: it becomes a link
      return link(token.attrGet("src"), token.content || "picture");
    case "maths_inline":
      return element("span", { class: "maths" }, token.content);
    case "maths_block":
      return element("div", { class: "maths" }, token.content);
    default:
      return document.createTextNode(token.content);
  }
}

function fill(host, tokens) {
  const open = [host];
  for (const token of tokens) {
    const parent = open[open.length - 1];
    if (token.hidden) continue; // the paragraphs of a tight list
    if (token.type === "inline") fill(parent, token.children);
    else if (token.nesting < 0) open.pop();
    else if (token.nesting === 0) parent.append(leaf(token));
    else {
      open.push(opened(token));
      const made = open[open.length - 1];
      parent.append(token.tag === "table" ? element("div", { class: "table", tabindex: "0" }, made) : made);
    }
  }
}

/* Return the top-level blocks of a text in order, each with its tokens and its source text. */
function blocksOf(text, references) {
  const lines = text.split("\n");
  const blocks = [];
  for (const token of markdown.parse(text, references)) {
    if (token.level === 0 && token.nesting >= 0) {
      blocks.push({ source: `${token.type}\n${lines.slice(...(token.map || [0, 0])).join("\n")}`, tokens: [] });
    }
    blocks[blocks.length - 1].tokens.push(token);
  }
  return blocks;
}

/* Show a text that grows. Blocks that do not change keep their nodes, so that a selection in them stays. */
export class Growing {
  constructor(host) {
    Object.assign(this, { host, sources: [], numReferences: 0 });
  }

  show(text) {
    const found = {};
    const blocks = blocksOf(text, found);
    const numReferences = Object.keys(found.references || {}).length;
    const isSame = (block, i) => block.source === this.sources[i] && numReferences === this.numReferences;
    let kept = blocks.findIndex((block, i) => !isSame(block, i));
    if (kept < 0) kept = blocks.length;
    while (this.host.childNodes.length > kept) this.host.lastChild.remove();
    for (const block of blocks.slice(kept)) fill(this.host, block.tokens);
    Object.assign(this, { sources: blocks.map((block) => block.source), numReferences });
  }
}
