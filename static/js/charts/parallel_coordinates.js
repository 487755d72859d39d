// Parallel coordinates: one line per run through its settings and results.
import { phrase } from "../i18n/translations.js";
import { Relation, shape } from "./axis_plot.js";

const HEIGHT = 300;
const TOP = 44;
const BOTTOM = 16;
const MOST = 7;
const NUDGE = 0.05;
const DASHES = ["none", "6 3", "2 2", "8 3 2 3"];

export default class Parallel extends Relation {
  draw() {
    const axes = this.chosen(MOST);
    this.tell(axes);
    this.width = Math.max(this.host.clientWidth, axes.length * 110);
    const svg = shape("svg", {
      class: "relation",
      viewBox: `0 0 ${this.width} ${HEIGHT}`,
      width: this.width,
      height: HEIGHT,
      role: "group",
      "aria-label": phrase("Parallel coordinates of {count} runs", { count: this.runs.length }),
    });
    const gap = this.width / axes.length;
    this.places = axes.map((axis, i) => ({ axis, x: gap * (i + 0.5) }));
    svg.append(...this.runs.map((run, i) => this.#line(run, i)));
    svg.append(...this.places.map((one) => this.#axis(one)));
    const scroller = document.createElement("div");
    scroller.className = "scroller relation-box";
    scroller.dataset.picture = "";
    scroller.append(svg);
    this.host.replaceChildren(scroller, this.#choice(axes));
  }

  #line(run, place) {
    const spots = this.places
      .map(({ axis, x }) => [x, axis.at(place)])
      .filter(([, at]) => at !== null)
      .map(([x, at]) => `${x.toFixed(1)} ${y(at).toFixed(1)}`);
    const { hue, dash, label } = this.lineOf(run);
    const path = shape("path", {
      d: `M${spots.join("L")}`,
      class: `series-${hue}${this.isInside(place) ? "" : " faint"}`,
      "stroke-dasharray": DASHES[dash],
      "data-mark": run,
    });
    path.append(shape("title", {}, `${label} #${run}`));
    return path;
  }

  #axis({ axis, x }) {
    const group = shape("g", {
      transform: `translate(${x.toFixed(1)} 0)`,
      class: "brush-axis",
      tabindex: 0,
      role: "slider",
      "aria-orientation": "vertical",
    });
    const brush = shape("rect", { class: "brush", x: -9, width: 18 });
    const reach = shape("rect", { class: "reach", x: -16, width: 32, y: TOP, height: HEIGHT - TOP - BOTTOM });
    group.append(shape("path", { class: "rule", d: `M0 ${TOP}V${HEIGHT - BOTTOM}` }), brush, reach);
    group.append(shape("text", { y: 16, class: "name" }, axis.label.length > 18 ? `${axis.label.slice(0, 17)}…` : axis.label));
    group.append(shape("title", {}, phrase("{key}: drag to brush, click to clear the brush", axis)));
    for (const [share, words] of axis.ticks) {
      group.append(shape("text", { x: 6, y: y(share) + 4, class: "tick" }, words));
    }
    const show = () => this.#show(group, brush, axis);
    this.#drag(group, axis, show);
    group.addEventListener("keydown", (event) => this.#onKey(event, axis, show));
    show();
    return group;
  }

  #show(group, brush, axis) {
    const range = this.brushes.get(axis.key)?.map((share) => Math.min(1, Math.max(0, share)));
    brush.setAttribute("y", range ? y(range[1]) : TOP);
    brush.setAttribute("height", range ? Math.max(2, y(range[0]) - y(range[1])) : 0);
    const [low, high] = range ?? [0, 1];
    group.setAttribute("aria-valuemin", "0");
    group.setAttribute("aria-valuemax", "1");
    group.setAttribute("aria-valuenow", ((low + high) / 2).toFixed(2));
    group.setAttribute("aria-valuetext", range ? axis.describeRange(range).replace("..", " – ") : phrase("all"));
    group.setAttribute("aria-label", phrase("Brush on {label}: Up and Down move it, plus and minus resize it, Delete clears it", axis));
  }

  #drag(group, axis, show) {
    let from = null;
    const at = (event) => {
      const box = group.ownerSVGElement.getBoundingClientRect();
      const height = ((event.clientY - box.top) / box.height) * HEIGHT;
      return Math.min(1, Math.max(0, (HEIGHT - BOTTOM - height) / (HEIGHT - TOP - BOTTOM)));
    };
    group.addEventListener("pointerdown", (event) => {
      from = at(event);
      group.setPointerCapture(event.pointerId);
    });
    group.addEventListener("pointermove", (event) => {
      if (from === null || Math.abs(at(event) - from) < 0.015) return;
      this.brush(axis, [from, at(event)]);
      show();
    });
    group.addEventListener("pointerup", (event) => {
      if (from !== null && Math.abs(at(event) - from) < 0.015) this.brush(axis, null);
      from = null;
      show();
    });
  }

  #onKey(event, axis, show) {
    const moves = { ArrowUp: [NUDGE, NUDGE], ArrowDown: [-NUDGE, -NUDGE], "+": [-NUDGE, NUDGE], "-": [NUDGE, -NUDGE] };
    const move = moves[event.key];
    if (event.key === "Delete" || event.key === "Backspace") this.brush(axis, null);
    else if (!move) return;
    else {
      const [low, high] = this.brushes.get(axis.key) ?? [0.25, 0.75];
      const range = [low + move[0], high + move[1]].map((share) => Math.min(1, Math.max(0, share)));
      if (range[0] < range[1]) this.brush(axis, range);
    }
    event.preventDefault();
    show();
  }

  /** Controls to choose the axes. */
  #choice(axes) {
    const box = document.createElement("details");
    box.className = "menu";
    const head = document.createElement("summary");
    Object.assign(head, { className: "btn small", textContent: phrase("Axes: {shown} of {all}", { shown: axes.length, all: this.axes.length }) });
    const body = document.createElement("div");
    body.className = "menu-body";
    for (const axis of this.axes) {
      const label = document.createElement("label");
      label.className = "check";
      const tick = document.createElement("input");
      Object.assign(tick, { type: "checkbox", checked: axes.includes(axis) });
      tick.addEventListener("change", () => {
        const left = this.axes.filter((one) => (one === axis ? tick.checked : axes.includes(one)));
        if (left.length) this.choose(left);
      });
      label.append(tick, ` ${axis.label}`);
      body.append(label);
    }
    box.append(head, body);
    return box;
  }
}

function y(share) {
  return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
}
