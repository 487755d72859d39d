// A line chart on uPlot: a smoothed over a raw line, a band between extremes, marks for NaN or
// infinite values and for the best value, axis titles, and a zoom and cursor shared by a group.
// What needs a pointer or a key (reading values, pinning, menus) is loaded with the first of them.
import { Curves, valueAt } from "./curve_data.js";
import * as ink from "./chart_style.js";
import { change, inner, isShare, measure, short, smooth, thin } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";
import uPlot from "./uplot.js";

const REDRAW_MS = 1000;
/** Above this number of lines, draw no bands: they would hide each other. */
const MOST_BANDS = 4;
/** From this number of points on, uPlot itself draws no more than pixels can show. */
const LEAST_THINNED = 2000;
/** Link the first NaN or infinite value of at most this many lines. */
const MOST_LINKS = 3;
/** Keys that read a chart, zoom it and pin its values. */
const KEYS = /^(Arrow.*|Page.*|Home|End|Enter|Escape|[-+=0])$/;
/** Charts that share a zoom, by group. */
const groups = new Map();

export class Chart {
  /**
   * @param {HTMLElement} host a `.plot` beside a `.read` line, in a `.chart`; its `data-y` is the
   *   title of the y axis, `data-x` of the x axis, and its minimum height that of the chart
   * @param {{title: string, group: string, unit: string,
   *          series: {key: string, label: string, hue: number, dash: number, n?: number,
   *                    isNoisy?: boolean, isMarked?: boolean, better?: string}[],
   *          zoom?: {min: number, max: number} | null,
   *          look?: {isLog?: boolean, isXLog?: boolean, isClipped?: boolean},
   *          brokenAt?: (key: string, step: number) => string}} options noisy series are smoothed,
   *   marked ones have a ring at each point, and the best value of those that are better `lower`
   *   or `higher` has a star; `brokenAt` returns the URL that explains a step with a NaN or
   *   infinite value
   */
  constructor(host, { title, group, unit = "step", series, zoom = null, look = {}, brokenAt }) {
    Object.assign(this, { host, title, group, unit, series, zoom, look, brokenAt });
    Object.assign(this, { weight: 0, drawnAt: -Infinity, hidden: new Set(), shape: null });
    this.card = host.closest(".chart") ?? host.parentElement;
    this.hasBands = series.length <= MOST_BANDS || series.some(({ n }) => n > 1);
    /** Lines of the plot for one series. */
    this.width = this.hasBands ? 4 : 2;
    this.curves = new Curves(series.map((one) => one.key));
    this.count = this.card.querySelector(".broken");
    if (!groups.has(group)) groups.set(group, new Set());
    groups.get(group).add(this);
    this.#watch();
  }

  load(x, byName) {
    this.curves.load(x, byName);
    this.host.toggleAttribute("data-empty", this.curves.isEmpty);
    this.refresh();
  }

  /** Show finer data of the zoomed range, unless the zoom has changed. */
  refine(range, x, byName) {
    if (this.zoom?.min !== range.min || this.zoom.max !== range.max) return;
    this.curves.refine(range, x, byName);
    this.drawnAt = -Infinity;
    this.refresh();
  }

  push(place, values) {
    this.curves.push(place, values);
    this.refresh();
  }

  /** Add a point of one series at its position among those of the others. */
  insert(place, key, value, step) {
    this.curves.insert(place, this.curves.names.indexOf(key), value, step);
    this.refresh();
  }

  smoothBy(weight) {
    if (weight === this.weight) return;
    this.weight = weight;
    this.remake();
  }

  /** Change how the axes are drawn. */
  lookAs(look) {
    this.look = look;
    this.remake();
  }

  /** Draw the curves in another shape, such as differences; null draws their values. */
  shapeAs(shape) {
    this.shape = shape;
    this.#name();
    this.remake();
  }

  /** The title, with how the curves are drawn. */
  get heading() {
    return this.shape?.heading(this.title) ?? this.title;
  }

  /** The values that lines stand for: those drawn, unless they are only moved apart. */
  get told() {
    return this.shape && !this.shape.isMoved ? this.shape.draw(this) : this.curves.series;
  }

  /** The metric that is drawn; of several, which share a unit, the first. */
  get metric() {
    const { key, keys } = this.host.dataset;
    return (keys ?? key ?? "").split(",")[0];
  }

  /** Format a value; of a difference with its sign. */
  write(value) {
    return this.shape?.name === "difference" ? change(value, this.metric) : measure(value, this.metric);
  }

  /** Hide some series. */
  hide(keys) {
    this.hidden = keys;
    for (const box of this.card.querySelectorAll("[data-toggle]")) box.checked = !keys.has(box.dataset.toggle);
    this.remake();
  }

  /** Highlight one series, or none. */
  focusOn(key) {
    const k = this.curves.names.indexOf(key);
    this.plot?.setSeries(k < 0 ? null : (k + 1) * this.width, { focus: true });
  }

  remake() {
    this.drawnAt = -Infinity;
    if (this.plot) this.#make();
  }

  /** Draw immediately, ignoring the throttle. */
  draw() {
    clearTimeout(this.waiting);
    this.#draw();
  }

  /** Draw soon: at most once a second, and only while on screen. */
  refresh() {
    if (!this.isSeen || this.waiting) return;
    const wait = Math.max(0, REDRAW_MS - (performance.now() - this.drawnAt));
    this.waiting = setTimeout(() => requestAnimationFrame(() => this.#draw()), wait);
  }

  zoomTo(range) {
    this.zoom = range;
    this.#offerReset();
    this.drawnAt = -Infinity;
    this.refresh();
  }

  dispose() {
    this.ended.abort();
    clearTimeout(this.waiting);
    this.observers.forEach((one) => one.disconnect());
    groups.get(this.group)?.delete(this);
    this.plot?.destroy();
    this.plot = null;
    this.isSeen = false;
  }

  #watch() {
    this.ended = new AbortController();
    const { signal } = this.ended;
    const resize = new ResizeObserver(() => this.plot?.setSize(this.#size()));
    const look = new IntersectionObserver(
      ([entry]) => {
        this.isSeen = entry.isIntersecting;
        this.refresh();
      },
      { rootMargin: "100px" },
    );
    resize.observe(this.host);
    look.observe(this.host);
    this.observers = [resize, look];
    const remake = () => this.remake();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", remake, { signal });
    document.addEventListener("themechange", remake, { signal });
    // In print, draw all charts, in print colours.
    matchMedia("print").addEventListener("change", ({ matches }) => this.#print(matches), { signal });
    this.#name();
    this.#offerReset();
    for (const name of ["pointerover", "focusin"]) this.card.addEventListener(name, () => this.#equip(), { signal, once: true });
    this.card.addEventListener("click", async (event) => (await this.#equip())?.onClick(event), { signal });
    this.card.addEventListener("change", async ({ target }) => (await this.#equip())?.onChange(target), { signal });
    this.host.addEventListener("dblclick", () => this.zoomAll(null), { signal });
    this.host.addEventListener("keydown", (event) => this.#onKey(event), { signal });
  }

  #name() {
    const choice = this.series.length > 1 ? phrase(", up and down choose a line") : "";
    this.host.tabIndex = 0;
    this.host.setAttribute("role", "application");
    this.host.setAttribute("aria-roledescription", phrase("line chart"));
    const keys = phrase("{title}. Left and right arrow keys read its values{choice}. Plus and minus zoom, Enter pins the values.", { title: this.heading, choice });
    this.host.setAttribute("aria-label", keys);
  }

  async #onKey(event) {
    if (!KEYS.test(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key !== "Escape") event.preventDefault();
    (await this.#equip())?.onKey(event);
  }

  /** Load what pointer and keys need, for all charts of the group: their cursors move together. */
  #equip() {
    for (const chart of groups.get(this.group)) chart.#load();
    return this.loading;
  }

  #load() {
    this.loading ??= import("./chart_tools.js").then(({ Tools }) => {
      if (!this.ended.signal.aborted) this.tools = new Tools(this);
      return this.tools;
    });
  }

  #offerReset() {
    const button = this.card.querySelector("[data-unzoom]");
    if (button) button.hidden = !this.zoom;
  }

  #print(isBeginning) {
    if (isBeginning && !this.curves.isEmpty) this.#make();
    else this.remake();
  }

  #draw() {
    this.waiting = 0;
    this.drawnAt = performance.now();
    if (!this.isSeen || this.curves.isEmpty) return;
    this.host.removeAttribute("data-empty");
    if (!this.plot) return this.#make();
    const read = this.tools?.place;
    this.plot.setData(this.#data(), !this.zoom);
    if (this.zoom) this.plot.setScale("x", this.zoom);
    this.#tellDrawn();
    // Keep the position of the keyboard cursor.
    if (read !== undefined) this.tools.goTo(read);
  }

  #make() {
    this.plot?.destroy();
    const { isXLog } = this.look;
    const { isLog } = this;
    this.broken = ink.colour("--bad");
    this.plot = new uPlot(
      {
        ...this.#size(),
        legend: { show: false },
        padding: [10, 10, 0, 0],
        cursor: { sync: { key: this.group }, drag: { x: true, y: false, setScale: false, click: () => {} } },
        focus: { alpha: 0.2 },
        scales: {
          x: { time: this.unit === "wall", distr: isXLog ? 3 : 1 },
          y: { distr: isLog ? 3 : 1, ...this.#range() },
        },
        axes: this.#axes(),
        series: [{}, ...this.series.flatMap((one) => this.#lines(one))],
        bands: this.hasBands ? ink.bands(this.series) : [],
        hooks: {
          setCursor: [(plot) => this.tools?.point(plot)],
          setSelect: [(plot) => this.#onSelect(plot)],
          draw: [(plot) => this.#drawn(plot)],
        },
      },
      this.#data(),
      this.host,
    );
    this.plot.root.querySelector("canvas").setAttribute("aria-hidden", "true");
    if (this.zoom) this.plot.setScale("x", this.zoom);
    this.#tellDrawn();
  }

  #axes() {
    const { x, y } = this.host.dataset;
    const titles = { x: x ?? phrase("Step"), y: this.shape?.title(y) ?? y };
    const [below, up] = ink.axes(this.unit, titles, isShare(this.metric) ? "share" : this.metric.endsWith("_bytes") ? "bytes" : "");
    // Heights that mean nothing have no numbers.
    return [below, this.shape?.isMoved ? { ...up, values: (_, ticks) => ticks.map(() => "") } : up];
  }

  /** How far the y axis reaches, unless uPlot is to say. */
  #range() {
    if (this.look.isClipped) return { range: () => this.#inner() };
    // What stays 0 is drawn up to 1: uPlot would take an axis to 100.
    if (!this.shape) return !this.isLog ? { range: (_, low, high) => (low || high ? uPlot.rangeNum(low, high, 0.1, true) : [0, 1]) } : {};
    // Differences that are all zero need room, too.
    return { range: (_, low, high) => (low === high ? [(low ?? 0) - 1, (high ?? 0) + 1] : uPlot.rangeNum(low, high, 0.1, true)) };
  }

  /** Whether the y axis is logarithmic: differences may be negative, and heights moved apart mean nothing. */
  get isLog() {
    return Boolean(this.look.isLog && !this.shape);
  }

  #lines(series) {
    const { weight, hasBands, hidden } = this;
    const isBehind = Boolean(series.isNoisy && weight);
    return ink.lines(series, { isBehind, hasBands, isShown: !hidden.has(series.key) });
  }

  #data() {
    const { x, series } = this.curves;
    this.shown = this.shape ? this.shape.draw(this) : series;
    const columns = this.shown.flatMap(({ mean, min, max }, k) => {
      const weight = this.series[k].isNoisy ? this.weight : 0;
      const lines = [mean, weight ? smooth(mean, weight) : mean.map(() => null)];
      return this.hasBands ? [min, max, ...lines] : lines;
    });
    return positive(thin([x, ...columns], LEAST_THINNED), this.isLog, this.look.isXLog);
  }

  /** Return the range of the y axis without outliers. */
  #inner() {
    const { min, max } = this.zoom ?? { min: -Infinity, max: Infinity };
    const inside = (place) => place >= min && place <= max;
    const values = this.series
      .flatMap(({ key }, k) => (this.hidden.has(key) ? [] : this.shown[k].mean))
      .filter((value, i) => value !== null && inside(this.curves.x[i % this.curves.x.length]));
    return inner(this.isLog ? values.filter((value) => value > 0) : values, this.isLog);
  }

  #size() {
    const { minHeight } = getComputedStyle(this.host);
    return { width: Math.max(200, this.host.clientWidth), height: parseFloat(minHeight) || 240 };
  }

  #onSelect(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const range = { min: plot.posToVal(left, "x"), max: plot.posToVal(left + width, "x") };
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.zoomAll(range);
  }

  zoomAll(range) {
    for (const chart of groups.get(this.group)) chart.zoomTo(range);
    this.host.dispatchEvent(new CustomEvent("chart-zoom", { bubbles: true, detail: range }));
  }

  #drawn(plot) {
    const { min, max } = plot.scales.x;
    this.host.dataset.seen = `${min}..${max}`;
    ink.mark(plot, this.curves.broken, this.broken);
    if (!this.shape) ink.stars(plot, this.#bests(), (value) => this.write(value));
    this.tools?.drawPin(plot);
    this.host.dispatchEvent(new CustomEvent("chart-drawn", { bubbles: true, detail: this }));
  }

  /** Return the best value of each shown series that has one, the best of all first. */
  #bests() {
    const found = this.series.flatMap(({ key, hue, better }, k) => {
      if (!better || this.hidden.has(key)) return [];
      const one = this.curves.best(k, better);
      return one ? [{ ...one, hue, rank: better === "lower" ? one.value : -one.value }] : [];
    });
    return found.sort((a, b) => a.rank - b.rank);
  }

  #tellDrawn() {
    this.host.dataset.points = this.plot.data[0].length;
    this.#nameDrawn();
    const places = this.curves.broken;
    if (!this.count || !places.length) return;
    const first = `${this.unit} ${short(places[0])}`;
    this.count.textContent = phrase("▼ {count} NaN or infinite, first at {first}", { count: short(places.length), first });
    if (!this.brokenAt) return;
    this.count.textContent = phrase("▼ {count} NaN or infinite:", { count: short(places.length) });
    const broken = this.curves.series.map((one, k) => ({ ...one, ...this.series[k] }));
    const links = broken.filter((one) => typeof one.first_broken === "number").slice(0, MOST_LINKS);
    for (const { first_broken: step, broken_run: run, key, label } of links) {
      const link = document.createElement("a");
      link.href = this.brokenAt(run ?? key, step);
      link.textContent = phrase("{label} at step {step}", { label, step: short(step) });
      this.count.append(" ", link);
    }
  }

  /** Show the names of lines that have values. */
  #nameDrawn() {
    for (const [k, { key }] of this.series.entries()) {
      const { mean, non_finite: broken } = this.curves.series[k];
      const box = this.card.querySelector(`[data-toggle="${CSS.escape(key)}"]`);
      if (box) box.parentElement.hidden = !broken.length && mean.every((value) => value === null);
    }
  }

  /** Return the values of all shown series at a position, largest first, and where they are drawn. */
  valuesAt(place) {
    const known = this.curves.x.findLastIndex((one) => one <= place);
    const told = this.shape?.isMoved ? this.curves.series : (this.shown ?? this.curves.series);
    return this.series
      .map((one, k) => ({ ...one, value: valueAt(told[k].mean, known), drawn: valueAt(this.shown?.[k].mean ?? [], known) }))
      .map((one) => ({ ...one, text: this.write(one.value) }))
      .filter(({ key, value }) => value !== null && !this.hidden.has(key))
      .sort((a, b) => b.value - a.value);
  }
}

/** Drop values that a logarithmic axis cannot show. */
function positive(data, isLog, isXLog) {
  const kept = data[0].map((place) => !isXLog || place > 0);
  const fits = (value) => (isLog && value <= 0 ? null : value);
  if (!isLog && !isXLog) return data;
  return data.map((column, c) =>
    column.filter((_, i) => kept[i]).map((value) => (c ? fits(value) : value)),
  );
}
