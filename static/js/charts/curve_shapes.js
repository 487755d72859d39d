// Ways to tell curves apart that lie on each other: as differences from a baseline, or pulled apart.
// Loaded by a page that offers them.
import { inner } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";

/** Curves no further apart than this many pixels look like one. */
const NEAR = 2;
/** The share of their points that must be this near. */
const MOSTLY = 0.9;
/** Look at no more points and curves than these: the answer would be the same. */
const MOST_POINTS = 200;
const MOST_CURVES = 40;
/** Pull curves apart by this share of the values' range in all. */
const SPREAD = 0.4;
/** The longest name of a baseline that the title of an axis has room for. */
const MOST_LETTERS = 18;

/** Each line minus that of the baseline, at the same point of the x axis. */
export class Difference {
  name = "difference";

  /** @param {string} key of the baseline */
  constructor(key, label) {
    Object.assign(this, { key, label });
  }

  title(axis = "") {
    const short = this.label.length > MOST_LETTERS ? `${this.label.slice(0, MOST_LETTERS - 1)}…` : this.label;
    return `${phrase("minus {baseline}", { baseline: short })}${unitOf(axis)}`;
  }

  heading(title) {
    return phrase("{title}: difference from {baseline}", { title, baseline: this.label });
  }

  column(label) {
    return phrase("{label} minus {baseline}", { label, baseline: this.label });
  }

  get sentence() {
    return phrase("Each line is a run minus {baseline}, the baseline, at the same point of the x axis. Zero means no difference.", { baseline: this.label });
  }

  draw({ curves: { x, names, series }, series: lines }) {
    const base = filled(x, series[names.indexOf(this.key)]?.mean ?? []);
    const minus = (values) => values.map((value, i) => (value === null || base[i] === null ? null : value - base[i]));
    return series.map((one, k) => {
      const mean = minus(one.mean);
      // The extremes of a bucket may be of different steps in two runs; those over seeds are not.
      const isMean = lines[k].n > 1;
      return { ...one, mean, min: isMean ? minus(one.min) : mean, max: isMean ? minus(one.max) : mean };
    });
  }

  note(chart) {
    const shown = chart.shown.filter((_, k) => !chart.hidden.has(chart.series[k].key));
    const values = shown.flatMap(({ mean }) => mean.filter((value) => value !== null));
    if (!values.length) return phrase("{baseline}, the baseline, has no values of this metric to subtract.", { baseline: this.label });
    return values.some(Boolean) ? "" : phrase("No difference anywhere.");
  }
}

/** Each line higher than the one before it by a constant, only for the eye. */
export class Offset {
  name = "offset";
  isMoved = true;

  title() {
    return phrase("moved apart, not to scale");
  }

  heading(title) {
    return phrase("{title}: curves moved apart, not to scale", { title });
  }

  column(label) {
    return label;
  }

  get sentence() {
    return phrase("The curves are moved apart by a constant, only for the eye: do not read the y axis. The values at the pointer are true.");
  }

  draw({ curves: { series }, series: lines, hidden }) {
    const seen = series.filter((_, k) => !hidden.has(lines[k].key));
    const [low, high] = inner(seen.flatMap(({ mean }) => mean.filter((value) => value !== null)), false);
    const gap = (SPREAD * (high - low)) / Math.max(1, seen.length);
    return series.map((one) => {
      const up = gap * Math.max(0, seen.indexOf(one));
      const move = (values) => values.map((value) => (value === null ? null : value + up));
      return { ...one, mean: move(one.mean), min: move(one.min), max: move(one.max) };
    });
  }

  note() {
    return "";
  }
}

/** Say how many of the curves shown look like one, as they are drawn; `isSame` if their values are equal. */
export function overlap({ plot, series, hidden, width }) {
  const { data, scales } = plot;
  const inside = data[0].flatMap((place, i) => (place >= scales.x.min && place <= scales.x.max ? [i] : []));
  const every = Math.max(1, Math.floor(inside.length / MOST_POINTS));
  const places = inside.filter((_, i) => i % every === 0);
  const lines = series.flatMap(({ key }, k) => (hidden.has(key) ? [] : [drawn(data, k, width)])).slice(0, MOST_CURVES);
  const heights = lines.map((line) => places.map((i) => (line[i] === null ? null : plot.valToPos(line[i], "y"))));
  const known = heights.filter((line) => line.some((height) => height !== null));
  const near = known.filter((line) => known.some((other) => other !== line && isNear(line, other)));
  const isSame = near.length === known.length && near.every((line) => line.every((height, i) => height === null || height === near[0][i]));
  return { count: near.length, all: known.length, isSame };
}

/** The upper line of a series, without gaps between its points. */
function drawn(data, k, width) {
  const [raw, smoothed] = [data[(k + 1) * width - 1], data[(k + 1) * width]];
  return filled(data[0], smoothed.some((value) => value !== null) ? smoothed : raw);
}

function isNear(line, other) {
  const gaps = line.flatMap((height, i) => (height === null || other[i] === null ? [] : [Math.abs(height - other[i])]));
  return gaps.length > 1 && gaps.filter((gap) => gap <= NEAR).length >= MOSTLY * gaps.length;
}

/** Fill gaps between known values with straight lines; before the first and after the last stay gaps. */
export function filled(x, values) {
  const made = x.map((_, i) => values[i] ?? null);
  let before = -1;
  made.forEach((value, i) => {
    if (value === null) return;
    for (let j = before + 1; before >= 0 && j < i; j += 1) {
      made[j] = made[before] + ((value - made[before]) * (x[j] - x[before])) / (x[i] - x[before]);
    }
    before = i;
  });
  return made;
}

function unitOf(axis) {
  const unit = axis.match(/ (\([^()]*\))$/)?.[1];
  return unit ? ` ${unit}` : "";
}
