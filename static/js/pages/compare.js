// Live curves of several runs in one chart; the URL holds what is shown.
import { Chart } from "../charts/line_chart.js";
import { fill } from "../live/live_figures.js";
import { phrase } from "../i18n/translations.js";
import { follow } from "../live/event_stream.js";
import { Finer, put, span } from "./comparison_url.js";

const FIELDS = { relative_step: "step", wall: "seconds" };
const AXES = new Set(["step", "relative_step", "epoch", "tokens", "seconds", "wall"]);
/** Curves with more points than this are downsampled again by the server. */
const MOST_POINTS = 4000;
/** Group means cannot be extended point by point: fetch them again at most this often. */
const AGAIN_MS = 3000;

export default function start(root) {
  const page = new Page(root);
  return () => page.dispose();
}

class Page {
  constructor(root) {
    Object.assign(this, { root, filtered: new Set(), attempts: new Map(), last: 0 });
    this.unit = root.dataset.unit;
    this.lines = JSON.parse(root.dataset.lines);
    this.owners = JSON.parse(root.dataset.owners);
    this.runs = root.dataset.runs.split(",");
    this.isGrouped = root.dataset.group !== "";
    this.ended = new AbortController();
    const part = (range) => this.charts.forEach((chart) => this.#refine(chart, range));
    this.finer = new Finer(this.ended.signal, { whole: () => this.load(), part });
    this.charts = [...root.querySelectorAll("[data-chart]")].map((card) => this.#draw(card));
    this.#listen();
    this.#relate();
    this.#smooth();
    this.#look();
    this.#hide();
    this.stop = () => {};
    this.shapes = import("../charts/curve_shapes.js");
    this.#shape();
    this.load().then(() => this.#follow());
  }

  dispose() {
    this.ended.abort();
    this.stop();
    this.relation?.dispose();
    this.charts.forEach((chart) => chart.dispose());
  }

  /** Fetch all curves, one metric at a time, those on screen first. */
  async load(charts = this.charts) {
    const seen = (chart) => chart.host.getBoundingClientRect().top < innerHeight;
    for (const chart of charts.toSorted((a, b) => seen(b) - seen(a))) {
      if (this.ended.signal.aborted) return;
      await this.#fetch(chart);
    }
  }

  async #fetch(chart) {
    const { key } = chart.host.dataset;
    const missed = [];
    chart.waitingFor = missed;
    const { signal } = this.ended;
    const answer = await fetch(this.#address(key), { signal }).catch(() => null);
    // Requested again in the meantime: use the newer response.
    if (chart.waitingFor !== missed) return;
    if (!answer?.ok) chart.waitingFor = null;
    if (!answer?.ok) return;
    const { x, curves, last_id: last, offsets } = await answer.json();
    const { zoom } = chart;
    const finer = zoom && (await this.finer.fetch(this.#address(key), zoom));
    if (chart.waitingFor !== missed) return;
    chart.waitingFor = null;
    chart.load(x, this.#owned(curves[key]));
    if (finer) chart.refine(zoom, finer.x, this.#owned(finer.curves[key]));
    this.offsets = offsets;
    this.last ||= last;
    missed.forEach((rows) => this.#add(chart, rows));
  }

  /** A group has the id of its first run; without that run it is still the same group. */
  #owned(curves = {}) {
    return Object.fromEntries(Object.entries(curves).map(([id, one]) => [this.owners[id] ?? id, one]));
  }

  /** Show finer curves of the range that a chart is zoomed to. */
  async #refine(chart, range) {
    const { key } = chart.host.dataset;
    const missed = [];
    chart.waitingFor ??= missed;
    const told = await this.finer.fetch(this.#address(key), range);
    if (told) chart.refine(range, told.x, this.#owned(told.curves[key]));
    if (chart.waitingFor !== missed) return;
    chart.waitingFor = null;
    missed.forEach((rows) => this.#add(chart, rows));
  }

  #address(key) {
    const address = new URL(this.root.dataset.curves, location.href);
    address.searchParams.set("keys", key);
    const left = this.runs.filter((run) => !this.filtered.has(run));
    if (this.isGrouped && left.length) address.searchParams.set("runs", left.join(","));
    return address;
  }

  #draw(card) {
    const host = card.querySelector(".plot");
    const isNoisy = host.hasAttribute("data-noisy");
    const { better } = host.dataset;
    const series = this.lines.map(({ id, ...line }) => ({ key: String(id), isNoisy, isMarked: Boolean(better), better, ...line }));
    const chart = new Chart(host, {
      title: host.dataset.title,
      group: "compare",
      unit: this.unit,
      series,
      zoom: span(this.root.dataset.zoom),
      brokenAt: (id, step) => `/runs/${id}/broken?step=${step}`,
    });
    return chart;
  }

  #listen() {
    const { signal } = this.ended;
    const on = (name, hear) => this.root.addEventListener(name, hear, { signal });
    on("input", (event) => event.target.matches("[data-smooth]") && this.#smooth(true));
    on("change", (event) => this.#onChange(event.target));
    on("click", (event) => this.#onClick(event));
    on("chart-zoom", ({ detail }) => this.#zoomed(detail));
    on("chart-toggle", (event) => this.#toggle(event));
    on("chart-drawn", ({ detail }) => this.#tellShape(detail));
    const stand = (chip) => this.charts.forEach((one) => one.focusOn(chip?.dataset.show ?? null));
    const chip = (event) => event.target.closest?.(".run-chip")?.querySelector("[data-show]");
    for (const name of ["pointerover", "focusin"]) on(name, (event) => chip(event) && stand(chip(event)));
    for (const name of ["pointerout", "focusout"]) on(name, (event) => chip(event) && stand(null));
  }

  #onChange(field) {
    if (field.matches("[data-show]")) this.#hide(true);
    if (field.matches("[data-look]")) this.#look(field);
    if (field.matches("[data-shape]")) this.#shape(true);
    // A range of one axis has no meaning on another.
    if (field.name === "x") put(this.root, "zoom", "");
  }

  #onClick({ target }) {
    if (target.closest("[data-plot-as]")) this.#plotAs(target.closest("[data-plot-as]").dataset.plotAs);
    if (target.closest("[data-unbrush]")) this.relation?.clear();
    if (target.closest("[data-overlap]")) this.#showDifference(target.closest("[data-chart]"));
  }

  /** A line hidden in the legend of one chart is hidden in all. */
  #toggle(event) {
    const { key, isShown } = event.detail;
    event.preventDefault();
    this.root.querySelector(`[data-show="${key}"]`).checked = isShown;
    this.#hide(true);
  }

  #zoomed(range) {
    put(this.root, "zoom", range ? `${range.min.toPrecision(8)}..${range.max.toPrecision(8)}` : "");
    this.finer.zoomed(range);
  }

  #smooth(isNews = false) {
    const slider = this.root.querySelector("[data-smooth]");
    slider.nextElementSibling.textContent = Number(slider.value).toFixed(2);
    if (isNews) put(this.root, "smooth", slider.value);
    for (const chart of this.charts) {
      if (chart.host.hasAttribute("data-noisy")) chart.smoothBy(Number(slider.value));
    }
  }

  #look(changed) {
    const is = (name) => this.root.querySelector(`[data-look][name=${name}]`).checked;
    if (changed) put(this.root, changed.name, changed.checked ? changed.value : "");
    const look = { isLog: is("y"), isXLog: is("xscale"), isClipped: is("clip") };
    this.charts.forEach((chart) => chart.lookAs(look));
  }

  /** Draw values, differences from the baseline, or curves moved apart. */
  async #shape(isNews = false) {
    const field = this.root.querySelector("[data-shape]");
    const { value } = field;
    if (isNews) put(this.root, "curves", value);
    const { Difference, Offset } = await this.shapes;
    if (this.ended.signal.aborted || field.value !== value) return;
    const shape = value === "difference" ? this.#difference(Difference) : value === "offset" ? new Offset() : null;
    this.root.querySelector("[data-look][name=y]").disabled = Boolean(shape);
    this.root.querySelector("[data-shape-words]").textContent = shape?.sentence ?? "";
    this.charts.forEach((chart) => chart.shapeAs(shape));
  }

  #difference(Difference) {
    const key = String(this.owners[this.root.dataset.base] ?? this.root.dataset.base);
    const { label, n } = this.lines.find(({ id }) => String(id) === key);
    return new Difference(key, n > 1 ? label : `${label} #${key}`);
  }

  /** Say what a chart does not show by itself: curves that overlap, or no difference at all. */
  async #tellShape(chart) {
    const { overlap } = await this.shapes;
    const place = chart.card.querySelector(".overlap");
    if (!chart.plot) return;
    const { count, all, isSame } = chart.shape ? {} : overlap(chart);
    const words = count === all ? phrase("Curves overlap: show the difference") : phrase("{count} of {all} curves overlap: show the difference", { count, all });
    place.firstElementChild.hidden = !count || isSame;
    place.firstElementChild.textContent = count && !isSame ? words : "";
    place.lastElementChild.textContent = isSame ? phrase("These curves are identical.") : chart.shape?.note(chart) ?? "";
  }

  #showDifference(card) {
    const field = this.root.querySelector("[data-shape]");
    field.value = "difference";
    this.#shape(true);
    card.querySelector(".plot").focus();
  }

  #hide(isNews = false) {
    const shut = [...this.root.querySelectorAll("[data-show]:not(:checked)")].map((box) => box.dataset.show);
    if (isNews) put(this.root, "hide", shut.join(","));
    const without = new Set([...shut, ...(this.isGrouped ? [] : this.filtered)]);
    this.charts.forEach((chart) => chart.hide(without));
  }

  /** Draw only the runs selected by the brush. */
  filter(out) {
    this.filtered = out;
    this.#hide();
    if (this.isGrouped) this.load();
  }

  #relate() {
    const { plot, brush } = this.root.querySelector("[data-relations]").dataset;
    if (plot || brush) this.#plotAs(plot || "parallel");
  }

  async #plotAs(kind) {
    const section = this.root.querySelector("[data-relations]");
    const isShut = this.relation?.kind === kind;
    this.relation?.dispose();
    this.relation = null;
    put(this.root, "plot", isShut ? "" : kind);
    for (const button of section.querySelectorAll("[data-plot-as]")) {
      button.setAttribute("aria-pressed", String(!isShut && button.dataset.plotAs === kind));
    }
    if (isShut) return;
    const { default: Relation } = await (kind === "scatter"
      ? import("../charts/scatter.js") : import("../charts/parallel_coordinates.js"));
    if (this.ended.signal.aborted) return;
    this.relation = new Relation(section, this);
    this.relation.kind = kind;
    this.relation.start();
  }

  #follow() {
    if (this.ended.signal.aborted) return;
    this.stop = follow(
      this.root.dataset.live,
      { metrics: (rows) => this.#hear(rows), runs: (runs) => this.#stand(runs) },
      String(this.last),
    );
  }

  #hear(rows) {
    const isValidated = Object.values(rows).some((told) => told.some(({ values }) => "eval_loss" in values));
    if (isValidated) this.root.dispatchEvent(new Event("runs-news"));
    if (this.isGrouped) return this.#again();
    for (const chart of this.charts) {
      if (chart.waitingFor) chart.waitingFor.push(rows);
      else this.#add(chart, rows);
      if (chart.curves.x.length > MOST_POINTS && !chart.waitingFor) this.#fetch(chart);
    }
  }

  #add(chart, rows) {
    const { key } = chart.host.dataset;
    for (const [run, told] of Object.entries(rows)) {
      for (const row of told) {
        if (key in row.values) chart.insert(this.#place(run, row), run, row.values[key], row.step);
      }
    }
  }

  #place(run, row) {
    if (!AXES.has(this.unit)) return row.values[this.unit];
    return row[FIELDS[this.unit] ?? this.unit] + (this.offsets?.[run] ?? 0);
  }

  #again() {
    if (this.waiting) return;
    this.waiting = setTimeout(async () => {
      await this.load();
      this.waiting = 0;
    }, AGAIN_MS);
  }

  /** Update the runs' statuses; a restarted run loses its earlier metrics. */
  #stand(runs) {
    for (const run of runs) {
      const { id, status, step } = run;
      for (const place of this.root.querySelectorAll(`[data-of="${id}"]`)) fill(place, run);
      const spot = this.root.querySelector(`[data-status-of="${id}"] .status`);
      if (spot && !spot.classList.contains(status)) {
        spot.className = `status ${status}`;
        spot.textContent = phrase(status);
        this.root.dispatchEvent(new Event("runs-news"));
      }
      if (step < (this.attempts.get(id) ?? 0)) this.load();
      this.attempts.set(id, step);
    }
  }
}
