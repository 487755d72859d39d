// The tail of a run's log: the last lines only, as text and nothing else.

const MOST_LINES = 500;

export class Log {
  /** @param {HTMLElement} panel with a `pre` and a checkbox that says whether to follow */
  constructor(panel) {
    this.view = panel.querySelector("pre");
    this.follows = panel.querySelector("input[type=checkbox]");
    this.lines = [];
    this.drawing = 0;
    this.view.addEventListener("scroll", () => this.#onScroll());
    this.follows.addEventListener("change", () => this.#draw());
  }

  add(lines) {
    this.lines = [...this.lines, ...lines.map(settled)].slice(-MOST_LINES);
    this.drawing ||= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.drawing = 0;
    this.view.textContent = this.lines.join("\n");
    if (this.follows.checked) this.view.scrollTop = this.view.scrollHeight;
  }

  /** Who scrolls up wants to read; who scrolls to the end wants to follow. */
  #onScroll() {
    const { scrollTop, clientHeight, scrollHeight } = this.view;
    this.follows.checked = scrollTop + clientHeight > scrollHeight - 24;
  }
}

/** What a line that was written over, as progress bars do, shows in the end. */
function settled(line) {
  return line.replace(/\r+$/, "").split("\r").at(-1);
}
