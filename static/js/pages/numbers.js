// Bits by keyboard: one tab stop per format, arrow keys within.

const STEPS = { ArrowLeft: -1, ArrowRight: 1 };

export default function start(root) {
  const rows = () => root.querySelectorAll("[data-bits]");

  function settle() {
    for (const row of rows()) {
      const stop = row.contains(document.activeElement) ? document.activeElement : row.firstElementChild;
      for (const bit of row.children) bit.tabIndex = bit === stop ? 0 : -1;
    }
  }

  function move(event) {
    const row = event.target.closest("[data-bits]");
    if (!row) return;
    const bits = [...row.children];
    const ends = { Home: 0, End: bits.length - 1 };
    const place = ends[event.key] ?? bits.indexOf(event.target) + (STEPS[event.key] ?? NaN);
    if (!bits[place]) return;
    event.preventDefault();
    bits[place].focus();
    settle();
  }

  settle();
  root.addEventListener("keydown", move);
  document.addEventListener("htmx:after:swap", settle);
  return () => document.removeEventListener("htmx:after:swap", settle);
}
