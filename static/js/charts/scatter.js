// A scatter plot: one mark per run, one setting or metric vs. another; a rectangle brushes both.
import { phrase } from "../i18n/translations.js";
import { Relation, ROOM, shape } from "./axis_plot.js";

const HEIGHT = 340;
const LEFT = 84;
const TOP = 12;
const BOTTOM = 44;
const RIGHT = 16;

export default class Scatter extends Relation {
  draw() {
    const [first, second] = this.chosen(0);
    // By default, a setting vs. a result.
    this.across = first ?? this.axes[0];
    this.up = second ?? this.axes.find(({ key }) => /loss/.test(key)) ?? this.axes.at(-1);
    this.width = Math.max(300, Math.min(760, this.host.clientWidth));
    this.tell([this.across, this.up]);
    const svg = shape("svg", {
      class: "relation",
      viewBox: `0 0 ${this.width} ${HEIGHT}`,
      width: this.width,
      height: HEIGHT,
      role: "img",
      "aria-label": phrase("Scatter plot of {count} runs: {up} vs. {across}. Use the sliders above it to brush.", { count: this.runs.length, up: this.up.label, across: this.across.label }),
    });
    this.box = shape("rect", { class: "brush", width: 0, height: 0 });
    svg.append(...this.#axes(), this.box, ...this.runs.map((run, i) => this.#mark(run, i)));
    this.#drag(svg);
    this.ends = new Map();
    const frame = document.createElement("div");
    frame.dataset.picture = "";
    frame.append(svg);
    this.host.replaceChildren(this.#choice(), frame);
    this.#show();
  }

  #x(share) {
    return LEFT + share * (this.width - LEFT - RIGHT);
  }

  *#axes() {
    yield shape("path", { class: "rule", d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${this.width - RIGHT}` });
    for (const [share, words] of this.up.ticks) {
      yield shape("text", { x: LEFT - 8, y: y(share) + 4, class: "tick end" }, words);
    }
    for (const [share, words] of this.across.ticks) {
      yield shape("text", { x: this.#x(share), y: HEIGHT - BOTTOM + 16, class: "tick middle" }, words);
    }
    yield shape("text", { x: (LEFT + this.width - RIGHT) / 2, y: HEIGHT - 8, class: "name" }, this.across.label);
    const up = { x: -(TOP + HEIGHT - BOTTOM) / 2, y: 14, transform: "rotate(-90)", class: "name" };
    yield shape("text", up, this.up.label);
  }

  #mark(run, place) {
    const [across, up] = [this.across.at(place), this.up.at(place)];
    const { hue, label } = this.lineOf(run);
    const mark = shape("circle", {
      cx: this.#x(across ?? -1),
      cy: y(up ?? -1),
      r: across === null || up === null ? 0 : 5,
      class: `series-${hue}${this.isInside(place) ? "" : " faint"}`,
      "data-mark": run,
    });
    mark.append(shape("title", {}, `${label} #${run}`));
    return mark;
  }

  #drag(svg) {
    let from = null;
    const at = (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * this.width;
      const down = ((event.clientY - box.top) / box.height) * HEIGHT;
      const share = [(x - LEFT) / (this.width - LEFT - RIGHT), (HEIGHT - BOTTOM - down) / (HEIGHT - TOP - BOTTOM)];
      return share.map((one) => Math.min(1, Math.max(0, one)));
    };
    svg.addEventListener("pointerdown", (event) => {
      from = at(event);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = at(event);
      if (Math.hypot(to[0] - from[0], to[1] - from[1]) < 0.02) return;
      this.brush(this.across, [from[0], to[0]]);
      this.brush(this.up, [from[1], to[1]]);
      this.#show();
    });
    svg.addEventListener("pointerup", (event) => {
      const to = at(event);
      if (from && Math.hypot(to[0] - from[0], to[1] - from[1]) < 0.02) this.clear();
      from = null;
    });
  }

  #show() {
    this.#tellEnds();
    const [across, up] = [this.across, this.up].map(({ key }) => this.brushes.get(key));
    this.box.toggleAttribute("hidden", !across && !up);
    if (!across && !up) return;
    const [left, right] = across ?? [0, 1];
    const [low, high] = up ?? [0, 1];
    const size = { x: this.#x(left), width: this.#x(right) - this.#x(left), y: y(high), height: y(low) - y(high) };
    for (const [name, value] of Object.entries(size)) this.box.setAttribute(name, value);
  }

  /** Controls to choose both axes. */
  #choice() {
    const box = document.createElement("div");
    box.className = "bar";
    for (const [words, name] of [[phrase("X axis"), "across"], [phrase("Y axis"), "up"]]) {
      const label = document.createElement("label");
      label.className = "bar";
      const select = document.createElement("select");
      select.className = "input";
      for (const axis of this.axes) select.add(new Option(axis.label, axis.key, false, axis === this[name]));
      select.addEventListener("change", () => {
        this[name] = this.axes.find(({ key }) => key === select.value);
        this.choose([this.across, this.up]);
      });
      label.append(words, select);
      box.append(label, ...this.#ends(this[name]));
    }
    return box;
  }

  /** Sliders for the ends of the brush on an axis, as an alternative to the pointer. */
  #ends(axis) {
    const words = [phrase("from"), phrase("to")];
    const ends = words.map((word, i) => {
      const end = document.createElement("input");
      Object.assign(end, { type: "range", className: "end", min: ROOM, max: 1 - ROOM, step: 0.01 });
      end.setAttribute("aria-label", `${axis.label}, ${word}`);
      end.addEventListener("input", () => {
        const range = ends.map((one) => Number(one.value));
        if (range[0] > range[1]) range[1 - i] = range[i];
        this.brush(axis, range[0] <= ROOM && range[1] >= 1 - ROOM ? null : range);
        this.#show();
      });
      return end;
    });
    this.ends.set(axis, ends);
    return ends.flatMap((end, i) => [words[i], end]);
  }

  #tellEnds() {
    for (const [axis, ends] of this.ends) {
      const range = this.brushes.get(axis.key) ?? [0, 1];
      const names = this.brushes.has(axis.key) ? axis.describeRange(range).split("..") : [phrase("all")];
      ends.forEach((end, i) => {
        end.value = range[i];
        end.setAttribute("aria-valuetext", names[i] ?? names[0]);
      });
    }
  }
}

function y(share) {
  return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
}
