// Chart styling: theme colours, lines, bands, axes, and marks.
import { place as written, tick } from "../i18n/formatting.js";

const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
/** Mark the points of validations up to this number; of other lines up to a third of it. */
const MOST_MARKS = 120;
const probe = document.createElement("span");

/** Resolve a CSS custom property to a colour for the canvas, of a theme or of the page. */
export function colour(name, theme) {
  if (!probe.isConnected) document.body.append(probe);
  probe.hidden = true;
  if (theme) probe.dataset.theme = theme;
  else delete probe.dataset.theme;
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

function faint(stroke, alpha) {
  const [, parts] = stroke.match(/^rgb\((.*)\)$/) ?? [];
  return parts ? `rgb(${parts.replaceAll(",", "")} / ${alpha})` : stroke;
}

/** A series is four lines: minimum, maximum, raw, and smoothed; without bands only the last two. */
export function lines({ hue, dash, isMarked }, { isBehind, hasBands, isShown }) {
  const stroke = colour(`--series-${hue}`);
  const common = { points: { show: false }, spanGaps: true, show: isShown };
  const bound = { ...common, stroke: "transparent", width: 0 };
  const line = { ...common, stroke, width: isMarked ? 2 : 1.5, dash: DASHES[dash] };
  const ring = { size: 8, width: 2, fill: colour("--surface"), stroke };
  const dot = { size: 5, fill: stroke };
  const isSparse = (plot, s) => (isMarked ? plot.data[s].filter((one) => one !== null).length : 3 * plot.data[0].length) <= MOST_MARKS;
  const points = { show: isSparse, ...(isMarked ? ring : dot) };
  const behind = { ...line, stroke: faint(stroke, hasBands ? 0.3 : 0.18), width: 1 };
  // One point makes no line: without a mark, a run's first step would be invisible. Without
  // smoothing, the upper line is empty and has no marks.
  const marked = { ...line, points };
  const drawn = [isBehind ? behind : marked, marked];
  return hasBands ? [bound, bound, ...drawn] : drawn;
}

export function bands(series) {
  return series.map(({ hue }, k) => ({
    series: [k * 4 + 2, k * 4 + 1],
    fill: faint(colour(`--series-${hue}`), 0.14),
  }));
}

/** The axes of a plot with their titles; `up` is bytes if the metric is. */
export function axes(unit, titles, up) {
  const { fontFamily } = getComputedStyle(document.body);
  const axis = {
    stroke: colour("--ink-2"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    font: `11px ${fontFamily}`,
    labelFont: `11px ${fontFamily}`,
    labelSize: 16,
    labelGap: 0,
  };
  const told = (how) => (_, ticks) => ticks.map((one) => (one === null ? "" : how(one)));
  const bottom = { ...axis, label: titles.x };
  const below =
    unit === "wall"
      ? { ...bottom, size: 40 }
      : { ...bottom, size: 28, values: told((one) => written(one, unit)) };
  return [below, { ...axis, label: titles.y, size: breadth, values: told((one) => tick(one, up)) }];
}

/** The room that the longest label of an axis needs, so that its title is never written over. */
function breadth(_plot, words) {
  return 14 + 6.5 * Math.max(3, ...(words ?? []).map((one) => one.length));
}

/** Red triangles on the upper edge where a value was NaN or infinite. */
export function mark({ ctx, bbox, valToPos }, places, fill) {
  ctx.save();
  ctx.fillStyle = fill;
  for (const place of places) {
    const x = valToPos(place, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x - 5, bbox.top - 8);
    ctx.lineTo(x + 5, bbox.top - 8);
    ctx.lineTo(x, bbox.top + 2);
    ctx.fill();
  }
  ctx.restore();
}

/** A star where each series was best; the first, best of all, has its value beside it. */
export function stars(plot, bests, write) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.lineJoin = "round";
  for (const [rank, { place, value, hue }] of bests.entries()) {
    const [x, y] = [plot.valToPos(place, "x", true), plot.valToPos(value, "y", true)];
    if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) continue;
    star(ctx, x, y, 7 * ratio);
    ctx.fillStyle = colour(`--series-${hue}`);
    ctx.strokeStyle = colour("--surface");
    ctx.lineWidth = 3 * ratio;
    ctx.stroke();
    ctx.fill();
    if (!rank) note(plot, write(value), x, y);
  }
  ctx.restore();
}

function star(ctx, x, y, size) {
  ctx.beginPath();
  for (let i = 0; i < 10; i += 1) {
    const [angle, radius] = [(i * Math.PI) / 5 - Math.PI / 2, i % 2 ? size * 0.42 : size];
    ctx.lineTo(x + radius * Math.cos(angle), y + radius * Math.sin(angle));
  }
  ctx.closePath();
}

/** Write a value beside a point, inside the plot. */
function note({ ctx, bbox }, words, x, y) {
  const ratio = devicePixelRatio;
  ctx.font = `600 ${11 * ratio}px ${getComputedStyle(document.body).fontFamily}`;
  ctx.textAlign = x > bbox.left + bbox.width / 2 ? "right" : "left";
  const at = [x + (ctx.textAlign === "right" ? -10 : 10) * ratio, y > bbox.top + bbox.height - 26 * ratio ? y - 10 * ratio : y + 20 * ratio];
  ctx.lineWidth = 4 * ratio;
  ctx.strokeStyle = colour("--surface");
  ctx.strokeText(words, ...at);
  ctx.fillStyle = colour("--ink");
  ctx.fillText(words, ...at);
}
