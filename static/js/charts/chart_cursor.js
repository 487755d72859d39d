// The chart cursor: the values at a position as text, by pointer and by keyboard.
import { place as written } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";

const KEYS = {
  ArrowLeft: -1,
  ArrowRight: 1,
  PageUp: -50,
  PageDown: 50,
  Home: -Infinity,
  End: Infinity,
};
const TURNS = { ArrowUp: -1, ArrowDown: 1 };
/** The word before a position on each axis. */
const NAMED = { seconds: phrase("after"), wall: phrase("at"), step: phrase("step"), epoch: phrase("epoch"), tokens: phrase("tokens") };
/** List at most this many values at once. */
const MOST_SAID = 3;

export class Reading {
  /** @param {import("./line_chart.js").Chart} chart */
  constructor(chart) {
    Object.assign(this, { chart, chosen: null });
    const { host, card, ended } = chart;
    this.words = card.querySelector(".read");
    // Cursors are synchronised: only the chart read by keyboard announces values.
    const speak = (how) => () => this.words?.setAttribute("aria-live", how);
    if (document.activeElement === host) speak("polite")();
    host.addEventListener("focus", speak("polite"), { signal: ended.signal });
    host.addEventListener("blur", speak("off"), { signal: ended.signal });
    host.addEventListener("blur", () => this.clear(), { signal: ended.signal });
  }

  /** The index being read by keyboard, if any. */
  get place() {
    const { plot, host } = this.chart;
    return document.activeElement === host ? plot.data[0][plot.cursor.idx] : undefined;
  }

  goTo(place) {
    const { plot } = this.chart;
    plot.setCursor({ left: plot.valToPos(place, "x"), top: plot.height / 4 });
  }

  /** Show the values under the cursor as text. */
  point({ cursor, data }) {
    const place = data[0][cursor.idx];
    if (place !== undefined) this.#say(place);
    else if (document.activeElement !== this.chart.host) this.clear();
  }

  clear() {
    if (this.words) this.words.textContent = "";
  }

  #say(place) {
    if (!this.words) return;
    const values = this.chart.valuesAt(place);
    const at = values.findIndex(({ key }) => key === this.chosen);
    const { unit } = this.chart;
    const where = `${NAMED[unit] ?? unit.replaceAll("_", " ")} ${written(place, unit)}`;
    this.words.textContent = `${where}: ${this.#listed(values, at)}`;
  }

  #listed(values, at) {
    const isOne = this.chart.series.length === 1;
    const say = ({ label, text }) => (isOne ? text : `${label} ${text}`);
    if (!values.length) return "–";
    if (at >= 0) return phrase("{value}, {place} of {count}", { value: say(values[at]), place: at + 1, count: values.length });
    if (values.length <= MOST_SAID) return values.map(say).join(", ");
    return phrase("{most} down to {least}", { most: say(values[0]), least: say(values.at(-1)) });
  }

  onKey(event) {
    const { plot, series } = this.chart;
    const by = KEYS[event.key];
    const turn = series.length > 1 ? TURNS[event.key] : undefined;
    if (by === undefined && turn === undefined) return;
    const [x] = plot.data;
    const from = plot.cursor.idx ?? x.length - 1;
    if (turn) this.#choose(x[from], turn);
    const to = Math.min(x.length - 1, Math.max(0, from + (by ?? 0) * (event.shiftKey ? 10 : 1)));
    this.goTo(x[to]);
    this.#say(x[to]);
  }

  /** Select the line above or below the current one. */
  #choose(place, turn) {
    const values = this.chart.valuesAt(place);
    const at = values.findIndex(({ key }) => key === this.chosen);
    const to = at < 0 ? 0 : Math.min(values.length - 1, Math.max(0, at + turn));
    this.chosen = values[to]?.key ?? null;
    this.chart.focusOn(this.chosen);
  }
}
