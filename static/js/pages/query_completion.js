// Completion for the search box: the server suggests, this module applies a suggestion.

const WAIT_MS = 80;

/** @param {HTMLInputElement} field */
export function start(field) {
  return new Completion(field);
}

class Completion {
  constructor(field) {
    this.field = field;
    this.ended = new AbortController();
    const on = (type, act) => field.addEventListener(type, act, { signal: this.ended.signal });
    on("input", () => this.soon());
    on("keydown", (event) => this.key(event));
    on("blur", () => this.close());
    field.setAttribute("role", "combobox");
    field.setAttribute("aria-autocomplete", "list");
    field.setAttribute("aria-controls", "offers");
    this.close();
    if (field.value) this.soon();
  }

  dispose() {
    this.ended.abort();
    this.close();
  }

  get list() {
    return document.getElementById("offers");
  }

  get offers() {
    return this.isOpen ? [...this.list.querySelectorAll("[role=option]")] : [];
  }

  get chosen() {
    return this.offers.find((one) => one.getAttribute("aria-selected") === "true");
  }

  soon() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.ask(), WAIT_MS);
  }

  async ask() {
    const { value, selectionStart: at } = this.field;
    const address = `${this.field.dataset.completions}?${new URLSearchParams({ q: value, at })}`;
    const answer = await fetch(address, { signal: this.ended.signal }).catch(() => null);
    const html = answer?.ok ? await answer.text() : "";
    // The text has changed, or the field is gone: drop the stale suggestions.
    if (this.field.value !== value || document.activeElement !== this.field) return;
    this.list.outerHTML = html || this.list.outerHTML;
    this.isOpen = this.list.childElementCount > 0;
    this.list.hidden = !this.isOpen;
    this.list.addEventListener("pointerdown", (event) => this.press(event));
    this.field.setAttribute("aria-expanded", String(this.isOpen));
    this.choose(null);
  }

  close() {
    clearTimeout(this.waiting);
    this.isOpen = false;
    if (this.list) this.list.hidden = true;
    this.field.setAttribute("aria-expanded", "false");
    this.field.removeAttribute("aria-activedescendant");
  }

  choose(offer) {
    for (const one of this.offers) one.setAttribute("aria-selected", String(one === offer));
    if (offer) this.field.setAttribute("aria-activedescendant", offer.id);
    else this.field.removeAttribute("aria-activedescendant");
    offer?.scrollIntoView({ block: "nearest" });
  }

  /** Moving beyond either end of the list restores the typed text. */
  move(by) {
    const all = [null, ...this.offers];
    this.choose(all.at((all.indexOf(this.chosen ?? null) + by) % all.length));
  }

  take(offer) {
    const { start, end } = this.list.dataset;
    this.field.setRangeText(offer.dataset.text, Number(start), Number(end), "end");
    this.close();
    this.field.dispatchEvent(new Event("input", { bubbles: true }));
  }

  press(event) {
    const offer = event.target.closest("[role=option]");
    // The field keeps the focus.
    event.preventDefault();
    if (offer) this.take(offer);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "ArrowDown" && !this.isOpen) this.ask();
    else if (!this.isOpen) return;
    else if (step) this.move(step);
    else if (event.key === "Escape") this.close();
    else if (event.key === "Enter" && this.chosen) this.take(this.chosen);
    else if (event.key === "Tab") this.take(this.chosen ?? this.offers[0]);
    else {
      if (event.key === "Enter") this.close();
      return;
    }
    event.preventDefault();
  }
}
