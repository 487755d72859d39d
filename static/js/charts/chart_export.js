// Chart export: as a table, as CSV, and as a picture of what is shown, in light colours.
import { cell, dashes, element, escaped, ink, legendRow, saveCsv, savePng, saveSvg, text } from "./picture_files.js";
import { phrase } from "../i18n/translations.js";
import { place as written } from "../i18n/formatting.js";

const ROWS = 50;
/** Space around the plot in a picture: for the title, the axes and a legend row. */
const LEFT = 76;
const RIGHT = 16;
const TOP = 44;
const BELOW = 48;
const ROW = 18;

/** Switch between chart and table. */
export function table(chart, button) {
  const spot = chart.card.querySelector(".as-table");
  const isShown = spot.hidden;
  button.setAttribute("aria-pressed", String(isShown));
  spot.hidden = !isShown;
  spot.replaceChildren(...(isShown ? [grid(chart)] : []));
}

/** Save all values of the lines shown. */
export function csv(chart) {
  const shown = chart.series.map((one, k) => ({ ...one, k })).filter(({ key }) => !chart.hidden.has(key));
  const { told, shape } = chart;
  const cells = (i) => shown.map(({ k }) => told[k].mean[i] ?? "");
  saveCsv(named(chart), [
    [chart.unit, ...shown.map(({ label }) => shape?.column(label) ?? label)],
    ...chart.curves.x.map((place, i) => [place, ...cells(i)]),
  ]);
}

export function svg(chart) {
  saveSvg(named(chart), picture(chart));
}

export function png(chart) {
  return savePng(named(chart), picture(chart));
}

function named({ host, shape }) {
  const name = (host.dataset.key ?? host.dataset.keys ?? "chart").split(",")[0].replaceAll("/", "-");
  return shape ? `${name}-${shape.name}` : name;
}

/** Draw the chart as SVG, as it is on screen. */
function picture(chart) {
  const { plot } = chart;
  const [width, height] = [plot.over.clientWidth, plot.over.clientHeight];
  const shown = chart.series.filter(({ key }) => !chart.hidden.has(key));
  const whole = [LEFT + width + RIGHT, TOP + height + BELOW + ROW * shown.length];
  const body = [
    `<title>${escaped(chart.heading)}</title><rect width="100%" height="100%" fill="#fff"/>`,
    text(LEFT, 24, chart.heading, "start", 'font-size="15" font-weight="600"'),
    `<clipPath id="plot"><rect width="${width}" height="${height}"/></clipPath><g transform="translate(${LEFT} ${TOP})">`,
    ...axisLines(plot, width, height),
    `<g clip-path="url(#plot)" fill="none">${lines(chart).join("")}</g></g>`,
    ...titles(chart, width, height),
    ...shown.map((one, i) => legendRow({ ...one, label: one.n > 1 ? phrase("{label} (mean of {n} runs)", one) : one.label }, LEFT, TOP + height + BELOW + ROW * i)),
  ];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${whole[0]}" height="${whole[1]}" viewBox="0 0 ${whole.join(" ")}" font-family="sans-serif" font-size="11" fill="${ink("--ink")}">${body.join("")}</svg>`;
}

function axisLines(plot, width, height) {
  const drawn = (axis, at) => (axis._splits ?? []).map((split, i) => at(split, axis._values[i] ?? "")).join("");
  const grid = `stroke="${ink("--line")}"`;
  const [x, y] = plot.axes;
  return [
    drawn(x, (split, words) => `<path d="M${plot.valToPos(split, "x").toFixed(1)} 0V${height}" ${grid}/>${text(plot.valToPos(split, "x"), height + 16, String(words).replaceAll("\n", " "), "middle")}`),
    drawn(y, (split, words) => `<path d="M0 ${plot.valToPos(split, "y").toFixed(1)}H${width}" ${grid}/>${text(-8, plot.valToPos(split, "y") + 4, words, "end")}`),
  ];
}

function titles(chart, width, height) {
  const [x, y] = chart.plot.axes;
  const middle = TOP + height / 2;
  return [
    text(LEFT + width / 2, TOP + height + 34, x.label ?? "", "middle"),
    text(14, middle, y.label ?? "", "middle", `transform="rotate(-90 14 ${middle})"`),
  ];
}

/** The lines of the plot: of each series its bounds, which have no colour, its raw and smoothed line. */
function lines(chart) {
  const { plot, width: each } = chart;
  return plot.series.slice(1).flatMap((line, k) => {
    const { hue } = chart.series[Math.floor(k / each)];
    if (!line.show || !line.width) return [];
    const points = plot.data[0].flatMap((place, i) => {
      const value = plot.data[k + 1][i];
      return value === null || value === undefined ? [] : [`${plot.valToPos(place, "x").toFixed(1)} ${plot.valToPos(value, "y").toFixed(1)}`];
    });
    if (!points.length) return [];
    const isBehind = line.width < 1.5;
    return [`<path d="M${points.join("L")}" stroke="${ink(`--series-${hue}`)}" stroke-width="${isBehind ? 1 : 1.75}"${isBehind ? ' stroke-opacity=".3"' : ""}${dashes(line.dash)}/>`];
  });
}

function grid(chart) {
  const { x } = chart.curves;
  const shown = chart.series.filter(({ key }) => !chart.hidden.has(key));
  const scroller = element("div", "", { className: "scroller", tabIndex: 0 });
  scroller.setAttribute("role", "region");
  scroller.setAttribute("aria-label", phrase("{title} as a table", { title: chart.heading }));
  const rows = element("table", "", { className: "grid" });
  const every = Math.max(1, Math.ceil(x.length / ROWS));
  const note = every > 1 ? phrase(", one of each {every} of {count} places", { every, count: x.length }) : "";
  rows.append(element("caption", `${chart.heading}${note}`, { className: "vh" }));
  const head = element("tr");
  head.append(cell("th", chart.host.dataset.x ?? phrase("Step"), "col"));
  shown.forEach(({ label }) => head.append(cell("th", label, "col", "num")));
  rows.createTHead().append(head);
  const body = rows.createTBody();
  const { told: values } = chart;
  x.forEach((place, i) => {
    if (i % every && i !== x.length - 1) return;
    const row = element("tr");
    row.append(cell("th", written(place, chart.unit), "row"));
    shown.forEach(({ key }) => row.append(cell("td", told(chart, values[chart.curves.names.indexOf(key)], i), "", "num")));
    body.append(row);
  });
  scroller.append(rows);
  return scroller;
}

function told(chart, one, i) {
  return one.non_finite.includes(chart.curves.x[i]) ? phrase("not finite") : chart.write(one.mean[i]);
}
