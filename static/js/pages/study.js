// A precision study while its runs train: its gap charts, and the parts that the server redraws.
import { Chart } from "../charts/line_chart.js";
import { follow } from "../live/event_stream.js";

export default function start(root) {
  const lines = JSON.parse(root.dataset.lines);
  const charts = [...root.querySelectorAll("[data-key]")].map((host) => draw(host, lines));
  const switches = [...root.querySelectorAll("[data-drawn]")];
  const told = new Map();
  let curves = null;

  function show() {
    const drawn = new Set(switches.filter((one) => one.checked).map((one) => one.value));
    if (curves) charts.forEach((chart) => lay(chart, curves[chart.host.dataset.key], drawn));
  }

  async function load() {
    const answer = await fetch(root.dataset.report).catch(() => null);
    if (!answer?.ok) return;
    ({ curves } = await answer.json());
    show();
  }

  function hear(runs) {
    if (!runs.filter((run) => isNews(root, run, told)).length) return;
    document.body.dispatchEvent(new Event("study-changed"));
    load();
  }

  switches.forEach((one) => one.addEventListener("change", show));
  load();
  const stop = follow(root.dataset.live, { runs: hear });
  return () => {
    stop();
    charts.forEach((chart) => chart.dispose());
  };
}

function draw(host, lines) {
  return new Chart(host, { title: host.dataset.title, group: "study", series: lines });
}

/** Set the modes a chart draws, with bands only for those it names. */
function lay(chart, { x, series }, drawn) {
  const banded = chart.host.dataset.banded.split(",");
  const shown = Object.entries(series)
    .filter(([mode]) => drawn.has(mode))
    .map(([mode, one]) => [
      mode,
      banded.includes(mode) ? one : { ...one, min: one.mean, max: one.mean },
    ]);
  chart.load(x, Object.fromEntries(shown));
}

/** Whether a run of this study has a new status or a new validation. */
function isNews(root, run, told) {
  const row = root.querySelector(`[data-run="${run.id}"]`);
  if (!row) return false;
  const now = `${run.status} ${run.metrics.eval_loss}`;
  const before = told.get(run.id);
  told.set(run.id, now);
  return before === undefined ? run.status !== row.dataset.status : before !== now;
}
