/* Read and write the 16 bytes before each picture. streamer/http/header.py says what they mean. */

const KINDS = ["frame", "input", "computed", "still", "skipped", "discarded", "not finite"];
const NUM_BYTES = 16;
const VERSION = 1;

export function pack(kind, sequence, captured_ms) {
  const view = new DataView(new ArrayBuffer(NUM_BYTES));
  view.setUint8(0, "w".charCodeAt(0));
  view.setUint8(1, "f".charCodeAt(0));
  view.setUint8(2, VERSION);
  view.setUint8(3, KINDS.indexOf(kind));
  view.setUint32(4, sequence);
  view.setFloat64(8, captured_ms);
  return view.buffer;
}

/* Return {kind, sequence, captured_ms, jpeg}. */
export function parse(buffer) {
  const view = new DataView(buffer);
  if (view.getUint8(2) !== VERSION) throw new Error("the server is of another version than this page; load it again");
  return {
    kind: KINDS[view.getUint8(3)],
    sequence: view.getUint32(4),
    captured_ms: view.getFloat64(8),
    jpeg: new Blob([new Uint8Array(buffer, NUM_BYTES)], { type: "image/jpeg" }),
  };
}
