// The tiles of a run page: the course of each metric as a sparkline, and its best value so far.

import { measure, short } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";

/** Points of a sparkline; beyond that, pairs of points are merged. */
const MOST_POINTS = 96;
const [WIDTH, HEIGHT] = [100, 24];

export class Tiles {
  constructor(root) {
    this.root = root;
    /** What each tile shows. A tile that the server drew again starts from what it says. */
    this.known = new WeakMap();
    this.draw();
  }

  /** Add rows of metrics from the stream. */
  push(rows) {
    for (const place of this.#places()) {
      const tile = this.#tile(place);
      for (const { step, values } of rows) add(tile, values[tile.name], step);
      draw(place, tile);
    }
  }

  draw() {
    for (const place of this.#places()) draw(place, this.#tile(place));
  }

  #places() {
    return this.root.querySelectorAll("[data-course]");
  }

  #tile(place) {
    const { values } = place.dataset;
    if (this.known.get(place)?.drawn !== values) this.known.set(place, { ...read(place.dataset), drawn: values });
    return this.known.get(place);
  }
}

function read({ course, better, values, best, bestStep }) {
  return {
    name: course,
    better,
    values: values ? values.split(",").map(Number) : [],
    best: best === undefined ? null : { value: Number(best), step: Number(bestStep) },
  };
}

function add(tile, value, step) {
  if (typeof value !== "number") return;
  tile.values.push(value);
  if (tile.values.length > MOST_POINTS) tile.values = halved(tile.values);
  const { better, best } = tile;
  if (better && (!best || (better === "lower" ? value < best.value : value > best.value))) {
    tile.best = { value, step };
  }
}

function halved(values) {
  const pairs = Array.from({ length: Math.floor(values.length / 2) }, (_, i) => (values[2 * i] + values[2 * i + 1]) / 2);
  return values.length % 2 ? [...pairs, values.at(-1)] : pairs;
}

function draw(place, { name, values, best }) {
  place.querySelector("polyline").setAttribute("points", points(values));
  if (!best || values.length < 2) return;
  const words = { value: measure(best.value, name), step: short(best.step) };
  place.querySelector(".best").textContent = `★ ${phrase("best {value} at step {step}", words)}`;
}

function points(values) {
  if (values.length < 2) return "";
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const across = WIDTH / (values.length - 1);
  const up = high > low ? (HEIGHT - 4) / (high - low) : 0;
  return values.map((value, i) => `${(i * across).toFixed(1)},${(HEIGHT - 2 - (value - low) * up).toFixed(1)}`).join(" ");
}
