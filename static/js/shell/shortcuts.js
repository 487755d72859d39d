// Keyboard shortcuts. Single-key ones can be turned off, because they may be pressed by accident
// (WCAG 2.1.4); the choice is stored in this browser.

import { open } from "./command_palette.js";

const SEQUENCE_MS = 1500;
const TYPES = ":is(input:not([type=checkbox], [type=radio], [type=range]), textarea, select, [contenteditable])";

let began = -Infinity; // when g was pressed

/** Listen on the document, which stays across boosted navigations. */
export function listen() {
  document.addEventListener("keydown", press);
  document.addEventListener("click", click);
  document.addEventListener("change", keep);
  document.addEventListener("htmx:after:swap", show);
  show();
}

function press(event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    open();
  } else if (mayAct(event) && act(event.key, event.timeStamp)) {
    event.preventDefault();
  }
}

function mayAct(event) {
  if (localStorage.singleKeys === "off" || event.ctrlKey || event.metaKey || event.altKey) return false;
  // The field of a dialog that just closed keeps the focus for a moment: ignore it.
  return !event.target.closest?.(TYPES)?.checkVisibility() && !document.querySelector("dialog:modal");
}

/** Run the action of a key. Return whether it has one. */
function act(key, now) {
  const place = now - began < SEQUENCE_MS && document.querySelector(`nav [data-key="${CSS.escape(key)}"]`);
  began = key === "g" && !place ? now : -Infinity;
  if (place) place.click();
  else if (key === "/") find();
  else if (key === "?") list();
  else return false;
  return true;
}

/** Focus the search field of this page, or else open the palette. */
function find() {
  const field = document.querySelector("main input[type=search]");
  if (!field) return open();
  field.focus();
  field.select();
}

function list() {
  const dialog = document.getElementById("keys");
  dialog.querySelector("[hx-get]")?.dispatchEvent(new Event("asked"));
  dialog.showModal();
}

function click(event) {
  const on = (name) => event.target.closest(`[data-${name}]`);
  if (on("palette") && !(event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    event.stopPropagation();
    open();
  } else if (on("shortcuts")) {
    list();
  } else if (on("tour-start")) {
    import("./tour.js").then(({ start }) => start());
  }
}

function keep(event) {
  if (!event.target.matches("[data-single-keys]")) return;
  localStorage.singleKeys = event.target.checked ? "on" : "off";
  show();
}

/** Set each switch on the page to the stored choice. */
function show() {
  for (const one of document.querySelectorAll("[data-single-keys]")) {
    one.checked = localStorage.singleKeys !== "off";
  }
}
