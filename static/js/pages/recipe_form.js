// The recipe form: marks changed settings, opens and searches the settings, filters models.

import { start as startDrop } from "./data_drop.js";
import { phrase } from "../i18n/translations.js";

/** Whether the settings were open when the form was last redrawn. */
let wasOpen = false;

/** @param {HTMLElement} page The element around the form: a form's own properties are shadowed by its fields. */
export default function start(page) {
  const form = page.querySelector("#form");
  const find = form.querySelector("#find");
  const found = form.querySelector("#found");
  const settings = form.querySelector("#all-settings");
  const end = new AbortController();
  const on = (target, type, act) => target.addEventListener(type, act, { signal: end.signal });
  on(form, "input", () => mark(form));
  on(form, "change", () => mark(form));
  on(page, "click", (event) => lead(form, event));
  // The search box is not a setting: it sends no request, and Enter submits nothing.
  on(find, "input", () => (found.textContent = seek(form, find.value)));
  on(find, "change", (event) => event.stopPropagation());
  on(find, "keydown", (event) => event.key === "Enter" && event.preventDefault());
  // While the settings are closed, the tokens of a row are not visible.
  on(form, "htmx:before:request", (event) => event.target.id === "sight" && !settings.open && event.preventDefault());
  on(settings, "toggle", () => (wasOpen = settings.open));
  on(page, "input", (event) => event.target.id === "filter-models" && filter(page, event.target.value));
  on(page, "htmx:after:swap", () => filter(page, page.querySelector("#filter-models").value));
  startDrop(form, end.signal);
  if (find.value) found.textContent = seek(form, find.value); // Typed before this module was loaded.
  settings.open ||= wasOpen && location.hash === "";
  const isWriting = form.contains(document.activeElement); // Since before this module was loaded.
  if (location.hash) show(form, document.getElementById(location.hash.slice(1)), !isWriting);
  return () => end.abort();
}

function mark(form) {
  for (const knob of form.querySelectorAll("[data-base]")) {
    const isSame = knob.querySelector("textarea") ? sameJson : same;
    knob.classList.toggle("changed", !isSame(valueOf(knob), knob.dataset.base));
  }
}

function valueOf(knob) {
  const control = knob.querySelector("input:not([type=hidden]), select, textarea");
  if (control.type === "checkbox") return String(control.checked);
  return control.type === "radio" ? knob.querySelector("[type=radio]:checked")?.value : control.value;
}

/** Whether two texts have the same value: 2e-4 equals 0.0002. */
function same(one = "", other = "") {
  const [a, b] = [one.trim(), other.trim()];
  return a === b || (a !== "" && b !== "" && Number(a) === Number(b));
}

/** Whether two texts hold the same JSON, or are equal. */
function sameJson(one, other) {
  const sorted = (_key, value) =>
    value && typeof value === "object" && !Array.isArray(value) ? Object.fromEntries(Object.entries(value).sort()) : value;
  try {
    return JSON.stringify(JSON.parse(one), sorted) === JSON.stringify(JSON.parse(other), sorted);
  } catch {
    return one.trim() === other.trim();
  }
}

/** Show the settings whose label, name, help or section contains all words. */
function seek(form, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (...texts) => words.every((word) => texts.join(" ").toLowerCase().includes(word));
  if (words.length) form.querySelector("#all-settings").open = true;
  form.classList.toggle("finding", words.length > 0);
  for (const part of form.querySelectorAll(".recipe > :is(section, fieldset)")) {
    const title = part.querySelector(":scope > legend")?.textContent ?? "";
    const knobs = [...part.querySelectorAll(".field")];
    for (const knob of knobs) {
      const name = knob.querySelector("[name]").name;
      knob.hidden = !has(title, knob.textContent, name, name.replaceAll("_", " "));
    }
    const named = [...part.querySelectorAll(":scope > .help, .choice strong")];
    const says = has(title, ...named.map((one) => one.textContent));
    part.hidden = knobs.length ? knobs.every((knob) => knob.hidden) : !says;
  }
  if (!words.length) return "";
  const shown = [...form.querySelectorAll(".recipe .field")].filter((knob) => knob.offsetParent).length;
  if (!shown) return phrase("No matching settings.");
  return shown > 1 ? phrase("{shown} settings", { shown }) : phrase("1 setting");
}

/** Show the models whose name or family contains all words. */
function filter(page, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of page.querySelectorAll("#model-offers li")) {
    row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  }
}

/** Follow a link to a setting, showing it if it is hidden. */
function lead(form, event) {
  const id = event.target.closest('a[href^="#"]')?.getAttribute("href").slice(1);
  const target = id && document.getElementById(id);
  if (!target) return;
  event.preventDefault();
  show(form, target);
}

function show(form, target, withFocus = true) {
  if (!target) return;
  for (let outer = target.closest("details"); outer; outer = outer.parentElement.closest("details")) outer.open = true;
  if (target.id !== "settings") form.querySelector("#view-all").checked ||= !target.offsetParent;
  const spot = target.matches("input, select, textarea, #settings") ? target : target.querySelector(":checked") ?? target;
  if (!withFocus) return;
  spot.focus({ preventScroll: true });
  spot.scrollIntoView({ block: target.id === "settings" ? "start" : "center" });
}
