// Chart export: as a table, as a picture.
import { place as written, short } from "../i18n/formatting.js";

const ROWS = 50;
const SCALE = 2;

/** Switch between chart and table. */
export function toggleTable(card, chart, button) {
  const spot = card.querySelector(".as-table");
  const isShown = spot.hidden;
  button.setAttribute("aria-pressed", String(isShown));
  spot.hidden = !isShown;
  spot.replaceChildren(...(isShown ? [table(chart)] : []));
}

/** Let the server draw the current view as SVG, and save it as PNG. */
export async function savePicture(card) {
  const link = card.querySelector("a[download]");
  const image = new Image();
  image.src = link.href;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth * SCALE;
  canvas.height = image.naturalHeight * SCALE;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  const saved = document.createElement("a");
  saved.href = URL.createObjectURL(blob);
  saved.download = link.download.replace(/svg$/, "png");
  saved.click();
  setTimeout(() => URL.revokeObjectURL(saved.href), 10_000);
}

function table(chart) {
  const { x } = chart.curves;
  const shown = chart.series.filter(({ key }) => !chart.hidden.has(key));
  const scroller = element("div", "", { className: "scroller", tabIndex: 0 });
  scroller.setAttribute("role", "region");
  scroller.setAttribute("aria-label", `${chart.title} as a table`);
  const grid = element("table", "", { className: "grid" });
  const every = Math.max(1, Math.ceil(x.length / ROWS));
  const note = every > 1 ? `, every ${every}th of ${x.length} places` : "";
  grid.append(element("caption", `${chart.title}${note}`, { className: "vh" }));
  const head = element("tr");
  head.append(cell("th", chart.unit.replaceAll("_", " "), "col"));
  shown.forEach(({ label }) => head.append(cell("th", label, "col", "num")));
  grid.createTHead().append(head);
  const body = grid.createTBody();
  x.forEach((place, i) => {
    if (i % every && i !== x.length - 1) return;
    const row = element("tr");
    row.append(cell("th", written(place, chart.unit), "row"));
    shown.forEach(({ key }) => row.append(cell("td", told(chart, key, i), "", "num")));
    body.append(row);
  });
  scroller.append(grid);
  return scroller;
}

function told(chart, key, i) {
  const one = chart.curves.series[chart.curves.names.indexOf(key)];
  return one.non_finite.includes(chart.curves.x[i]) ? "not finite" : short(one.mean[i]);
}

function cell(tag, words, scope, className = "") {
  return element(tag, words, { className, ...(scope && { scope }) });
}

function element(tag, words = "", given = {}) {
  const made = Object.assign(document.createElement(tag), given);
  if (words !== "") made.textContent = words;
  return made;
}
