// What charts and drawings save: CSV, SVG and PNG, in light colours.
import { colour } from "./chart_style.js";

const SCALE = 2;

/** @param {(string | number)[][]} rows the headings first */
export function saveCsv(name, rows) {
  const lines = rows.map((row) => `${row.map(quoted).join(",")}\r\n`);
  save(`${name}.csv`, `data:text/csv;charset=utf-8,${encodeURIComponent(lines.join(""))}`);
}

export function saveSvg(name, picture) {
  save(`${name}.svg`, source(picture));
}

export async function savePng(name, picture) {
  const image = new Image();
  image.src = source(picture);
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth * SCALE;
  canvas.height = image.naturalHeight * SCALE;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  save(`${name}.png`, canvas.toDataURL("image/png"));
}

/** A cell of CSV; text that a spreadsheet would run as a formula is made plain. */
function quoted(value) {
  if (typeof value === "number") return value;
  const plain = /^[=+\-@]/.test(value) ? `'${value}` : value;
  return /[",\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

function save(download, href) {
  Object.assign(document.createElement("a"), { href, download }).click();
}

function source(text) {
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

export function legendRow({ hue, dash, label }, x, y) {
  const pattern = [[], [6, 3], [2, 2], [8, 3, 2, 3]][dash];
  return `<path d="M${x} ${y + 6}h20" fill="none" stroke="${ink(`--series-${hue}`)}" stroke-width="2.5"${dashes(pattern)}/>${text(x + 26, y + 10, label, "start")}`;
}

export function dashes(pattern) {
  return pattern?.length ? ` stroke-dasharray="${pattern.join(" ")}"` : "";
}

export function text(x, y, words, anchor, more = "") {
  return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" text-anchor="${anchor}" ${more}>${escaped(String(words))}</text>`;
}

export function escaped(words) {
  return words.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

export function ink(name) {
  return colour(name, "light");
}

export function cell(tag, words, scope, className = "") {
  return element(tag, words, { className, ...(scope && { scope }) });
}

export function element(tag, words = "", given = {}) {
  const made = Object.assign(document.createElement(tag), given);
  if (words !== "") made.textContent = words;
  return made;
}
