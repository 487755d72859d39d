// A small curve of a running run that grows with its events, drawn as the server draws it.

const MOST = 120; // points; beyond that, every second one is dropped

/** Add the newest loss of a run to the curve of an element, once per step. */
export function grow(svg, run) {
  const value = run.metrics.loss;
  if (!Number.isFinite(value) || Number(svg.dataset.step) >= run.step) return;
  let curve = [...JSON.parse(svg.dataset.curve), value];
  if (curve.length > MOST) curve = curve.filter((_, i) => i % 2 === 0);
  svg.dataset.curve = JSON.stringify(curve);
  svg.dataset.step = run.step;
  svg.firstElementChild.setAttribute("points", points(curve));
}

/** Return the points of a polyline that fits an 80 by 20 box. */
function points(curve) {
  const low = Math.min(...curve);
  const scale = 16 / (Math.max(...curve) - low || Infinity);
  const across = 78 / Math.max(1, curve.length - 1);
  return curve.map((value, i) => `${(1 + i * across).toFixed(1)},${(18 - (value - low) * scale).toFixed(1)}`).join(" ");
}
