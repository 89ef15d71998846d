/* Format numbers for people, make elements, wait. A number has three digits with its unit; an unknown one is a dash, never a zero. */

export const DASH = "—";

const known = (value) => typeof value === "number" && Number.isFinite(value);

export function digits(value) {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  const decimals = size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

export const count = (value) => (known(value) ? value.toLocaleString("en") : DASH);

/* Format a value from 0 to 100 as a percentage. */
export function percent(value) {
  if (!known(value)) return DASH;
  return `${value >= 9.95 || value === 0 ? Math.round(value) : value.toFixed(1)} %`;
}

/* 0.0312 -> "31 ms", 2.5 -> "2.50 s" */
export const latency = (seconds) => (seconds < 0.9995 ? `${Math.round(seconds * 1e3)} ms` : `${digits(seconds)} s`);

/* 75 -> "1 min 15 s"; at most two units. */
export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/* Make an element with attributes and children. Text is never read as markup. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const get = (id) => document.getElementById(id);

/* Wait, and end early with an AbortError if the signal is given. */
export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stopped = () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    };
    const timer = setTimeout(() => {
      if (signal) signal.removeEventListener("abort", stopped);
      resolve();
    }, milliseconds);
    if (!signal) return;
    if (signal.aborted) stopped();
    else signal.addEventListener("abort", stopped, { once: true });
  });
}
