// Curves of several runs laid over each other.
import { Chart } from "./chart.js";

export default function start(root) {
  const runs = JSON.parse(root.dataset.runs);
  const hosts = [...root.querySelectorAll("[data-key]")];
  const charts = hosts.map((host) => draw(host, runs, root.dataset.unit));
  const slider = root.querySelector("[data-smooth]");
  const smooth = () => {
    slider.nextElementSibling.textContent = Number(slider.value).toFixed(2);
    charts
      .filter(({ host }) => host.hasAttribute("data-noisy"))
      .forEach((chart) => chart.smoothBy(Number(slider.value)));
  };
  slider.addEventListener("input", smooth);
  smooth();
  load(root.dataset.curves, charts);
  return () => charts.forEach((chart) => chart.dispose());
}

function draw(host, runs, unit) {
  const isNoisy = host.hasAttribute("data-noisy");
  const series = runs.map(({ id, ...line }) => ({ key: String(id), isNoisy, ...line }));
  return new Chart(host, { title: host.dataset.title, group: "compare", unit, series });
}

async function load(url, charts) {
  const answer = await fetch(url);
  if (!answer.ok) return;
  const { x, curves } = await answer.json();
  for (const chart of charts) chart.load(x, curves[chart.host.dataset.key] ?? {});
}
