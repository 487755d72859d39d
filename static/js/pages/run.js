// The run page: its charts, its log, and the parts that the server redraws when they change.
import { Bell } from "../live/run_notification.js";
import { Chart } from "../charts/line_chart.js";
import { fill } from "../live/live_figures.js";
import { Log } from "../live/log_tail.js";
import { follow } from "../live/event_stream.js";
import { Finer } from "./comparison_url.js";

export default function start(root) {
  const charts = [...root.querySelectorAll("[data-keys]")].map(draw);
  const log = new Log(root.querySelector("[data-log]"));
  const bell = new Bell(root);
  const slider = root.querySelector("[data-smooth]");
  const smoothing = () => smoothBy(charts, slider);
  slider.addEventListener("input", smoothing);
  smoothing();

  const ended = new AbortController();
  const finer = new Finer(ended.signal, { part: (range) => refine(root, charts, finer, range) });
  root.addEventListener("chart-zoom", ({ detail }) => finer.zoomed(detail), { signal: ended.signal });
  /** The last message from the stream, to update a header that the server rendered before it. */
  const newest = {};
  const again = () => newest.run && fill(root.querySelector("#head"), newest.run);
  document.addEventListener("htmx:after:swap", again, { signal: ended.signal });
  let stop = () => {};
  let isOver = false;
  load(root, charts).then((last) => {
    if (!isOver) stop = listen(root, { charts, log, bell, newest }, last);
  });
  return () => {
    isOver = true;
    ended.abort();
    stop();
    bell.dispose();
    charts.forEach((chart) => chart.dispose());
  };
}

function draw(host) {
  const keys = host.dataset.keys.split(",");
  const labels = host.dataset.labels.split(",");
  const noisy = host.dataset.noisy;
  const better = host.dataset.better.split(",");
  const series = keys.map((key, k) => ({
    key,
    label: labels[k],
    hue: (Number(host.dataset.hue) + k) % 8,
    dash: 0,
    isNoisy: key === noisy,
    isMarked: key.startsWith("eval_"),
    better: better[k],
  }));
  const brokenAt = (_key, step) => `${location.pathname}/broken?step=${step}`;
  return new Chart(host, { title: host.dataset.title, group: "run", series, brokenAt });
}

/** Fetch the curves so far. Return the event id to continue from. */
async function load(root, charts) {
  const answer = await fetch(root.dataset.metrics).catch(() => null);
  // Without them, the stream sends all metrics from the first.
  if (!answer?.ok) return "";
  const { x, series, last_id: last } = await answer.json();
  charts.forEach((chart) => chart.load(x, series));
  reveal(charts);
  return String(last);
}

/** Show finer curves of the range that the charts are zoomed to. */
async function refine(root, charts, finer, range) {
  const told = await finer.fetch(root.dataset.metrics, range);
  if (told) charts.forEach((chart) => chart.refine(range, told.x, told.series));
}

function listen(root, { charts, log, bell, newest }, last) {
  return follow(
    root.dataset.stream,
    {
      metrics(rows) {
        for (const row of rows) charts.forEach((chart) => chart.push(row.step, row.values));
        reveal(charts);
        if (rows.some((row) => "grad_norm" in row.values)) announce("run-numerics");
      },
      log: ({ lines }) => log.add(lines),
      status(run) {
        newest.run = run;
        tell(root, bell, run);
      },
      sample: () => announce("run-samples"),
      event: () => announce("run-history"),
    },
    `${last}..${root.dataset.happened}`,
    () => bell.isOn,
  );
}

/** Charts of metrics that not every run reports appear with the first value. */
function reveal(charts) {
  for (const { host, curves } of charts) {
    if (host.closest(".chart").hidden && !curves.isEmpty) host.closest(".chart").hidden = false;
  }
}

/** Update the run's progress; if its status changed, let the server redraw what depends on it. */
function tell(root, bell, run) {
  fill(root.querySelector("#head"), run);
  if (root.dataset.status === run.status) return;
  root.dataset.status = run.status;
  bell.ring(run);
  announce("run-status");
}

function smoothBy(charts, slider) {
  const weight = Number(slider.value);
  slider.nextElementSibling.textContent = weight.toFixed(2);
  for (const chart of charts) if (chart.host.dataset.noisy) chart.smoothBy(weight);
}

function announce(name) {
  document.body.dispatchEvent(new Event(name));
}
