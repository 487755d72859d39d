// The chart of the style page, drawn from data in the page.
import { Chart } from "../charts/line_chart.js";

export default function start(root) {
  const host = root.querySelector("[data-keys]");
  const series = host.dataset.keys.split(",").map((key, hue) => ({ key, label: key, hue, dash: 0, isNoisy: hue === 0, isMarked: hue === 1, better: hue === 1 ? "lower" : "" }));
  const chart = new Chart(host, { title: host.dataset.title, group: "style", series });
  const { x, series: curves } = JSON.parse(root.dataset.curves);
  chart.load(x, curves);
  chart.smoothBy(0.6);
  return () => chart.dispose();
}
