// The recipe form: marks changed settings, and searches settings.

import { phrase } from "../i18n/translations.js";

/** @param {HTMLElement} page The element around the form: a form's own properties are shadowed by its fields. */
export default function start(page) {
  const form = page.querySelector("#form");
  const find = form.querySelector("#find");
  const found = form.querySelector("#found");
  const end = new AbortController();
  const on = (target, type, act) => target.addEventListener(type, act, { signal: end.signal });
  on(form, "input", () => mark(form));
  on(form, "change", () => mark(form));
  on(form, "click", (event) => lead(form, event));
  // The search box is not a setting: it sends no request, and Enter submits nothing.
  on(find, "input", () => (found.textContent = seek(form, find.value)));
  on(find, "change", (event) => event.stopPropagation());
  on(find, "keydown", (event) => event.key === "Enter" && event.preventDefault());
  find.hidden = false;
  return () => end.abort();
}

function mark(form) {
  for (const knob of form.querySelectorAll("[data-base]")) {
    knob.classList.toggle("changed", !same(valueOf(knob), knob.dataset.base));
  }
}

function valueOf(knob) {
  const control = knob.querySelector("input:not([type=hidden]), select");
  if (control.type === "checkbox") return String(control.checked);
  return control.type === "radio" ? knob.querySelector("[type=radio]:checked")?.value : control.value;
}

/** Whether two texts have the same value: 2e-4 equals 0.0002. */
function same(one = "", other = "") {
  const [a, b] = [one.trim(), other.trim()];
  return a === b || (a !== "" && b !== "" && Number(a) === Number(b));
}

/** Show the settings whose label, name, help or section contains all words. */
function seek(form, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (...texts) => words.every((word) => texts.join(" ").toLowerCase().includes(word));
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

/** Follow a link to a setting, showing it if it is hidden. */
function lead(form, event) {
  const id = event.target.closest('a[href^="#"]')?.getAttribute("href").slice(1);
  const target = id && document.getElementById(id);
  if (!target) return;
  event.preventDefault();
  form.querySelector("#view-all").checked ||= !target.offsetParent;
  target.closest("details")?.setAttribute("open", "");
  const spot = target.matches("input, select, textarea") ? target : target.querySelector(":checked") ?? target;
  spot.focus();
  spot.scrollIntoView({ block: "center" });
}
