// A sweep while its runs train: the server redraws it when a run changes.
import { follow } from "../live/event_stream.js";

export default function start(root) {
  const told = new Map();

  function isNews(run) {
    const row = root.querySelector(`[data-run="${run.id}"]`);
    if (!row) return false;
    const now = `${run.status} ${run.metrics[root.dataset.metric]}`;
    const before = told.get(run.id);
    told.set(run.id, now);
    return before === undefined ? run.status !== row.dataset.status : before !== now;
  }

  return follow(root.dataset.live, {
    runs(runs) {
      if (runs.filter(isNews).length) document.body.dispatchEvent(new Event("sweep-changed"));
    },
  });
}
