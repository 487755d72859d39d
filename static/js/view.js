// The state of a page of comparison: it stands in the address, and in every form and link that
// leads back to the page.

/** Put a value into the address; nothing where it is as it comes. */
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

/** Read a part of an axis, as `10..20`. */
export function span(words) {
  const [min, max] = words.split("..").map(Number);
  return words && Number.isFinite(min) && Number.isFinite(max) ? { min, max } : null;
}
