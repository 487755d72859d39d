// Chart styling: theme colours, lines, bands, axes, and marks.
import { place as written, tick } from "../i18n/formatting.js";

const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
const probe = document.createElement("span");

/** Resolve a CSS custom property to a colour for the canvas. */
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.hidden = true;
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

function faint(stroke, alpha) {
  const [, parts] = stroke.match(/^rgb\((.*)\)$/) ?? [];
  return parts ? `rgb(${parts.replaceAll(",", "")} / ${alpha})` : stroke;
}

/** A series is four lines: minimum, maximum, raw, and smoothed; without bands only the last two. */
export function lines({ hue, dash }, { isBehind, hasBands, isShown }) {
  const stroke = colour(`--series-${hue}`);
  const common = { points: { show: false }, spanGaps: true, show: isShown };
  const bound = { ...common, stroke: "transparent", width: 0 };
  const line = { ...common, stroke, width: 1.5, dash: DASHES[dash] };
  const points = { show: (plot) => plot.data[0].length < 40, size: 5, fill: stroke };
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

/** The axes of a plot; `up` is bytes if the metric is. */
export function axes(unit, up) {
  const axis = {
    stroke: colour("--ink-2"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    font: `11px ${getComputedStyle(document.body).fontFamily}`,
  };
  const told = (how) => (_, ticks) => ticks.map((one) => (one === null ? "" : how(one)));
  const below =
    unit === "wall"
      ? { ...axis, size: 40 }
      : { ...axis, size: 28, values: told((one) => written(one, unit)) };
  return [below, { ...axis, size: 52, values: told((one) => tick(one, up)) }];
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
