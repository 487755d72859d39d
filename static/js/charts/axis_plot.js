// Shared by parallel coordinates and scatter plots: axes, positions on them, and a brush per axis
// that selects the runs shown.
import { short } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";
import { put } from "../pages/comparison_url.js";

const SVG = "http://www.w3.org/2000/svg";
/** Padding at both ends of an axis, so that no mark touches the frame. */
export const ROOM = 0.04;

export class Relation {
  /** @param {HTMLElement} section @param page shows and hides runs */
  constructor(section, page) {
    Object.assign(this, { section, page, runs: page.runs, brushes: new Map() });
    this.host = section.querySelector("[data-relation]");
    this.axes = JSON.parse(section.dataset.relations).map((axis) => new Axis(axis));
    this.lines = new Map(page.lines.map((line) => [String(line.id), line]));
    this.#recall(section.dataset.brush);
  }

  start() {
    if (this.axes.length < 2) this.host.textContent = phrase("These runs differ too little to plot.");
    else this.draw();
    this.#offer(this.axes.length >= 2);
    if (this.brushes.size) this.apply();
  }

  dispose() {
    this.host.replaceChildren();
    this.#offer(false);
  }

  /** Tell the menu what to save: the values on some axes, and whose lines they are. */
  tell(axes) {
    const values = this.runs.map((run, place) => [`${this.lineOf(run).label} #${run}`, ...axes.map((axis) => axis.values[place])]);
    this.section.dataset.cells = JSON.stringify([[phrase("Run"), ...axes.map(({ label }) => label)], ...values]);
    this.section.dataset.legend = JSON.stringify(this.page.lines);
    this.#closeTable();
  }

  #offer(isDrawn) {
    this.section.querySelector("[data-relation-tools]").hidden = !isDrawn;
    this.#closeTable();
  }

  #closeTable() {
    this.section.querySelector(".as-table").hidden = true;
    this.section.querySelector("[data-save=table]").setAttribute("aria-pressed", "false");
  }

  /** The axes named in the URL, or else the first ones. */
  chosen(most) {
    const named = this.section.dataset.axes.split(",").filter(Boolean);
    const found = named.map((key) => this.axes.find((axis) => axis.key === key)).filter(Boolean);
    return found.length ? found : this.axes.slice(0, most);
  }

  choose(axes) {
    this.section.dataset.axes = axes.map(({ key }) => key).join(",");
    put(this.page.root, "axes", this.section.dataset.axes);
    this.draw();
  }

  clear() {
    this.brushes.clear();
    this.apply();
    this.draw();
  }

  /** Set or clear the brush of an axis: a range from 0 to 1 of its length. */
  brush(axis, range) {
    if (range) this.brushes.set(axis.key, [Math.min(...range), Math.max(...range)]);
    else this.brushes.delete(axis.key);
    this.apply();
  }

  isInside(place) {
    return [...this.brushes].every(([key, [low, high]]) => {
      const at = this.axes.find((axis) => axis.key === key)?.at(place);
      return at !== null && at >= low - 1e-9 && at <= high + 1e-9;
    });
  }

  apply() {
    const out = new Set(this.runs.filter((_, place) => !this.isInside(place)));
    const text = [...this.brushes].map(([key, range]) => {
      return `${key}:${this.axes.find((axis) => axis.key === key).describeRange(range)}`;
    });
    this.section.dataset.brush = text.join(";");
    this.host.querySelectorAll("[data-mark]").forEach((mark) => {
      mark.classList.toggle("faint", out.has(mark.dataset.mark));
    });
    this.page.filter(out);
    this.#tellFiltered(out);
  }

  /** Show only the runs inside the brush in each table and list. */
  #tellFiltered(out) {
    const { root, runs } = this.page;
    put(root, "brush", this.section.dataset.brush);
    const left = runs.length - out.size;
    for (const place of root.querySelectorAll("[data-of]")) place.hidden = out.has(place.dataset.of);
    for (const head of root.querySelectorAll("tr.group th")) head.colSpan = 1 + left;
    const words = root.querySelector("[data-filter-words]");
    words.textContent = out.size ? phrase("{left} of {all} runs are inside the brush. ", { left, all: runs.length }) : "";
    if (!out.size) return;
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "btn small", textContent: phrase("Show all") });
    button.dataset.unbrush = "";
    words.append(button);
  }

  lineOf(run) {
    return this.lines.get(String(this.page.owners[run] ?? run)) ?? { hue: 6, dash: 0, label: run };
  }

  #recall(text) {
    for (const part of text.split(";").filter((one) => one.includes(":"))) {
      const key = part.slice(0, part.indexOf(":"));
      const axis = this.axes.find((one) => one.key === key);
      const range = axis?.read(part.slice(key.length + 1));
      if (range) this.brushes.set(key, range);
    }
  }
}

/** An axis from 0 to 1: numbers to scale, categories evenly spaced. */
class Axis {
  constructor({ key, label, isNumber, values }) {
    Object.assign(this, { key, label, isNumber, values });
    const known = values.filter((value) => value !== null);
    this.names = [...new Set(known.map(String))].sort();
    [this.low, this.high] = isNumber ? [Math.min(...known), Math.max(...known)] : [0, this.names.length - 1];
    // Use a log scale for values spread over decades, such as learning rates.
    this.isLog = isNumber && this.low > 0 && this.high / this.low > 50;
  }

  at(place) {
    const value = this.values[place];
    return value === null ? null : this.share(this.isNumber ? value : this.names.indexOf(value));
  }

  share(value) {
    const [low, high, there] = [this.low, this.high, value].map((one) => (this.isLog ? Math.log(one) : one));
    return ROOM + (high === low ? 0.5 : (there - low) / (high - low)) * (1 - 2 * ROOM);
  }

  value(share) {
    const part = (share - ROOM) / (1 - 2 * ROOM);
    if (this.isLog) return this.low * (this.high / this.low) ** part;
    return this.low + part * (this.high - this.low);
  }

  /** The axis labels: their positions from 0 to 1, and their texts. */
  get ticks() {
    if (!this.isNumber) return this.names.map((name, i) => [this.share(i), name]);
    return [0, 0.25, 0.5, 0.75, 1].map((part) => {
      const share = ROOM + part * (1 - 2 * ROOM);
      return [share, this.#written(this.value(share))];
    });
  }

  #written(value) {
    return this.key.endsWith("_bytes") ? `${Number((value / 1e9).toPrecision(3))} GB` : short(value);
  }

  describeRange([low, high]) {
    if (this.isNumber) return `${this.value(low).toPrecision(6)}..${this.value(high).toPrecision(6)}`;
    return this.names.filter((_, i) => this.share(i) >= low && this.share(i) <= high).join("|");
  }

  read(text) {
    if (this.isNumber) {
      const [low, high] = text.split("..").map(Number);
      return Number.isFinite(low) && Number.isFinite(high) ? [this.share(low), this.share(high)] : null;
    }
    const places = text.split("|").map((name) => this.names.indexOf(name)).filter((i) => i >= 0);
    return places.length ? [this.share(Math.min(...places)), this.share(Math.max(...places))] : null;
  }
}

export function shape(name, given = {}, words = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  if (words) made.textContent = words;
  return made;
}
