// The state of the comparison page: kept in the URL, and in every form and link that leads back
// to the page.

/** Write a value to the URL; remove it if it is the default. */
export function put(root, name, value) {
  const address = new URL(location.href);
  set(address.searchParams, name, value);
  history.replaceState(history.state, "", address);
  for (const field of root.querySelectorAll(`input[type=hidden][name="${name}"]`)) {
    field.value = value;
    field.disabled = value === "";
  }
  for (const link of root.querySelectorAll("a[data-keep]")) {
    const to = new URL(link.href);
    set(to.searchParams, name, value);
    link.href = to.pathname + to.search;
  }
  const query = root.querySelector("[data-query]");
  if (!query) return;
  const kept = new URLSearchParams(address.search);
  kept.delete("saved");
  query.value = String(kept);
}

function set(params, name, value) {
  if (value === "") params.delete(name);
  else params.set(name, value);
}

/** Parse a range of an axis, such as `10..20`. */
export function span(words) {
  const [min, max] = words.split("..").map(Number);
  return words && Number.isFinite(min) && Number.isFinite(max) ? { min, max } : null;
}

/** The number of buckets to request for a range of an axis: about one per pixel. */
const FINE = 800;
/** Wait this long for the zoom to settle before requesting. */
const SETTLED_MS = 250;

/** Request finer curves once a zoom has settled; call `whole` when the zoom is reset. */
export class Finer {
  constructor(signal, { whole = () => {}, part }) {
    Object.assign(this, { signal, whole, part });
    signal.addEventListener("abort", () => clearTimeout(this.waiting));
  }

  zoomed(range) {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => (range ? this.part(range) : this.whole()), SETTLED_MS);
  }

  /** Fetch a URL for a range of its axis. */
  async fetch(address, { min, max }) {
    const part = new URL(address, location.href);
    for (const [name, value] of [["from", min], ["to", max], ["buckets", FINE]]) part.searchParams.set(name, value);
    const answer = await fetch(part, { signal: this.signal }).catch(() => null);
    return answer?.ok ? answer.json() : null;
  }
}
