// The progress of a run in the title and icon of its browser tab, also while the tab is hidden.

import { percent } from "../i18n/formatting.js";

/** While hidden, the page closes its stream and asks for the progress this often instead. */
const ASK_MS = 10_000;
const SIGNS = { succeeded: "✓", failed: "✕", cancelled: "–", paused: "‖" };
const FINAL = new Set(["succeeded", "failed", "cancelled"]);

export class TabProgress {
  /**
   * @param {string} address of the run in the REST API
   * @param {string} name of the run
   * @param {(run: object) => void} onNews called with the run while the tab is hidden
   */
  constructor(address, name, onNews) {
    Object.assign(this, { address, name, onNews, words: "", page: document.title });
    this.icon = document.querySelector("link[rel=icon]");
    this.plain = this.icon?.href;
    this.left = new AbortController();
    const { signal } = this.left;
    document.addEventListener("visibilitychange", () => this.#ask(), { signal });
    // Redrawing a part of the page sets the title again.
    document.addEventListener("htmx:after:swap", () => setTimeout(() => this.#put()), { signal });
  }

  show(run) {
    const isLive = !FINAL.has(run.status);
    this.isOver = !isLive;
    const hundredths = Math.floor((run.progress ?? 0) * 100);
    const sign = SIGNS[run.status] ?? (run.progress === null ? "" : percent(hundredths));
    this.words = sign && `${sign} · ${this.name}`;
    this.#put();
    if (this.icon) this.icon.href = isLive && run.progress !== null ? ring(run.progress) : this.plain;
  }

  dispose() {
    this.left.abort();
    clearTimeout(this.timer);
    if (this.icon) this.icon.href = this.plain;
  }

  #put() {
    if (this.words && !this.left.signal.aborted) document.title = this.words;
  }

  #ask() {
    clearTimeout(this.timer);
    if (!document.hidden || this.isOver) return;
    this.timer = setTimeout(async () => {
      const answer = await fetch(this.address, { signal: this.left.signal }).catch(() => null);
      if (answer?.ok && document.hidden) {
        const run = await answer.json();
        this.show(run);
        this.onNews(run);
      }
      if (!this.left.signal.aborted) this.#ask();
    }, ASK_MS);
  }
}

/** Draw a ring that is filled by a share, as an icon. */
function ring(share) {
  const around = 2 * Math.PI * 12;
  const circle = (colour, dash) =>
    `<circle cx="16" cy="16" r="12" fill="none" stroke="${colour}" stroke-width="7" stroke-dasharray="${dash}" transform="rotate(-90 16 16)"/>`;
  const drawn = circle("#9aa5b1", "none") + circle("#0e7490", `${share * around} ${around}`);
  return `data:image/svg+xml,${encodeURIComponent(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">${drawn}</svg>`)}`;
}
