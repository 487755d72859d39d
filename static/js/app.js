// Needed on every page: the theme button, page modules, and focus after navigation.
// A page module exports `default(element)`, which returns a cleanup function.

import { tick } from "./i18n/relative_time.js";
import { check, watch } from "./shell/connection.js";
import { phrase } from "./i18n/translations.js";
import { keepState } from "./shell/redraw.js";
import { listen } from "./shell/shortcuts.js";

/** @type {Map<Element, () => void>} */
const running = new Map();

/** Start the module of each element that names one and has not started it yet. */
async function boot() {
  const here = document.querySelector("nav [aria-current]");
  here?.scrollIntoView({ block: "nearest", inline: "center" });
  for (const element of document.querySelectorAll("[data-module]:not([data-booted])")) {
    element.dataset.booted = "";
    await load(element).catch(() => {
      // Loaded when the studio responds again.
      delete element.dataset.booted;
      check();
    });
  }
}

async function load(element) {
  const { default: start } = await import(element.dataset.module);
  if (element.isConnected) running.set(element, start(element));
  element.dataset.booted = "done";
}

/** Clean up modules whose elements have left the page. */
function sweep() {
  for (const [element, dispose] of running) {
    if (element.isConnected) continue;
    running.delete(element);
    dispose();
  }
}

/** After a boosted navigation, move focus to the heading or the problem of the new page. */
function settle(event) {
  const { ctx } = event.detail;
  if (ctx?.target !== document.body || ctx.request.anchor) return;
  const spot = document.getElementById("problems") ?? document.querySelector("h1");
  spot?.setAttribute("tabindex", "-1");
  spot?.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

function toggleTheme(event) {
  if (!event.target.closest("[data-theme-toggle]")) return;
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme ?? (prefersDark ? "dark" : "light");
  root.dataset.theme = localStorage.theme = now === "dark" ? "light" : "dark";
  document.dispatchEvent(new Event("themechange"));
}

/** Submit a form as soon as one of its `data-instant` controls changes. */
function submitAtOnce(event) {
  if (event.target.matches("[data-instant]")) event.target.form.requestSubmit();
}

/** Set the fields that a `data-repair` button names, and scroll to the last one. */
function repair(event) {
  const button = event.target.closest("[data-repair]");
  const form = button?.form;
  if (!form) return;
  event.preventDefault();
  button.closest("dialog")?.close();
  let last = null;
  for (const [name, value] of Object.entries(JSON.parse(button.dataset.repair))) {
    const setting = CSS.escape(name); // Several variants may have it, each in a field of its own.
    for (const field of form.querySelectorAll(`[name="${setting}"]:not([type=hidden]), [data-setting="${setting}"]`)) {
      if (field.type === "radio") field.checked = field.value === value;
      else if (field.type === "checkbox") field.checked = value === "true";
      else field.value = value;
      if (field.type !== "radio" || field.checked) last = field;
    }
  }
  form.dispatchEvent(new Event("change", { bubbles: true }));
  last?.closest("details")?.setAttribute("open", "");
  last?.focus();
}

/** Copy the text that a `data-copy` button names; if the browser forbids it, select the text. */
async function copy(event) {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(text.value ?? text.textContent);
    button.textContent = phrase("Copied");
  } catch {
    text.hidden = false;
    getSelection().selectAllChildren(text);
    text.select?.();
    button.textContent = phrase("Press Ctrl+C to copy");
  }
}

/** Let a drawing's script, loaded with the first use of one, answer pointer and keys. */
async function useDrawing(event) {
  if (!event.target.closest?.("[data-drawing]")) return;
  const { handle } = await import("./charts/drawing.js");
  handle(event);
}

/** Keep the URL of a rejected form: the URL it was posted to is not a page. */
function stayOnRefusal(event) {
  if (event.detail.response?.status >= 400) event.preventDefault();
}

listen();
keepState();
tick();
watch();
document.addEventListener("studio-back", boot);
document.addEventListener("click", toggleTheme);
document.addEventListener("click", repair);
document.addEventListener("click", copy);
for (const name of ["click", "dblclick", "pointerdown", "keydown"]) document.addEventListener(name, useDrawing);
document.addEventListener("htmx:before:history:update", stayOnRefusal);
document.addEventListener("change", submitAtOnce);
document.addEventListener("htmx:after:swap", (event) => {
  sweep();
  settle(event);
  boot();
});
boot();
