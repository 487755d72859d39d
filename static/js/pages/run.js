// A tab of a run's page: its figures, charts and log, and the parts that the server redraws.
import { Bell, sentenceOf } from "../live/run_notification.js";
import { Finer } from "./comparison_url.js";
import { Log } from "../live/log_tail.js";
import { closeMenus } from "../shell/menus.js";
import { fill } from "../live/live_figures.js";
import { follow } from "../live/event_stream.js";
import { TabProgress } from "../live/tab_progress.js";
import { Tiles } from "../live/tiles.js";

/** Of a tab without a slider: as the slider starts. */
const SMOOTHING = 0.6;
/** Where to start in a log that this tab does not show: after its end. */
const NO_LOG = Number.MAX_SAFE_INTEGER;

export default function start(root) {
  const ended = new AbortController();
  const { signal } = ended;
  const panel = root.querySelector("[data-log]");
  const tab = { charts: [], log: panel && new Log(panel), bell: new Bell(root), tiles: new Tiles(root), run: null };
  tab.progress = new TabProgress(`/api/v1/runs/${root.dataset.run}`, root.querySelector("h1").firstChild.textContent.trim(), (run) => tell(root, tab, run));
  document.addEventListener("htmx:after:swap", () => again(root, tab), { signal });
  root.querySelector("[data-toast] button").addEventListener("click", ({ target }) => (target.parentElement.hidden = true));
  closeMenus(root, signal);
  let stop = () => {};
  open(root, tab, signal).then((last) => {
    if (!signal.aborted) stop = listen(root, tab, last);
  });
  return () => {
    ended.abort();
    stop();
    tab.bell.dispose();
    tab.progress.dispose();
    tab.charts.forEach((chart) => chart.dispose());
  };
}

/** Update parts that the server rendered before the last message from the stream. */
function again(root, tab) {
  if (tab.run) fill(root, tab.run);
  tab.tiles.draw();
  // A morph keeps where a slider was moved to; one at its end follows to newer answers.
  for (const slider of root.querySelectorAll(".scrub [type=range]")) {
    if (slider.matches("[data-newest]")) slider.value = slider.max;
    else if (slider !== document.activeElement) slider.value = slider.defaultValue;
  }
}

/** Draw the charts of this tab, if it has any. Return the metric id to continue from. */
async function open(root, tab, signal) {
  const hosts = [...root.querySelectorAll("[data-keys]")];
  if (!hosts.length) return root.dataset.lastMetric;
  const { Chart } = await import("../charts/line_chart.js");
  if (signal.aborted) return "";
  tab.charts = hosts.map((host) => draw(Chart, host, root.dataset.run));
  listenToSmoothing(root, tab.charts);
  const finer = new Finer(signal, { part: (range) => refine(root, tab.charts, finer, range) });
  root.addEventListener("chart-zoom", ({ detail }) => finer.zoomed(detail), { signal });
  return load(root, tab.charts);
}

function listenToSmoothing(root, charts) {
  const slider = root.querySelector("[data-smooth]");
  const smoothing = () => smoothBy(charts, slider);
  slider?.addEventListener("input", smoothing);
  if (slider) smoothing();
  else for (const chart of charts) if (chart.host.dataset.noisy) chart.smoothBy(SMOOTHING);
}

function draw(Chart, host, run) {
  const keys = host.dataset.keys.split(",");
  const labels = host.dataset.labels.split(",");
  const noisy = host.dataset.noisy;
  const better = host.dataset.better.split(",");
  const series = keys.map((key, k) => ({
    key,
    label: labels[k],
    hue: Number(host.dataset.hue),
    dash: k % 4,
    isNoisy: key === noisy,
    isMarked: key.startsWith("eval_"),
    better: better[k],
  }));
  const brokenAt = (_key, step) => `/runs/${run}/broken?step=${step}`;
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

function listen(root, tab, last) {
  const { charts, log, bell, tiles } = tab;
  return follow(
    root.dataset.stream,
    {
      metrics(rows) {
        for (const row of rows) charts.forEach((chart) => chart.push(row.step, row.values));
        reveal(charts);
        tiles.push(rows);
        announce("run-metrics");
        if (rows.some((row) => "grad_norm" in row.values)) announce("run-numerics");
      },
      log: ({ lines }) => log?.add(lines),
      status: (run) => tell(root, tab, run),
      sample: () => announce("run-samples"),
      event: () => announce("run-history"),
      hardware: () => announce("hardware-changed"),
    },
    `${last}.${log ? "" : NO_LOG}.${root.dataset.lastEvent}`,
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
function tell(root, tab, run) {
  tab.run = run;
  fill(root, run);
  const isNews = root.dataset.status !== run.status;
  if (isNews || !sentenceOf(run)) tab.progress.show(run);
  if (!isNews) return;
  root.dataset.status = run.status;
  tab.bell.ring(run);
  toast(root, run);
  announce("run-status");
}

/** Say that the run has ended. */
function toast(root, run) {
  const sentence = sentenceOf(run);
  if (!sentence) return;
  const place = root.querySelector("[data-toast]");
  place.hidden = false;
  place.querySelector("[role=status]").textContent = sentence;
}

function smoothBy(charts, slider) {
  const weight = Number(slider.value);
  slider.nextElementSibling.textContent = weight.toFixed(2);
  for (const chart of charts) if (chart.host.dataset.noisy) chart.smoothBy(weight);
}

function announce(name) {
  document.body.dispatchEvent(new Event(name));
}
