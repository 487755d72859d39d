// The tail of a run's log: the last lines, as plain text.

const MOST_LINES = 500;

export class Log {
  /** @param {HTMLElement} panel with a `pre` and a "Follow" checkbox */
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

  /** Scrolling up stops following; scrolling to the end resumes it. */
  #onScroll() {
    const { scrollTop, clientHeight, scrollHeight } = this.view;
    this.follows.checked = scrollTop + clientHeight > scrollHeight - 24;
  }
}

/** Return the final text of a line that was overwritten, as progress bars do. */
function settled(line) {
  return line.replace(/\r+$/, "").split("\r").at(-1);
}
