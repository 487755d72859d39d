// Numbers for display: formatting, smoothing, and downsampling to the pixels available.

import { LANGUAGE, phrase } from "./translations.js";

const IS_ENGLISH = LANGUAGE === "en";

/** Format a number with few digits; a missing value is a dash, never zero. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) return withMinus(small(Number(value.toPrecision(3))));
  if (size >= 1e3) return withMinus(grouped(Math.round(value)));
  return withMinus(String(Number(value.toPrecision(4))));
}

/** Put a minus sign, not a hyphen, in front of a number; exponents stay as in code. */
function withMinus(digits) {
  return digits.replace(/^-/, "\u2212");
}

/** Format a number below 0.001 as Python does, so that pages and scripts agree. */
function small(value) {
  return Math.abs(value) >= 1e-4 ? String(value) : value.toExponential().replace(/-(\d)$/, "-0$1");
}

/** Whether the values of a metric are parts of 1: `metrics.py` has the same endings. */
export function isShare(name) {
  return /(?:_share|accuracy|_f1|_precision|_recall|_calibration_error)$/.test(name);
}

/** Format a metric's value with the unit of its name, as the server does. */
export function measure(value, name) {
  if (typeof value === "string") return value === "NaN" ? value : phrase("infinite");
  if (value === null || value === undefined) return "–";
  if (name.endsWith("_bytes")) return bytes(value);
  if (isShare(name)) return percent(Number((value * 100).toPrecision(3)));
  return name === "train_seconds" ? span(value) : short(value);
}

/** Format the difference of two values of a metric, with its sign, as the server does. */
export function change(value, name) {
  if (!Number.isFinite(value)) return measure(value, name);
  const sign = value > 0 ? "+" : value < 0 ? "\u2212" : "";
  const size = Math.abs(value);
  if (!isShare(name)) return sign + measure(size, name);
  const digits = Number((size * 100).toPrecision(3));
  return sign + (digits === 1 ? phrase("{digits} point", { digits }) : phrase("{digits} points", { digits }));
}

/** Format hundredths that are already rounded. */
export function percent(hundredths) {
  return `${withMinus(String(hundredths))}${IS_ENGLISH ? " " : ""}%`;
}

function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let rank = 0;
  // A value that rounds to 1000 of a unit becomes 1 of the next.
  for (; Math.abs(value) >= 999.5 && rank < 4; rank += 1) value /= 1000;
  return `${Number(value.toPrecision(3))} ${units[rank]}`;
}

/** Format an integer with thousands separators. */
function grouped(value) {
  return value.toLocaleString(LANGUAGE);
}

const SIZES = [[1e9, "GB"], [1e6, "MB"], [1e3, "KB"], [0, "B"]];
const LARGE = [[1e12, "T"], [1e9, "B"], [1e6, "M"]];

/** Format an axis label, which has room for few characters; `unit` is `bytes`, `share` or nothing. */
export function tick(value, unit) {
  if (unit === "share") return percent(Number((value * 100).toPrecision(4)));
  const size = Math.abs(value);
  const [by, sign] = (unit === "bytes" ? SIZES : LARGE).find(([least]) => size >= least) ?? [];
  return by ? withMinus(`${Number((value / by).toPrecision(4))}\u00a0${sign}`) : short(value);
}

const DAY = 86_400;
const UNITS = [[DAY, "day", 3600, "hour"], [3600, "hour", 60, "minute"], [60, "minute", 1, "second"]];
const SIGNS = { day: "d", hour: "h", minute: "min", second: "s" };

/** Format seconds with the two largest units, the smaller only if not zero, as the server does. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return amount(seconds.toFixed(1), "second");
  if (seconds < 60) return amount(seconds.toFixed(0), "second");
  const [whole, unit, part, smaller] = UNITS.find(([least]) => seconds >= least);
  const rest = Math.floor((seconds % whole) / part);
  const first = amount(Math.floor(seconds / whole), unit);
  return rest ? `${first} ${amount(rest, smaller)}` : first;
}

function amount(number, unit) {
  if (IS_ENGLISH) return `${number} ${SIGNS[unit]}`;
  return new Intl.NumberFormat(LANGUAGE, { style: "unit", unit, unitDisplay: "short" }).format(Number(number));
}

/** Format a position on an axis. */
export function place(value, unit) {
  if (unit === "wall") return new Date(value * 1000).toLocaleString(IS_ENGLISH ? "en-GB" : LANGUAGE, { hour12: false });
  return unit === "seconds" && value >= 0 ? span(value) : short(value);
}

/** Return the range without the outermost 2 % at each end. */
export function inner(values, isLog) {
  if (!values.length) return [isLog ? 1 : 0, 10];
  const sorted = values.toSorted((a, b) => a - b);
  const cut = Math.floor(sorted.length / 50);
  const [low, high] = [sorted[cut], sorted[sorted.length - 1 - cut]];
  if (isLog) return [low / 1.1, high * 1.1];
  const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  return [low - room, high + room];
}

/** Exponential moving average with bias correction; gaps stay gaps. */
export function smooth(values, weight) {
  if (!weight) return values;
  let mean = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean * weight + (1 - weight) * value;
    mass = mass * weight + (1 - weight);
    return mean / mass;
  });
}

/** Downsample columns that share an x, keeping each bucket's minimum and maximum: spikes survive. */
export function thin(columns, buckets) {
  const size = columns[0].length;
  if (size <= buckets * 4) return columns;
  const keep = new Set([0, size - 1]);
  for (let bucket = 0; bucket < buckets; bucket += 1) {
    const start = Math.floor((bucket * size) / buckets);
    const end = Math.floor(((bucket + 1) * size) / buckets);
    for (const column of columns.slice(1)) {
      extremes(column, start, end).forEach((i) => keep.add(i));
    }
  }
  const chosen = [...keep].sort((a, b) => a - b);
  return columns.map((column) => chosen.map((i) => column[i]));
}

function extremes(column, start, end) {
  let low = -1;
  let high = -1;
  for (let i = start; i < end; i += 1) {
    if (column[i] === null) continue;
    if (low < 0 || column[i] < column[low]) low = i;
    if (high < 0 || column[i] > column[high]) high = i;
  }
  return low < 0 ? [] : [low, high];
}
