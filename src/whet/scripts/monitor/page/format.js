"use strict";
/* Numbers as people read them: three digits with their unit. What was not measured is a dash, never a zero. */
const whet = {};

whet.DASH = "—";

whet.digits = function (value) {
  if (value === null || value === undefined || Number.isNaN(value)) return whet.DASH;
  const size = Math.abs(value);
  const decimals = size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
};

whet.count = (value) => (value === null || value === undefined ? whet.DASH : value.toLocaleString("en"));

whet.BYTES = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
whet.TIMES = [["s", 1e3], ["ms", 1], ["µs", 1e-3]];
whet.RATES = [["M/s", 1e6], ["k/s", 1e4, 1e3], ["/s", 0, 1]];
whet.PERCENT = [["%", 1]];

/* The unit that fits a value: its name and how much one of it is. */
whet.unitOf = function (unit, value) {
  const scale = { B: whet.BYTES, ms: whet.TIMES, "/s": whet.RATES, "%": whet.PERCENT }[unit];
  const found = scale.find(([, from]) => Math.abs(value) >= from) || (unit === "B" || unit === "/s" || unit === "%" ? scale[scale.length - 1] : value ? scale[scale.length - 1] : scale[1]);
  return { name: found[0], size: found[2] || found[1] };
};

/* [number, unit], to be set in different weights. */
whet.parts = function (unit, value) {
  if (value === null || value === undefined || Number.isNaN(value)) return [whet.DASH, ""];
  if (unit === "%") return [value >= 9.95 || value === 0 ? Math.round(value).toString() : value.toFixed(1), "%"];
  const fitting = whet.unitOf(unit, value);
  return [whet.digits(value / fitting.size), fitting.name];
};

whet.measured = function (unit, value) {
  const [number, name] = whet.parts(unit, value);
  return name === "" ? number : name.startsWith("/") ? number + name : `${number} ${name}`;
};

/* 75 -> "1 min 15 s"; for people, at most two units. */
whet.duration = function (seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
};

/* Rows from the columns that the server sends: [{began, ended, cells: {key: {mean, low, high}}}]. */
whet.rows = function (columns) {
  const keys = Object.keys(columns.cells);
  return columns.ended_s.map((ended, i) => {
    const cells = {};
    for (const key of keys) {
      const column = columns.cells[key];
      const mean = column.mean[i];
      if (mean === null) continue;
      cells[key] = { mean, low: column.low ? column.low[i] : mean, high: column.high ? column.high[i] : mean };
    }
    return { began: columns.began_s[i], ended, cells };
  });
};

/* An element with attributes and children; text is text, never markup. */
whet.element = function (name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
