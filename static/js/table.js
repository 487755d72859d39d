// The table of runs: ticking rows, keys, and what stands for many rows at once.

export default function start(root) {
  const watch = new AbortController();
  const { signal } = watch;
  const table = new Table(root);
  root.addEventListener("change", (event) => event.target.matches(TICK) && table.count(), { signal });
  root.addEventListener("change", (event) => table.tickAll(event), { signal });
  root.addEventListener("click", (event) => table.click(event), { signal });
  document.addEventListener("keydown", (event) => table.key(event), { signal });
  document.addEventListener("htmx:after:swap", () => table.count(), { signal });
  document.addEventListener("click", (event) => closeMenus(root, event.target), { signal });
  table.count();
  return () => watch.abort();
}

const TICK = 'input[name="run"][type="checkbox"]';

class Table {
  constructor(root) {
    this.root = root;
    this.bar = root.querySelector(".bulk");
    this.last = null;
  }

  get ticks() {
    return [...this.root.querySelectorAll(TICK)];
  }

  /** Show what can be done with the ticked rows, while there are any. */
  count() {
    const ticks = this.ticks;
    const ticked = ticks.filter((one) => one.checked).length;
    this.bar.hidden = ticked === 0;
    this.bar.querySelector("[data-single]").hidden = ticked !== 1;
    const words = `${ticked} run${ticked === 1 ? "" : "s"} selected`;
    const spot = this.bar.querySelector("[data-count]");
    if (spot.textContent !== words) spot.textContent = words;
    const all = this.root.querySelector("[data-tick-all]");
    if (!all) return;
    all.hidden = ticks.length === 0;
    all.checked = ticked > 0 && ticked === ticks.length;
    all.indeterminate = ticked > 0 && ticked < ticks.length;
  }

  tickAll(event) {
    if (!event.target.matches("[data-tick-all]")) return;
    this.set(this.ticks, event.target.checked);
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

  /** With Shift, all rows between the last one clicked and this one become as this one is. */
  range(target, isRange) {
    const ticks = this.ticks;
    const [from, to] = [ticks.indexOf(this.last), ticks.indexOf(target)].sort((a, b) => a - b);
    if (isRange && from >= 0) this.set(ticks.slice(from, to + 1), target.checked);
    this.last = target;
  }

  key(event) {
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

/** A menu closes when something else is clicked. */
function closeMenus(root, target) {
  for (const menu of root.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(target) && target.isConnected) menu.removeAttribute("open");
  }
}
