// The chart of the style page, drawn from data in the page.
import { Chart } from "../charts/line_chart.js";

export default function start(root) {
  const host = root.querySelector("[data-keys]");
  const series = host.dataset.keys.split(",").map((key, dash) => ({ key, label: key, hue: 1, dash, isNoisy: !dash, isMarked: Boolean(dash), better: dash ? "lower" : "" }));
  const chart = new Chart(host, { title: host.dataset.title, group: "style", series });
  const { x, series: curves } = JSON.parse(root.dataset.curves);
  chart.load(x, curves);
  chart.smoothBy(0.6);
  return () => chart.dispose();
}
