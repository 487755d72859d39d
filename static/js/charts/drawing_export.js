// Files of a plot that is drawn as SVG and text: its values, and a picture of it as it is on screen.
import { short } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";
import { cell, element, escaped, ink, legendRow, saveCsv, savePng, saveSvg, text } from "./picture_files.js";

const EDGE = 16;
const TOP = 44;
const ROW = 18;
/** What a style sheet gives to the parts of a drawing. */
const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin", "opacity", "vector-effect", "paint-order", "text-anchor", "font-size", "font-weight"];
const NOT_DRAWN = ".chart-tools, .as-table, .vh, .selection, .drawing-title, details, select, label, button";

export function table(host, button) {
  const spot = host.querySelector(".as-table");
  const isShown = spot.hidden;
  button.setAttribute("aria-pressed", String(isShown));
  spot.hidden = !isShown;
  spot.replaceChildren(...(isShown ? [grid(host)] : []));
}

export function csv(host) {
  saveCsv(host.dataset.drawing, cells(host).map((row) => row.map((value) => value ?? "")));
}

export function svg(host) {
  saveSvg(host.dataset.drawing, picture(host));
}

export function png(host) {
  return savePng(host.dataset.drawing, picture(host));
}

function cells(host) {
  return JSON.parse(host.dataset.cells);
}

function grid(host) {
  const [heads, ...rows] = cells(host);
  const scroller = element("div", "", { className: "scroller", tabIndex: 0 });
  scroller.setAttribute("role", "region");
  scroller.setAttribute("aria-label", phrase("{title} as a table", { title: host.dataset.title }));
  const grid = element("table", "", { className: "grid" });
  grid.append(element("caption", host.dataset.title, { className: "vh" }));
  const head = grid.createTHead().insertRow();
  head.append(...heads.map((words, i) => cell("th", words, "col", i ? "num" : "")));
  const body = grid.createTBody();
  for (const [name, ...values] of rows) {
    const row = body.insertRow();
    row.append(cell("th", short(name), "row"), ...values.map((value) => cell("td", short(value), "", "num")));
  }
  scroller.append(grid);
  return scroller;
}

/** Draw each SVG of a drawing, and each text beside them, where it is on screen. */
function picture(host) {
  const body = host.querySelector("[data-picture]") ?? host;
  const legend = JSON.parse(host.dataset.legend ?? "[]");
  body.dataset.theme = "light";
  body.style.color = "var(--ink)";
  const parts = [...pieces(body)];
  delete body.dataset.theme;
  body.style.color = "";
  const left = Math.min(...parts.map(({ box }) => box.left)) - EDGE;
  const top = Math.min(...parts.map(({ box }) => box.top)) - TOP;
  const right = Math.max(...parts.map(({ box }) => box.right));
  const bottom = Math.max(...parts.map(({ box }) => box.bottom));
  const [width, height] = [right - left + EDGE, bottom - top + EDGE + ROW * legend.length].map(Math.ceil);
  const drawn = [
    `<title>${escaped(host.dataset.title)}</title><rect width="100%" height="100%" fill="#fff"/>`,
    text(EDGE, 26, host.dataset.title, "start", 'font-size="15" font-weight="600"'),
    ...parts.map(({ box, write }) => write(box.left - left, box.top - top, box)),
    ...legend.map((one, i) => legendRow(one, EDGE, bottom - top + EDGE / 2 + ROW * i)),
  ];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="11" fill="${ink("--ink")}">${drawn.join("")}</svg>`;
}

function* pieces(body) {
  const walker = document.createTreeWalker(body, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, (node) => {
    const isLeftOut = node.nodeType === Node.ELEMENT_NODE ? node.matches(NOT_DRAWN) || !node.checkVisibility() : !node.data.trim();
    const isInside = node.parentElement.closest("svg");
    return isLeftOut || isInside ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT;
  });
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.nodeType === Node.TEXT_NODE) yield* words(node);
    else if (node.matches("svg")) yield drawing(node);
  }
}

function drawing(svg) {
  const copy = dressed(svg);
  copy.removeAttribute("class");
  copy.setAttribute("preserveAspectRatio", svg.getAttribute("preserveAspectRatio") ?? "xMidYMid meet");
  const box = svg.getBoundingClientRect();
  const write = (x, y, { width, height }) => {
    for (const [name, value] of Object.entries({ x, y, width, height })) copy.setAttribute(name, value.toFixed(1));
    return new XMLSerializer().serializeToString(copy) + borders(svg, x, y, { width, height });
  };
  return { box, write };
}

/** The axes that are borders of an SVG, relative to the picture. */
function borders(svg, x, y, { width, height }) {
  const { borderLeftWidth: left, borderBottomWidth: below } = getComputedStyle(svg);
  const lines = `${parseFloat(left) ? `M${x} ${y}v${height}` : ""}${parseFloat(below) ? `M${x} ${y + height}h${width}` : ""}`;
  return lines && `<path d="${lines}" fill="none" stroke="${ink("--line-strong")}"/>`;
}

/** Copy an element with the looks that its style sheet gives it. */
function dressed(node) {
  const copy = node.cloneNode(false);
  const looks = getComputedStyle(node);
  for (const name of LOOKS) copy.setAttribute(name, looks.getPropertyValue(name).replaceAll('"', ""));
  for (const child of node.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) copy.append(child.cloneNode());
    else if (child.matches?.("title, defs, defs *") || (child.matches && getComputedStyle(child).display !== "none")) copy.append(dressed(child));
  }
  return copy;
}

/** Write a text where its first line is. */
function* words(node) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const [box] = range.getClientRects();
  if (!box) return;
  const { color, fontSize } = getComputedStyle(node.parentElement);
  const write = (x, y, { height }) => text(x, y + height * 0.76, node.data.trim().replace(/\s+/g, " "), "start", `fill="${color}" font-size="${fontSize}"`);
  yield { box, write };
}
