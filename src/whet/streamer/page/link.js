/* Keep a connection to the server: connect, and again with longer and longer pauses when it is lost. */

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;
const BUSY_PAUSE_MS = 3000;
const SILENT_MS = 20000; // a connection on which nothing has come for so long is given up
const ENDED = 1000;
const MISUNDERSTOOD = 4400;
const NO_KEY = 4401;
const BUSY = 4409;

export class Link {
  /* hello() returns the first message. on is {message(object), picture(buffer), lost(text, seconds), refused(text), keyWanted(text), ended()}. */
  constructor(hello, on) {
    Object.assign(this, { hello, on, socket: null, isWanted: false, pause_ms: FIRST_PAUSE_MS, timer: null, why: "", silence: null });
  }

  get isOpen() {
    return this.socket !== null && this.socket.readyState === WebSocket.OPEN;
  }

  start() {
    this.isWanted = true;
    this.pause_ms = FIRST_PAUSE_MS;
    this.connect();
  }

  stop() {
    this.isWanted = false;
    clearTimeout(this.timer);
    this.drop();
  }

  send(message) {
    if (this.isOpen) this.socket.send(message instanceof Blob || message instanceof ArrayBuffer ? message : JSON.stringify(message));
  }

  connect() {
    clearTimeout(this.timer);
    this.drop();
    this.why = "";
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/stream`);
    this.socket = socket;
    socket.binaryType = "arraybuffer";
    socket.addEventListener("open", () => socket === this.socket && this.send(this.hello()));
    socket.addEventListener("message", (event) => socket === this.socket && this.take(event.data));
    socket.addEventListener("close", (event) => socket === this.socket && this.closed(event.code));
    this.listen();
  }

  /* Close the connection without hearing of it any more. */
  drop() {
    clearTimeout(this.silence);
    const socket = this.socket;
    this.socket = null;
    if (socket) socket.close();
  }

  /* Give the connection up when nothing comes: the network may be gone without a word. */
  listen() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      this.drop();
      this.closed(0);
    }, SILENT_MS);
  }

  take(data) {
    this.listen();
    if (typeof data !== "string") {
      this.on.picture(data);
      return;
    }
    const message = JSON.parse(data);
    if (message.type === "ready") this.pause_ms = FIRST_PAUSE_MS;
    if (message.type === "refused") this.why = message.why;
    else this.on.message(message);
  }

  closed(code) {
    clearTimeout(this.silence);
    this.socket = null;
    if (!this.isWanted) return;
    if (code === ENDED || code === MISUNDERSTOOD || code === NO_KEY) {
      this.isWanted = false;
      if (code === NO_KEY) this.on.keyWanted(this.why);
      else if (code === MISUNDERSTOOD) this.on.refused(this.why);
      else this.on.ended();
      return;
    }
    const pause_ms = code === BUSY ? BUSY_PAUSE_MS : this.pause_ms;
    if (code !== BUSY) this.pause_ms = Math.min(2 * this.pause_ms, LONGEST_PAUSE_MS);
    this.on.lost(code === BUSY ? this.why : "", pause_ms / 1000);
    this.timer = setTimeout(() => this.connect(), pause_ms);
  }
}
