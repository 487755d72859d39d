// "Notify me": a browser notification or, if notifications are blocked, the tab title.

import { phrase } from "../i18n/translations.js";

const ENDS = {
  succeeded: (name) => phrase("{name} has succeeded.", { name }),
  failed: (name) => phrase("{name} has failed.", { name }),
  cancelled: (name) => phrase("{name} was cancelled.", { name }),
  paused: (name) => phrase("{name} has paused.", { name }),
};

const WORDS = {
  granted: phrase("You will get a notification. Keep this page open."),
  denied: phrase("Notifications are blocked in this browser, so the tab title will show the result. Keep this page open."),
  default: phrase("Allow notifications, or watch the tab title. Keep this page open."),
};

/** Say how a run ended; empty while it has not. */
export function sentenceOf(run) {
  return ENDS[run.status]?.(run.name) ?? "";
}

export class Bell {
  /** @param {HTMLElement} root the run page */
  constructor(root) {
    this.root = root;
    this.key = `tell:${location.pathname}`;
    this.watch = new AbortController();
    const { signal } = this.watch;
    root.addEventListener("click", (event) => event.target.closest("[data-bell]") && this.toggle(), { signal });
    this.draw();
  }

  /** Whether a notification is requested, also after a reload of the page. */
  get isOn() {
    return sessionStorage.getItem(this.key) !== null;
  }

  async toggle() {
    if (this.isOn) sessionStorage.removeItem(this.key);
    else sessionStorage.setItem(this.key, "on");
    this.draw();
    if (!this.isOn || permission() !== "default") return;
    await Notification.requestPermission();
    this.draw();
  }

  draw() {
    const button = this.root.querySelector("[data-bell]");
    if (!button) return;
    button.hidden = false;
    button.setAttribute("aria-pressed", String(this.isOn));
    this.say(this.isOn ? WORDS[permission()] : "");
  }

  /** Notify once when the run has ended: if requested, or if allowed and the page is hidden. */
  ring(run) {
    const sentence = sentenceOf(run);
    const isAway = document.hidden && permission() === "granted";
    if (!sentence || !(this.isOn || isAway)) return;
    sessionStorage.removeItem(this.key);
    this.say(""); // The page shows a toast.
    entitle(sentence, this.watch.signal);
    show(sentence, run.error?.message ?? "", this.key);
  }

  say(words) {
    this.root.querySelector("[data-bell-words]").textContent = words;
  }

  dispose() {
    this.watch.abort();
  }
}

function permission() {
  return "Notification" in window ? Notification.permission : "denied";
}

/** Show the sentence as the tab title, overriding htmx, until the user returns. */
function entitle(sentence, left) {
  const before = document.title;
  const seen = new AbortController();
  const signal = AbortSignal.any([left, seen.signal]);
  const put = () => {
    if (!signal.aborted) document.title = `${sentence} · Mantissa Studio`;
  };
  const clear = () => {
    if (document.hidden) return;
    seen.abort();
    document.title = before;
  };
  document.addEventListener("htmx:after:swap", () => setTimeout(put), { signal });
  document.addEventListener("visibilitychange", clear, { signal });
  put();
}

function show(sentence, body, tag) {
  if (permission() !== "granted") return;
  try {
    const note = new Notification(sentence, { body, tag });
    note.onclick = () => {
      window.focus();
      note.close();
    };
  } catch {
    // Some phones have `Notification` but cannot construct one: there the title is enough.
  }
}
