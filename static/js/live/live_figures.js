// The figures of a run, formatted as on the server: see `studio/web/rendering/live_figures.py`.

import { measure, percent, short, span } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";

/** Figures that are not metrics. */
const FIGURES = {
  step: (run) => short(run.step),
  total: (run) => (run.total_steps ? short(run.total_steps) : "…"),
  share: (run) => (run.progress === null ? "" : percent(Math.floor(run.progress * 100))),
  epoch: (run) => short(run.epoch),
  tokens: (run) => short(run.tokens),
  eta: (run) => (run.eta_seconds === null ? "" : phrase("{time} left", { time: span(run.eta_seconds) })),
  duration: (run) => span(run.total_seconds),
  phase: (run) => (run.phase ? phrase(run.phase) : ""),
};

/** Update all figures of a run within an element, and show tiles that now have a value. */
export function fill(place, run) {
  const bar = place.querySelector("[data-run-progress]");
  if (bar && run.progress !== null) bar.value = run.progress;
  for (const spot of place.querySelectorAll("[data-put]")) {
    const name = spot.dataset.put;
    const text = FIGURES[name]?.(run) ?? measure(run.metrics[name], name);
    if (spot.textContent !== text) spot.textContent = text;
    if (name in run.metrics) spot.closest("[data-tile]")?.removeAttribute("hidden");
  }
}
