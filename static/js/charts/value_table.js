// The table next to the pointer: the value of every line there, largest first.
import { place as written } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";

/** Show the values at a position of a chart; pinned, they stay and can be closed. */
export function show(chart, at, isPinned = false) {
  const table = box(chart) ?? made(chart);
  const values = chart.valuesAt(at.place);
  const nearest = near(chart, values, at.top);
  const words = `${chart.host.dataset.x ?? phrase("Step")} ${written(at.place, chart.unit)}`;
  table.replaceChildren(head(words, isPinned), ...values.map((one) => row(one, one === nearest)));
  table.classList.toggle("wide", values.length > 14);
  table.classList.toggle("pinned", isPinned);
  table.classList.toggle("left", at.left > chart.host.clientWidth / 2);
  // Screen readers use the line above the chart or its table; pinned values have a button.
  if (isPinned) table.removeAttribute("aria-hidden");
  else table.setAttribute("aria-hidden", "true");
}

export function remove(chart) {
  box(chart)?.remove();
}

function box(chart) {
  return chart.host.parentElement.querySelector(".values");
}

function made(chart) {
  const table = document.createElement("div");
  table.className = "values";
  chart.host.after(table);
  return table;
}

function near({ plot }, values, top) {
  const away = ({ drawn }) => Math.abs(plot.valToPos(drawn, "y") - top);
  return values.reduce((best, one) => (!best || away(one) < away(best) ? one : best), null);
}

function head(words, isPinned) {
  const line = document.createElement("strong");
  line.textContent = words;
  if (!isPinned) return line;
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "btn quiet small", textContent: "×" });
  button.setAttribute("aria-label", phrase("Unpin these values"));
  button.title = phrase("Unpin these values");
  line.append(button);
  return line;
}

function row({ key, label, hue, dash, n, text }, isNearest) {
  const line = document.createElement("span");
  line.classList.toggle("nearest", isNearest);
  const name = document.createElement("i");
  name.textContent = n > 1 ? `${label} (n = ${n})` : `${label} #${key}`;
  line.append(swatch(hue, dash), name);
  const number = document.createElement("b");
  number.textContent = text;
  line.append(number);
  return line;
}

export function swatch(hue, dash) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", `swatch series-${hue}`);
  svg.setAttribute("viewBox", "0 0 18 4");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", "M0 2h18");
  path.setAttribute("stroke-dasharray", ["none", "6 3", "2 2", "8 3 2 3"][dash]);
  svg.append(path);
  return svg;
}
