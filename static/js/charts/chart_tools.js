// What a chart does with pointer and keys: values under the cursor, pinned values, zoom by key, its
// menu and its legend. Loaded with the first of them.
import { Reading } from "./chart_cursor.js";
import { colour } from "./chart_style.js";
import { remove, show } from "./value_table.js";

/** A click further than this from where the button went down was a drag. */
const STILL = 4;

export class Tools {
  /** @param {import("./line_chart.js").Chart} chart */
  constructor(chart) {
    Object.assign(this, { chart, pinned: null, reading: new Reading(chart) });
    const { signal } = chart.ended;
    const { card, host } = chart;
    host.addEventListener("mousedown", ({ clientX }) => (this.downAt = clientX), { signal });
    host.addEventListener("pointerleave", () => this.pinned === null && remove(chart), { signal });
    const shut = ({ relatedTarget }) => relatedTarget && !this.menu?.contains(relatedTarget) && this.#shutMenu();
    card.addEventListener("focusout", shut, { signal });
    document.addEventListener("click", ({ target }) => !this.menu?.contains(target) && this.#shutMenu(), { signal });
    if (chart.plot) this.point(chart.plot);
  }

  get menu() {
    return this.chart.card.querySelector(".chart-menu");
  }

  /** The position being read by keyboard, if any. */
  get place() {
    return this.reading.place;
  }

  goTo(place) {
    this.reading.goTo(place);
  }

  /** Show the values under the cursor, as text and, where the pointer is, as a table. */
  point(plot) {
    this.reading.point(plot);
    const { chart } = this;
    if (this.pinned !== null || !chart.host.matches(":hover")) return;
    const { left, top, idx } = plot.cursor;
    const place = plot.data[0][idx];
    if (place === undefined || top < 0) remove(chart);
    else show(chart, { place, left, top });
  }

  onKey(event) {
    const { chart } = this;
    if (!chart.plot) return;
    const by = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    if (by) this.#zoomBy(by);
    else if (event.key === "0") chart.zoomAll(null);
    else if (event.key === "Enter") this.#pinAt(chart.plot.cursor.idx);
    else if (event.key === "Escape") this.#leave();
    else this.reading.onKey(event);
  }

  async onClick({ target, clientX, clientY }) {
    const { chart } = this;
    const button = target.closest("button");
    if (target.closest(".values")) return button && this.unpin();
    if (target.closest(".u-over")) return this.#onPlot(clientX, clientY);
    if (!button) return;
    const { zoom, save } = button.dataset;
    if (zoom) this.#zoomBy(Number(zoom));
    if (button.matches("[data-unzoom]")) chart.zoomAll(null);
    if (!save) return;
    const exports = await import("./chart_export.js");
    exports[save](chart, button);
    if (save !== "table") this.#shutMenu();
  }

  /** Draw where values are pinned. */
  drawPin({ ctx, bbox, valToPos }) {
    if (this.pinned === null) return;
    const x = Math.round(valToPos(this.pinned, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    ctx.save();
    ctx.strokeStyle = colour("--accent");
    ctx.lineWidth = 2;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }

  unpin() {
    this.pinned = null;
    remove(this.chart);
    this.chart.plot?.redraw(false);
  }

  #leave() {
    if (this.pinned !== null) this.unpin();
    else this.chart.zoomAll(null);
  }

  #onPlot(clientX, clientY) {
    const { chart } = this;
    if (!chart.plot || Math.abs(clientX - (this.downAt ?? clientX)) > STILL) return;
    const { left, top } = chart.plot.over.getBoundingClientRect();
    const broken = clientY - top < 20 && this.#brokenAt(clientX - left);
    if (broken) location.assign(broken);
    else this.#pinAt(chart.plot.posToIdx(clientX - left));
  }

  /** The URL that explains the mark at a position on the upper edge. */
  #brokenAt(left) {
    const { plot, curves, series, brokenAt } = this.chart;
    const near = (place) => Math.abs(plot.valToPos(place, "x") - left) < 8;
    const k = curves.series.findIndex((one) => one.non_finite.some(near));
    if (k < 0 || !brokenAt) return "";
    const { first_broken: step, broken_run: run } = curves.series[k];
    return brokenAt(run ?? series[k].key, step);
  }

  #pinAt(index) {
    const { chart } = this;
    const [x] = chart.plot.data;
    const place = x[index ?? x.length - 1];
    if (place === undefined) return;
    if (place === this.pinned) return this.unpin();
    this.pinned = place;
    const [left, top] = [chart.plot.valToPos(place, "x"), chart.plot.cursor.top];
    show(chart, { place, left, top: Math.max(0, top) }, true);
    chart.plot.redraw(false);
  }

  /** Zoom around the cursor, or else the middle. */
  #zoomBy(by) {
    const { chart } = this;
    const { x } = chart.curves;
    const { min, max } = chart.plot.scales.x;
    const around = chart.plot.data[0][chart.plot.cursor.idx ?? -1] ?? (min + max) / 2;
    const range = { min: Math.max(x[0], around - (around - min) * by), max: Math.min(x.at(-1), around + (max - around) * by) };
    chart.zoomAll(range.min <= x[0] && range.max >= x.at(-1) ? null : range);
  }

  onChange(field) {
    if (field.dataset.toggle) this.#toggle(field.dataset.toggle, field.checked);
    if (field.matches("[data-log-y]")) this.chart.lookAs({ ...this.chart.look, isLog: field.checked });
  }

  /** Hide or show a line, unless the page does it for all its charts. */
  #toggle(key, isShown) {
    const { chart } = this;
    const detail = { key, isShown };
    if (!chart.host.dispatchEvent(new CustomEvent("chart-toggle", { bubbles: true, cancelable: true, detail }))) return;
    const hidden = new Set(chart.hidden);
    if (isShown) hidden.delete(key);
    else hidden.add(key);
    chart.hide(hidden);
  }

  #shutMenu() {
    if (this.menu) this.menu.open = false;
  }
}
