// The table next to the pointer: the value of every line there, largest first.
import { place as written, short } from "../i18n/formatting.js";

/** Show the values at a position of a chart; without values, hide the table. */
export function show(chart, at) {
  const box = chart.host.parentElement.querySelector(".values");
  if (!at || at.top < 0) return box?.remove();
  const table = box ?? made(chart);
  const values = chart.valuesAt(at.place);
  const nearest = near(chart, values, at.top);
  table.replaceChildren(
    head(`${chart.unit.replaceAll("_", " ")} ${written(at.place, chart.unit)}`),
    ...values.map((one) => row(one, one === nearest)),
  );
  table.classList.toggle("wide", values.length > 14);
  const isLeft = at.left > chart.host.clientWidth / 2;
  table.classList.toggle("left", isLeft);
}

function made(chart) {
  const box = document.createElement("div");
  box.className = "values";
  // Screen readers use the line above the chart or its table instead.
  box.setAttribute("aria-hidden", "true");
  chart.host.parentElement.append(box);
  chart.host.addEventListener("pointerleave", () => box.remove(), { once: true });
  return box;
}

function near({ plot }, values, top) {
  const away = ({ value }) => Math.abs(plot.valToPos(value, "y") - top);
  return values.reduce((best, one) => (!best || away(one) < away(best) ? one : best), null);
}

function head(words) {
  const line = document.createElement("strong");
  line.textContent = words;
  return line;
}

function row({ key, label, hue, dash, n, value }, isNearest) {
  const line = document.createElement("span");
  line.classList.toggle("nearest", isNearest);
  const name = document.createElement("i");
  name.textContent = n > 1 ? `${label} (n = ${n})` : `${label} #${key}`;
  line.append(swatch(hue, dash), name);
  const number = document.createElement("b");
  number.textContent = short(value);
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
