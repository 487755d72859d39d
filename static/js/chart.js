// A line chart on uPlot: smoothing over the raw line, the band between extremes, marks where
// numbers broke, zoom and cursor shared by a group, and reading by keyboard.
import { Curves } from "./curves.js";
import { short, smooth, thin } from "./numbers.js";
import uPlot from "./uplot.js";

const HEIGHT = 220;
const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
const REDRAW_MS = 1000;
const KEYS = {
  ArrowLeft: -1,
  ArrowRight: 1,
  PageUp: -50,
  PageDown: 50,
  Home: -Infinity,
  End: Infinity,
};

/** Charts that zoom together, by group. */
const groups = new Map();

export class Chart {
  /**
   * @param {HTMLElement} host a `.plot` beside a `.read` line
   * @param {{title: string, group: string, unit: string,
   *          series: {key: string, label: string, hue: number, dash: number,
   *                    isNoisy?: boolean}[]}} options noisy series are smoothed
   */
  constructor(host, { title, group, unit = "step", series }) {
    Object.assign(this, { host, group, unit, series, weight: 0, zoom: null, drawnAt: -Infinity });
    this.curves = new Curves(series.map((one) => one.key));
    this.read = host.parentElement.querySelector(".read");
    this.count = host.parentElement.querySelector(".broken");
    host.tabIndex = 0;
    host.setAttribute("role", "application");
    host.setAttribute("aria-roledescription", "line chart");
    host.setAttribute("aria-label", `${title}. Left and right arrow keys read its values.`);
    if (!groups.has(group)) groups.set(group, new Set());
    groups.get(group).add(this);
    this.#watch();
  }

  load(x, byName) {
    this.curves.load(x, byName);
    this.host.toggleAttribute("data-empty", this.curves.isEmpty);
    this.refresh();
  }

  push(place, values) {
    this.curves.push(place, values);
    this.refresh();
  }

  smoothBy(weight) {
    this.weight = weight;
    this.drawnAt = -Infinity;
    if (this.plot) this.#make();
  }

  /** Draw soon: at most once a second, and only while on screen. */
  refresh() {
    if (!this.isSeen || this.waiting) return;
    const wait = Math.max(0, REDRAW_MS - (performance.now() - this.drawnAt));
    this.waiting = setTimeout(() => requestAnimationFrame(() => this.#draw()), wait);
  }

  zoomTo(range) {
    this.zoom = range;
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
    const remake = () => this.plot && this.#make();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", remake, { signal });
    document.addEventListener("themechange", remake, { signal });
    this.host.addEventListener("dblclick", () => this.#zoomAll(null), { signal });
    this.host.addEventListener("keydown", (event) => this.#onKey(event), { signal });
    // Cursors move together: only the chart that is read by keyboard speaks.
    const speak = (how) => () => this.read?.setAttribute("aria-live", how);
    this.host.addEventListener("focus", speak("polite"), { signal });
    this.host.addEventListener("blur", speak("off"), { signal });
  }

  #draw() {
    this.waiting = 0;
    this.drawnAt = performance.now();
    if (!this.isSeen || this.curves.isEmpty) return;
    this.host.removeAttribute("data-empty");
    if (!this.plot) return this.#make();
    const read = this.plot.data[0][this.plot.cursor.idx];
    this.plot.setData(this.#data(), !this.zoom);
    if (this.zoom) this.plot.setScale("x", this.zoom);
    this.#tellDrawn();
    // Who reads by keyboard stays at the point read, though new ones move it on the screen.
    if (document.activeElement === this.host && read !== undefined) this.#goTo(read);
  }

  #goTo(place) {
    this.plot.setCursor({ left: this.plot.valToPos(place, "x"), top: HEIGHT / 4 });
  }

  #make() {
    this.plot?.destroy();
    const ink = colour("--ink-2");
    const axis = {
      stroke: ink,
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: `11px ${getComputedStyle(document.body).fontFamily}`,
      values: (_, ticks) => ticks.map(short),
    };
    this.broken = colour("--bad");
    this.plot = new uPlot(
      {
        ...this.#size(),
        legend: { show: false },
        padding: [10, 10, 0, 0],
        cursor: { sync: { key: this.group }, drag: { x: true, y: false, setScale: false } },
        scales: { x: { time: false } },
        axes: [{ ...axis, size: 28 }, { ...axis, size: 52 }],
        series: [{}, ...this.series.flatMap((one) => this.#lines(one))],
        bands: this.series.map(({ hue }, k) => ({
          series: [k * 4 + 2, k * 4 + 1],
          fill: faint(colour(`--series-${hue}`), 0.14),
        })),
        hooks: {
          setCursor: [(plot) => this.#say(plot.cursor.idx)],
          setSelect: [(plot) => this.#onSelect(plot)],
          draw: [(plot) => this.#mark(plot)],
        },
      },
      this.#data(),
      this.host,
    );
    this.plot.root.querySelector("canvas").setAttribute("aria-hidden", "true");
    if (this.zoom) this.plot.setScale("x", this.zoom);
    this.#tellDrawn();
  }

  /** A series is four lines: least, greatest, raw, and smoothed over it. */
  #lines({ hue, dash, isNoisy }) {
    const stroke = colour(`--series-${hue}`);
    const common = { points: { show: false }, spanGaps: true };
    const bound = { ...common, stroke: "transparent", width: 0 };
    const line = { ...common, stroke, width: 1.5, dash: DASHES[dash] };
    const points = { show: (plot) => plot.data[0].length < 40, size: 5, fill: stroke };
    const behind = { ...line, stroke: faint(stroke, 0.3), width: 1 };
    // One point makes no line: without a mark, a run's first step would not be seen. Where nothing
    // is smoothed, the upper line is empty and marks nothing.
    const marked = { ...line, points };
    return [bound, bound, isNoisy && this.weight ? behind : marked, marked];
  }

  #data() {
    const { x, series } = this.curves;
    const columns = series.flatMap(({ mean, min, max }, k) => {
      const weight = this.series[k].isNoisy ? this.weight : 0;
      return [min, max, mean, weight ? smooth(mean, weight) : mean.map(() => null)];
    });
    return thin([x, ...columns], Math.max(200, this.host.clientWidth));
  }

  #size() {
    return { width: Math.max(200, this.host.clientWidth), height: HEIGHT };
  }

  #onSelect(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const range = { min: plot.posToVal(left, "x"), max: plot.posToVal(left + width, "x") };
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#zoomAll(range);
  }

  #zoomAll(range) {
    for (const chart of groups.get(this.group)) chart.zoomTo(range);
  }

  /** Red triangles on the upper edge: here a number was not finite. */
  #mark(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.fillStyle = this.broken;
    for (const place of this.curves.broken) {
      const x = plot.valToPos(place, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x - 5, bbox.top - 8);
      ctx.lineTo(x + 5, bbox.top - 8);
      ctx.lineTo(x, bbox.top + 2);
      ctx.fill();
    }
    ctx.restore();
  }

  #tellDrawn() {
    this.host.dataset.points = this.plot.data[0].length;
    const places = this.curves.broken;
    if (!this.count || !places.length) return;
    const first = `${this.unit} ${short(places[0])}`;
    this.count.textContent = `▼ ${places.length} not finite, first at ${first}`;
  }

  /** Put the values under the cursor into words. */
  #say(i) {
    if (!this.read || i === null || i === undefined) return;
    const place = this.plot.data[0][i];
    const known = this.curves.x.findLastIndex((one) => one <= place);
    const values = this.series.map((one, k) => {
      const value = short(this.curves.at(k, known));
      return this.series.length > 1 ? `${one.label} ${value}` : value;
    });
    this.read.textContent = `${this.unit} ${short(place)}: ${values.join(", ")}`;
  }

  #onKey(event) {
    if (event.key === "Escape") return this.#zoomAll(null);
    const by = KEYS[event.key];
    if (by === undefined || !this.plot) return;
    event.preventDefault();
    const [x] = this.plot.data;
    const from = this.plot.cursor.idx ?? x.length - 1;
    const to = Math.min(x.length - 1, Math.max(0, from + by * (event.shiftKey ? 10 : 1)));
    this.#goTo(x[to]);
  }
}

const probe = document.createElement("span");

/** Resolve a custom property to a colour that a canvas understands. */
function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.hidden = true;
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

function faint(stroke, alpha) {
  const [, parts] = stroke.match(/^rgb\((.*)\)$/) ?? [];
  return parts ? `rgb(${parts.replaceAll(",", "")} / ${alpha})` : stroke;
}
