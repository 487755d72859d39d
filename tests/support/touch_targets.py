"""What a finger cannot press: targets below 24 by 24 CSS pixels (WCAG 2.2, 2.5.8).

axe's rule `target-size` lets any target pass that has room around it. Here only links may be
smaller: in a line of text, or with that room; buttons, fields and what unfolds may not. A label
counts as part of its field.
"""

from playwright.sync_api import Page

_SMALL_TARGETS = """() => {
  const TARGETS = "a[href], button, input:not([type=hidden]), select, textarea, summary, "
    + "[role=button], [role=tab], [role=slider]";
  const LEAST = 24, ROUNDING = 0.25;
  const shown = (node) => node.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const area = ({ width, height }) => width * height;
  const place = (node) => [node, ...(node.labels ?? [])].filter(shown)
    .map((one) => one.getBoundingClientRect())
    .reduce((best, one) => (area(one) > area(best) ? one : best));
  const isSmall = ({ at }) => Math.min(at.width, at.height) < LEAST - ROUNDING;
  const isInText = (node) => node.matches("a") && getComputedStyle(node).display === "inline"
    && [...node.parentElement.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
  const middle = ({ at }) => [at.x + at.width / 2, at.y + at.height / 2];
  // Circles of 24 pixels around the middles of small targets meet no target and no other circle.
  const isNear = (one, other) => {
    const [x, y] = middle(one);
    if (isSmall(other)) {
      const [x2, y2] = middle(other);
      return Math.hypot(x - x2, y - y2) < LEAST;
    }
    const { left, right, top, bottom } = other.at;
    const aside = Math.max(left - x, 0, x - right), above = Math.max(top - y, 0, y - bottom);
    return Math.hypot(aside, above) < LEAST / 2;
  };
  const targets = [...document.querySelectorAll(TARGETS)]
    .filter((node) => shown(node) && !node.disabled && !node.closest("[inert], .vh, .skip"))
    .map((node) => ({ node, at: place(node) }))
    .filter(({ at }) => area(at));
  const isApart = (one) => targets.every((other) => other === one || isInText(other.node)
    || other.node.contains(one.node) || one.node.contains(other.node) || !isNear(one, other));
  return targets
    .filter((one) => isSmall(one) && !isInText(one.node))
    .filter((one) => !one.node.matches("a") || !isApart(one))
    .map(({ node, at }) => `${at.width} x ${at.height}: ${node.outerHTML.slice(0, 200)}`);
}"""

_UNFOLD = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"


def small_targets(page: Page) -> list[str]:
    """Unfold all of a page, and return the size and start of each target that is too small."""
    page.evaluate(_UNFOLD)
    found: list[str] = page.evaluate(_SMALL_TARGETS)
    return found
