// Lists of runs: events update progress and figures; a status change redraws the affected parts.
import { fill } from "./live_figures.js";
import { follow } from "./event_stream.js";
import { grow } from "./sparkline.js";

export default function start(root) {
  /** The last message about each run. The first message only repeats what the page shows. */
  const known = new Map();
  const ended = new AbortController();
  // Update parts that the server rendered before the last message.
  const again = () => known.forEach((run) => places(root, run).forEach((place) => fill(place, run)));
  document.addEventListener("htmx:after:swap", again, { signal: ended.signal });
  const stop = follow(root.dataset.live, {
    runs(runs) {
      const isFirst = known.size === 0;
      for (const run of runs) tell(root, run, known, isFirst);
    },
    hardware: () => document.body.dispatchEvent(new Event("hardware-changed")),
  });
  return () => {
    ended.abort();
    stop();
  };
}

function tell(root, run, known, isFirst) {
  const shown = places(root, run);
  const before = known.get(run.id)?.status ?? shown[0]?.dataset.status ?? (isFirst ? run.status : "");
  known.set(run.id, run);
  shown.forEach((place) => fill(place, run));
  for (const svg of shown.flatMap((place) => [...place.querySelectorAll("[data-curve]")])) grow(svg, run);
  const isNews = before !== run.status;
  if (isFirst && !isNews) return;
  shown.forEach((place) => place.dispatchEvent(new Event(isNews ? "run-changed" : "run-moved")));
  if (isNews) document.body.dispatchEvent(new Event("runs-changed"));
}

function places(root, run) {
  return [...root.querySelectorAll(`[data-run="${run.id}"]`)];
}
