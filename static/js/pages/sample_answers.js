// Sample answers: rated by keyboard, filtered by URL, and redrawn while runs train.
import { put } from "./comparison_url.js";

/** Answers arrive some time after the metrics that announce them. */
const SETTLED_MS = 1500;

export default function start(root) {
  const ended = new AbortController();
  const { signal } = ended;
  root.dataset.hearsKeys = "";
  const page = root.closest("[data-live]");
  const news = later(() => refresh(["answers", "finals"]), SETTLED_MS, signal);
  /** Where the last key moves focus: "on" to the next answer, "back" to the undone one. */
  let leads = "";
  root.addEventListener("keydown", (event) => (leads = pressed(event) || leads), { signal });
  root.addEventListener("click", (event) => {
    if (event.target.closest("[data-start-rating]")) next(root)?.focus();
  }, { signal });
  root.addEventListener("htmx:after:swap", ({ target }) => {
    if (target.matches("[data-filter-answers]")) tidy(page, target);
    const rated = target.closest(".rate");
    if (!rated) return;
    // A morph keeps the user's input; reset it to the value the server stores.
    for (const one of rated.querySelectorAll("[type=radio]")) one.checked = one.defaultChecked;
    if (leads === "on") next(root, rated)?.focus();
    if (leads === "back") spot(rated).focus();
    leads = "";
    // While rating blind, other tables must not reveal whose answer was rated.
    if (page && !rated.elements.blind) refresh(["finals"]);
  }, { signal });
  page?.addEventListener("runs-news", news, { signal });
  return () => ended.abort();
}

/** Handle a key on an answer. Return where it moves focus. */
function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return "";
  const form = event.target.closest(".rate");
  if (!form && !event.target.closest(".told")) return "";
  const [button, leads] = buttonOf(form, event.key);
  if (!button) return "";
  event.preventDefault();
  button.click();
  return leads;
}

function buttonOf(form, key) {
  if (key === "u") return [document.querySelector("[data-undo]"), "back"];
  if (["0", "Backspace", "Delete"].includes(key)) {
    return [form?.querySelector("button[value='0']:not([hidden])"), "back"];
  }
  return [form?.querySelector(`[type=radio][value="${CSS.escape(key)}"]:not(:checked)`), "on"];
}

/** Return the next form without a rating after a form, or else that form itself. */
function next(root, after) {
  const forms = [...root.querySelectorAll(".rate")].filter((form) => form.checkVisibility());
  const place = forms.indexOf(after);
  const order = [...forms.slice(place + 1), ...forms.slice(0, place + 1)];
  const form = order.find((one) => !one.dataset.rate) ?? after ?? forms[0];
  form?.scrollIntoView({ block: "nearest", inline: "nearest" });
  return form && spot(form);
}

function spot(form) {
  return form.querySelector(":checked") ?? form.querySelector("[type=radio]");
}

/** Write the answer filter to the URL and to all forms and links that carry it. */
function tidy(page, form) {
  put(page, "differs", form.elements.differs.checked ? "1" : "");
  put(page, "find", form.elements.find.value);
}

/** Let the server redraw parts of this page; the answer being rated keeps the focus. */
async function refresh(ids) {
  const answer = await fetch(location.href).catch(() => null);
  if (!answer?.ok) return;
  const drawn = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const id of ids) {
    const [old, fresh] = [document.getElementById(id), drawn.getElementById(id)];
    if (!old || !fresh || old.querySelector("input[type=search]:focus")) continue;
    if (old.textContent === fresh.textContent) continue;
    const held = old.contains(document.activeElement) && document.activeElement.closest(".rate")?.id;
    old.replaceWith(document.adoptNode(fresh));
    htmx.process(fresh);
    if (held) document.getElementById(held)?.querySelector("input[type=radio]")?.focus();
  }
}

function later(act, milliseconds, signal) {
  let timer = 0;
  signal.addEventListener("abort", () => clearTimeout(timer));
  return () => {
    clearTimeout(timer);
    timer = setTimeout(act, milliseconds);
  };
}
