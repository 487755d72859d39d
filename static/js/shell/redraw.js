// What a person has opened and where the keyboard is survive it when the server redraws a part.

/** `<details>` that were closed here: the server's `open` does not open them again. */
const closed = new WeakSet();
let source = null;
let focused = null;

export function keepState() {
  document.addEventListener("click", ({ target }) => noteClick(target.closest?.("summary")?.parentElement), { capture: true });
  document.addEventListener("htmx:before:swap", ({ detail }) => remember(detail.ctx));
  // htmx asks its extensions about each attribute, and fires no event.
  window.htmx?.registerExtension("keep-open", { htmx_before_morph_attr: mayChange });
  document.addEventListener("htmx:after:swap", restore);
}

function noteClick(details) {
  if (details?.open) closed.add(details);
  else if (details) closed.delete(details);
}

function remember(ctx) {
  source = ctx?.sourceElement ?? null;
  const now = document.activeElement;
  const isPage = ctx?.target === document.body;
  focused = isPage || now === document.body ? null : { now, menu: now.closest("details.menu"), region: now.closest("[data-controls]") };
}

/** Leave `open` as it is. A menu whose own choice brought the redraw may close. */
function mayChange(element, { attrName, newValue }) {
  if (attrName !== "open" || !element.matches("details")) return true;
  const isChoice = element.matches(".menu") && element.contains(source);
  return isChoice || (newValue !== null && !closed.has(element));
}

/** Return focus to where it was; if that is gone, to its menu or the controls around it. */
function restore() {
  if (!focused || document.activeElement !== document.body) return;
  const { now, menu, region } = focused;
  const places = [now, now.id && document.getElementById(now.id), menu?.querySelector("summary"), region?.querySelector("a, button, summary")];
  for (const place of places) {
    if (place?.isConnected && place.checkVisibility()) place.focus({ preventScroll: true });
    if (document.activeElement === place) return;
  }
}
