// What pointer and keys do with a plot that the server has drawn: zoom, and its menu.
//
// The plot is an element with `data-drawing`, its name. Its `data-edges` are the labels of the edges
// of its columns; the SVGs in it with `data-width` share this x axis, whose labels are marked
// `data-tick`. Without edges there is no zoom. `data-cells` are its values, headings first.

/** What is shown of each drawing, by name, as its first column and the one after its last. */
const zooms = new Map();
/** A pointer that moves less than this, in pixels, is a click. */
const STILL = 4;
const KEYS = { "+": 0.5, "=": 0.5, "-": 2 };

document.addEventListener("htmx:after:swap", () => document.querySelectorAll("[data-drawing]").forEach(draw));
document.addEventListener("click", ({ target }) => {
  for (const menu of document.querySelectorAll("[data-drawing] .chart-menu[open]")) menu.open = menu.contains(target) && menu.open;
});

/** @param {Event} event of a drawing, or of something in it */
export function handle(event) {
  const host = event.target.closest("[data-drawing]");
  const handlers = { click, pointerdown: drag, dblclick: reset, keydown: press };
  if (host) handlers[event.type](host, event);
}

async function click(host, { target }) {
  const button = target.closest("button");
  if (!button) return;
  const { zoom: by, save } = button.dataset;
  if (by) zoomBy(host, Number(by));
  if ("unzoom" in button.dataset) show(host, null);
  if (!save) return;
  const exports = await import("./drawing_export.js");
  exports[save](host, button);
  if (save !== "table") button.closest("details").open = false;
}

function reset(host, { target }) {
  if (target.closest("svg")) show(host, null);
}

function press(host, event) {
  if (event.key === "Escape") shut(host);
  if (!isPlain(event) || event.target !== host.querySelector("[data-zooms]")) return;
  if (KEYS[event.key]) zoomBy(host, KEYS[event.key]);
  else if (event.key === "0") show(host, null);
  else if (event.key === "ArrowLeft") move(host, -1);
  else if (event.key === "ArrowRight") move(host, 1);
}

function isPlain(event) {
  return !event.ctrlKey && !event.metaKey && !event.altKey;
}

function shut(host) {
  const menu = host.querySelector(".chart-menu[open]");
  if (!menu) return show(host, null);
  menu.open = false;
  menu.querySelector("summary").focus();
}

function edges(host) {
  return JSON.parse(host.dataset.edges ?? "[]");
}

/** How many columns the whole drawing has. */
function count(host) {
  return Math.max(0, edges(host).length - 1);
}

function zoomBy(host, by) {
  const [first, end] = zooms.get(host.dataset.drawing) ?? [0, count(host)];
  const [middle, half] = [(first + end) / 2, Math.max(0.5, ((end - first) * by) / 2)];
  show(host, [Math.floor(middle - half), Math.ceil(middle + half)]);
}

/** Move by a quarter of what is shown. */
function move(host, direction) {
  const range = zooms.get(host.dataset.drawing);
  if (!range) return;
  const step = direction * Math.ceil((range[1] - range[0]) / 4);
  const by = Math.min(count(host) - range[1], Math.max(-range[0], step));
  show(host, range.map((one) => one + by));
}

/** Show some columns, or all. */
function show(host, range) {
  const most = count(host);
  const [first, end] = range ? [Math.max(0, range[0]), Math.min(most, range[1])] : [0, most];
  if (first > 0 || end < most) zooms.set(host.dataset.drawing, [first, Math.max(first + 1, end)]);
  else zooms.delete(host.dataset.drawing);
  draw(host);
}

function draw(host) {
  const most = count(host);
  const range = zooms.get(host.dataset.drawing);
  const isZoomed = Boolean(range && range[1] <= most);
  if (!isZoomed && !("zoomed" in host.dataset)) return;
  const [first, end] = isZoomed ? range : [0, most];
  host.toggleAttribute("data-zoomed", isZoomed);
  host.querySelector("[data-unzoom]").hidden = !isZoomed;
  const share = (end - first) / most;
  for (const svg of host.querySelectorAll("svg[data-width]")) {
    const { width } = svg.dataset;
    const [, top, , height] = svg.getAttribute("viewBox").split(" ");
    svg.setAttribute("viewBox", `${(width * first) / most} ${top} ${width * share} ${height}`);
    // What has a size of its own keeps it.
    for (const mark of svg.querySelectorAll("ellipse")) mark.setAttribute("rx", mark.getAttribute("ry") * share);
    for (const mark of svg.querySelectorAll("[data-span]")) mark.setAttribute("width", Math.max(mark.dataset.span, mark.dataset.least * share));
  }
  label(host, first, end);
}

function label(host, first, end) {
  const words = edges(host);
  const ticks = [...host.querySelectorAll("[data-tick]")];
  ticks.forEach((tick, i) => {
    const at = first + ((end - first) * i) / (ticks.length - 1);
    tick.textContent = Number.isInteger(at) || end - first > 2 * ticks.length ? words[Math.round(at)] : "";
  });
}

/** Select columns by dragging over a drawing. */
function drag(host, event) {
  const svg = event.target.closest("svg[data-width]");
  if (!svg || event.button || !count(host)) return;
  const box = svg.getBoundingClientRect();
  const frame = host.querySelector("[data-zooms]").getBoundingClientRect();
  const inside = ({ clientX }) => Math.min(box.right, Math.max(box.left, clientX));
  const from = inside(event);
  const veil = document.createElement("div");
  veil.className = "selection";
  const ended = new AbortController();
  const { signal } = ended;
  svg.setPointerCapture(event.pointerId);
  const follow = (now) => {
    const [left, right] = [from, inside(now)].sort((a, b) => a - b);
    if (right - left < STILL && !veil.isConnected) return;
    host.querySelector("[data-zooms]").append(veil);
    Object.assign(veil.style, { left: `${left - frame.left}px`, width: `${right - left}px` });
  };
  const finish = (now) => {
    ended.abort();
    veil.remove();
    const [left, right] = [from, inside(now)].sort((a, b) => a - b);
    if (now.type !== "pointerup" || right - left < STILL) return;
    const [first, end] = zooms.get(host.dataset.drawing) ?? [0, count(host)];
    const column = (x) => first + ((x - box.left) / box.width) * (end - first);
    show(host, [Math.floor(column(left)), Math.ceil(column(right))]);
  };
  svg.addEventListener("pointermove", follow, { signal });
  for (const name of ["pointerup", "pointercancel"]) svg.addEventListener(name, finish, { signal });
}
