// Lists of runs: bars and numbers move as events come; a change of status redraws what shows it.
import { short, span } from "./numbers.js";
import { phrase } from "./phrases.js";
import { follow } from "./stream.js";

export default function start(root) {
  /** Statuses told so far. The first message only repeats what the page shows. */
  const told = new Map();
  return follow(root.dataset.live, {
    runs(runs) {
      const isFirst = told.size === 0;
      for (const run of runs) tell(root, run, told, isFirst);
    },
  });
}

function tell(root, run, told, isFirst) {
  const places = root.querySelectorAll(`[data-run="${run.id}"]`);
  places.forEach((place) => fill(place, run));
  const before = told.get(run.id) ?? places[0]?.dataset.status ?? (isFirst ? run.status : "");
  told.set(run.id, run.status);
  if (before === run.status) return;
  places.forEach((place) => place.dispatchEvent(new Event("run-changed")));
  document.body.dispatchEvent(new Event("runs-changed"));
}

function fill(place, run) {
  const bar = place.querySelector("progress");
  if (bar && run.progress !== null) bar.value = run.progress;
  const words = inWords(run);
  place.querySelectorAll("[data-put]").forEach((spot) => {
    spot.textContent = words[spot.dataset.put];
  });
}

function inWords(run) {
  return {
    step: run.step,
    total: run.total_steps ?? "…",
    eta: run.eta_seconds === null ? "" : phrase("{time} left", { time: span(run.eta_seconds) }),
    loss: short(run.metrics.loss),
    share: run.progress === null ? "" : phrase("{share} %", { share: Math.floor(run.progress * 100) }),
  };
}
