// The run table: row selection, keyboard shortcuts, and bulk actions.

import { short } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";

export default function start(root) {
  const watch = new AbortController();
  const { signal } = watch;
  const table = new Table(root);
  root.addEventListener("change", (event) => event.target.matches(TICK) && table.count(), { signal });
  root.addEventListener("change", (event) => table.tickAll(event), { signal });
  root.addEventListener("click", (event) => table.click(event), { signal });
  for (const begins of ["focusin", "input"]) root.addEventListener(begins, (event) => table.help(event.target), { signal });
  document.addEventListener("keydown", (event) => table.key(event), { signal });
  document.addEventListener("htmx:after:swap", () => table.grow(), { signal });
  document.addEventListener("click", (event) => closeMenus(root, event.target), { signal });
  table.count();
  return () => {
    watch.abort();
    table.completion?.dispose();
  };
}

const TICK = 'input[name="run"][type="checkbox"]';

class Table {
  constructor(root) {
    this.root = root;
    this.bar = root.querySelector(".bulk");
    this.last = null;
  }

  /** Attach completion when the search is focused for the first time. */
  async help(field) {
    if (!field.dataset.completions || this.completion) return;
    const { start } = await import("./query_completion.js");
    this.completion ??= start(field);
  }

  get ticks() {
    return [...this.root.querySelectorAll(TICK)];
  }

  /** Show the bulk actions while any row is selected. */
  count() {
    const ticks = this.ticks;
    const ticked = ticks.filter((one) => one.checked).length;
    const many = this.match(ticks.length, ticked) ?? ticked;
    this.bar.querySelector("[data-single]")?.toggleAttribute("hidden", many !== 1);
    const count = short(many);
    const words = many === 1 ? phrase("1 run") : phrase("{count} runs", { count });
    const chosen = many === 1 ? phrase("1 run selected") : phrase("{count} runs selected", { count });
    const spot = this.bar.querySelector("[data-count]");
    if (spot.textContent !== chosen) spot.textContent = chosen;
    this.root.querySelector("[data-many]")?.replaceChildren(words);
    const all = this.root.querySelector("[data-tick-all]");
    if (!all) return;
    all.hidden = ticks.length === 0;
    all.checked = ticked > 0 && ticked === ticks.length;
    all.indeterminate = ticked > 0 && ticked < ticks.length;
  }

  /** Rows were added: select them, too, if all matching rows are selected. */
  grow() {
    const { total, q } = this.root.querySelector("[data-total]").dataset;
    const { matching, q: asked } = this.bar.elements;
    if (matching?.checked && matching.value === total && asked.value === q) this.set(this.ticks, true);
    else this.count();
  }

  /** Offer to select all matching rows if not all are shown. Return their number if selected. */
  match(shown, ticked) {
    const { total, q } = this.root.querySelector("[data-total]").dataset;
    const label = this.bar.querySelector("[data-matching]");
    if (!label) return null; // Viewers can only compare the selected rows.
    const box = label.querySelector("input");
    // The selection belongs to another search, or no longer covers all rows.
    if (ticked < shown || box.value !== total || this.bar.elements.q.value !== q) box.checked = false;
    label.hidden = Number(total) <= ticked;
    label.querySelector("span").textContent = short(Number(total));
    box.value = total;
    this.bar.elements.q.value = q;
    return box.checked ? Number(total) : null;
  }

  tickAll(event) {
    if (event.target.matches("[data-tick-all], [name=matching]")) this.set(this.ticks, event.target.checked);
  }

  set(ticks, checked) {
    for (const one of ticks) one.checked = checked;
    this.count();
  }

  click(event) {
    const { target } = event;
    if (target.matches(TICK)) return this.range(target, event.shiftKey);
    if (target.closest("[data-untick]")) this.set(this.ticks, false);
    if (target.closest("[data-dismiss]")) target.closest(".toast").replaceChildren();
    if (target.closest("[data-closes]")) target.closest("dialog").close();
    const chip = target.closest("[data-query]");
    if (chip) document.getElementById("q").value = new URL(chip.href).searchParams.get("q") ?? "";
  }

  /** With Shift, set all rows between the last clicked one and this one to this one's state. */
  range(target, isRange) {
    const ticks = this.ticks;
    const [from, to] = [ticks.indexOf(this.last), ticks.indexOf(target)].sort((a, b) => a - b);
    if (isRange && from >= 0) this.set(ticks.slice(from, to + 1), target.checked);
    this.last = target;
  }

  key(event) {
    if (event.key === "Enter" && event.ctrlKey && event.target.closest("[data-editing]")) event.target.form.requestSubmit();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return this.escape(event.target);
    if (event.target.matches("input:not([type=checkbox]), select, textarea")) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "/") this.act(event, () => document.getElementById("q").select());
    else if (step && this.place(event.target) >= 0) this.act(event, () => this.walk(event.target, step));
    else if (event.key === "ArrowDown" && event.target === document.body) this.act(event, () => this.ticks[0]?.focus());
    else if (event.key === "e") event.target.closest("tr")?.querySelector(".pen")?.click();
  }

  act(event, what) {
    event.preventDefault();
    what();
  }

  place(target) {
    const tick = target.closest("tr")?.querySelector(TICK);
    return this.ticks.indexOf(tick);
  }

  walk(target, step) {
    const ticks = this.ticks;
    const next = ticks[this.place(target) + step];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  }

  escape(target) {
    const editing = target.closest("[data-editing]");
    if (editing) editing.querySelector("[data-cancel]").click();
    const menu = target.closest("details.menu[open]");
    menu?.removeAttribute("open");
    menu?.querySelector("summary").focus();
  }
}

/** Close menus on a click outside. */
function closeMenus(root, target) {
  for (const menu of root.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(target) && target.isConnected) menu.removeAttribute("open");
  }
}
