"""Controls that run into one another, or out of the window: tabs, segments and buttons of a row.

A row is an element that lays out its children (flex or grid). Each control must hold its own text,
share no place with its neighbours, and be inside the window unless something scrolls it.
"""

from playwright.sync_api import Page

_OVERLAPS = """() => {
  const ROUNDING = 1;
  const isRow = (node) => /flex|grid/.test(getComputedStyle(node).display);
  const isScrolled = (node) => node && (/auto|scroll/.test(getComputedStyle(node).overflowX)
    || isScrolled(node.parentElement));
  const isHeard = (node) => getComputedStyle(node).clipPath !== "none";
  const parts = (node) => [...node.childNodes].flatMap((one) => {
    if (one.nodeType === 1) return isHeard(one) ? [] : parts(one);
    const text = document.createRange();
    text.selectNode(one);
    return [text.getBoundingClientRect()];
  });
  const place = (node) => {
    const box = node.getBoundingClientRect();
    const all = [box, ...parts(node).filter(({ width }) => width)];
    return { left: Math.min(...all.map((one) => one.left)),
      right: Math.max(...all.map((one) => one.right)), top: box.top, bottom: box.bottom };
  };
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > ROUNDING
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > ROUNDING;
  const controls = (row) => [...row.children]
    .filter((one) => one.matches("a, button, label, summary") && !one.matches(".vh, .skip"))
    .filter((one) => one.checkVisibility() && getComputedStyle(one).position !== "absolute")
    .map((node) => ({ name: node.textContent.trim(), at: place(node) }));
  return [...document.querySelectorAll("body *")].filter(isRow).flatMap((row) => {
    const all = controls(row);
    const near = all.flatMap((one, i) => all.slice(i + 1)
      .filter((other) => meet(one.at, other.at)).map((other) => `${one.name} | ${other.name}`));
    const lost = all.filter(({ at }) => at.right > innerWidth + ROUNDING || at.left < -ROUNDING);
    return [...near, ...(isScrolled(row) ? [] : lost.map(({ name }) => `${name} is outside`))];
  });
}"""


def control_overlaps(page: Page) -> list[str]:
    """Return the names of controls that overlap, and of those outside the window."""
    found: list[str] = page.evaluate(_OVERLAPS)
    return found
