// The data of a chart: one x axis, and the means, extremes and non-finite positions of each series.

/** @typedef {{mean: number[], min: number[], max: number[], non_finite: number[]}} Series */

export class Curves {
  /** @param {string[]} names one for each series */
  constructor(names) {
    this.names = names;
    this.x = [];
    this.series = names.map(() => ({ mean: [], min: [], max: [], non_finite: [] }));
  }

  /** Set all curves, as downsampled by the server. A missing series stays empty. */
  load(x, byName) {
    this.x = [...x];
    this.series = this.names.map((name) => {
      const found = byName[name];
      const gap = () => x.map(() => null);
      return found
        ? { ...found, mean: [...found.mean], min: [...found.min], max: [...found.max] }
        : { mean: gap(), min: gap(), max: gap(), non_finite: [] };
    });
  }

  /** Replace a range of the axis by finer buckets; the rest stays. */
  refine({ min, max }, x, byName) {
    if (!x.length) return;
    // Points that arrived since the request stay, too.
    const end = Math.min(max, x.at(-1));
    const before = this.x.findIndex((place) => place >= min);
    const after = this.x.findLastIndex((place) => place <= end) + 1;
    const start = before < 0 ? this.x.length : before;
    const lay = (kept, fresh) => [...kept.slice(0, start), ...fresh, ...kept.slice(Math.max(start, after))];
    const gap = x.map(() => null);
    this.series = this.names.map((name, k) => {
      const [one, found] = [this.series[k], byName[name]];
      const broken = found ? [...one.non_finite.filter((place) => place < min || place > end), ...found.non_finite] : one.non_finite;
      const lists = ["mean", "min", "max"].map((list) => [list, lay(one[list], found?.[list] ?? gap)]);
      return { ...one, ...Object.fromEntries(lists), non_finite: broken };
    });
    this.x = lay(this.x, x);
  }

  /** Add the values at one x; values for an existing x join it. */
  push(place, values) {
    if (!this.names.some((name) => name in values)) return;
    // A restarted run reports its first step again: drop the earlier points.
    if (this.x.length > 1 && place <= this.x[0]) this.load([], {});
    if (this.x.at(-1) !== place) {
      this.x.push(place);
      for (const one of this.series) {
        for (const list of [one.mean, one.min, one.max]) list.push(null);
      }
    }
    const i = this.x.length - 1;
    this.names.forEach((name, k) => {
      if (!(name in values)) return;
      const one = this.series[k];
      if (typeof values[name] === "string") {
        one.non_finite.push(place);
        one.first_broken ??= place;
      } else one.mean[i] = one.min[i] = one.max[i] = values[name];
    });
  }

  /** Add a value of one series at any x: several runs share the axis. */
  insert(place, k, value, step) {
    if (!Number.isFinite(place)) return;
    let i = this.x.length;
    while (i > 0 && this.x[i - 1] >= place) i -= 1;
    if (this.x[i] !== place) {
      this.x.splice(i, 0, place);
      for (const one of this.series) {
        for (const list of [one.mean, one.min, one.max]) list.splice(i, 0, null);
      }
    }
    const one = this.series[k];
    if (typeof value !== "string") one.mean[i] = one.min[i] = one.max[i] = value;
    else if (one.non_finite.at(-1) !== place) {
      one.non_finite.push(place);
      one.first_broken ??= step;
    }
  }

  /** Return the x positions of NaN or infinite values, each once. */
  get broken() {
    return [...new Set(this.series.flatMap((one) => one.non_finite))].sort((a, b) => a - b);
  }

  get isEmpty() {
    return this.series.every((one) => !one.non_finite.length && one.mean.every((v) => v === null));
  }

  /** Return the best finite value of a series and its x; `better` is lower or higher. */
  best(k, better) {
    const sign = better === "lower" ? 1 : -1;
    const values = this.series[k][better === "lower" ? "min" : "max"];
    let found = -1;
    values.forEach((value, i) => {
      if (value !== null && (found < 0 || sign * value < sign * values[found])) found = i;
    });
    return found < 0 ? null : { place: this.x[found], value: values[found] };
  }
}

/** Return the value at an index, or the nearest one before it. */
export function valueAt(values, i) {
  for (let j = i; j >= 0; j -= 1) if (values[j] !== null) return values[j] ?? null;
  return null;
}
