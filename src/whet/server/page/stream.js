/* Read an answer piece by piece while it is generated: server-sent events over fetch, which can POST and be stopped. */

const MAX_RETRY_S = 60;
const WORDS = {
  401: "The server wants an API key: give one of its keys under Settings.",
  413: "This is too long for the server to take.",
  429: "The server is full: too many requests wait already.",
  503: "The server takes no requests now: it is starting, or about to stop.",
};
const ADVICE = { context_length_exceeded: "Begin anew, or ask for fewer tokens under Settings." };

/* Hold an error in words for the page. retry_s is the number of seconds after which the page asks again, or null. */
export class Failure extends Error {
  constructor(message, status = 0, retry_s = null) {
    super(message);
    this.status = status;
    this.retry_s = retry_s;
  }
}

export const authorised = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

/* Return the seconds of a Retry-After header, which holds a number or a date, or null if there is none. */
function retryAfter(response) {
  const given = response.headers.get("Retry-After");
  if (given === null) return null;
  const seconds = /^\d+$/.test(given.trim()) ? Number(given) : (Date.parse(given) - Date.now()) / 1e3;
  return Number.isNaN(seconds) ? null : Math.min(MAX_RETRY_S, Math.max(1, Math.ceil(seconds)));
}

/* Return a message as a sentence, followed by advice. */
function sentences(said, advice) {
  const first = said.charAt(0).toUpperCase() + said.slice(1);
  return advice ? `${first.replace(/\.?$/, ".")} ${advice}` : first;
}

/* Explain an error response, in our words if its status is known, and with the server's own message. */
export async function failureOf(response) {
  let said = "";
  let advice = "";
  try {
    const { error } = await response.json();
    said = String(error.message);
    advice = ADVICE[error.code] || "";
  } catch {
    // not JSON, or in another form: only the status is known
  }
  const words = WORDS[response.status];
  const known = said && words ? `${words} It says: ${said}` : words || said;
  const message = known ? sentences(known, advice) : `The server answered ${response.status}.`;
  const retry_s = response.status === 429 || response.status === 503 ? retryAfter(response) : null;
  return new Failure(message, response.status, retry_s);
}

/* Yield the data of each server-sent event. Two chunks may split a line, and even a character. */
export async function* events(body) {
  const reader = body.getReader(); // not a pipe, which would drop buffered data when the connection breaks
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines.map((text) => text.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        if (line !== "" || !data.length) continue;
        yield data.join("\n");
        data = [];
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the stream is already broken or stopped
  }
}

function read(data) {
  const chunk = JSON.parse(data);
  if (chunk.error) throw new Failure(`The server broke the answer off: ${chunk.error.message || "no reason given"}`);
  const choice = (chunk.choices || [])[0] || {};
  const text = (choice.delta ? choice.delta.content : choice.text) || "";
  return { text, finish: choice.finish_reason || null, usage: chunk.usage || null };
}

/* Yield {text, finish, usage}. Throw a Failure, or an AbortError once the signal is given. */
export async function* ask(path, request, key, signal) {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
  const headers = { "Content-Type": "application/json", ...authorised(key) };
  let response;
  try {
    response = await fetch(path, { method: "POST", headers, body, signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Failure("The server cannot be reached: it has ended, or the connection to it is broken.");
  }
  if (!response.ok) throw await failureOf(response);
  let isWhole = false;
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") isWhole = true;
      else yield read(data);
    }
  } catch (error) {
    if (signal.aborted || error instanceof Failure) throw error;
    isWhole = false;
  }
  if (!isWhole) throw new Failure("The connection broke before the answer was complete.");
}
