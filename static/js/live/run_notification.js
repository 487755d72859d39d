// "Tell me when it ends": a notification of the browser's; where it is refused, the tab's title.

import { phrase } from "../i18n/translations.js";

const ENDS = {
  succeeded: (name) => phrase("{name} has succeeded.", { name }),
  failed: (name) => phrase("{name} has failed.", { name }),
  cancelled: (name) => phrase("{name} was cancelled.", { name }),
  paused: (name) => phrase("{name} has paused.", { name }),
};

const WORDS = {
  granted: phrase("You will be told by a notification. Leave this page open."),
  denied: phrase("This browser shows no notifications from here, so the tab’s title will tell you. Leave this page open."),
  default: phrase("Allow notifications, or the tab’s title will tell you. Leave this page open."),
};

export class Bell {
  /** @param {HTMLElement} root the run's page */
  constructor(root) {
    this.root = root;
    this.key = `tell:${location.pathname}`;
    this.watch = new AbortController();
    const { signal } = this.watch;
    root.addEventListener("click", (event) => event.target.closest("[data-bell]") && this.toggle(), { signal });
    this.draw();
  }

  /** Whether somebody waits to be told, also after the page was loaded anew. */
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

  /** Tell of a run that has changed its status, once. */
  ring(run) {
    if (!this.isOn || !(run.status in ENDS)) return;
    sessionStorage.removeItem(this.key);
    const sentence = ENDS[run.status](run.name);
    this.say(sentence);
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

/** Put the sentence into the tab's title, over what htmx puts there, until people come back. */
function entitle(sentence, left) {
  const before = document.title;
  const seen = new AbortController();
  const signal = AbortSignal.any([left, seen.signal]);
  const put = () => {
    if (!signal.aborted) document.title = `${sentence} · ${before}`;
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
    // Some phones have the word but not the thing: there the title has told it.
  }
}
