// A file dropped on the form of an experiment becomes its dataset. Where the columns are not certain,
// the page that maps them comes in between, and leads back to the form as it was.

import { post, UNREACHED } from "./file_upload.js";
import * as parts from "./resumable_upload.js";
import { phrase } from "../i18n/translations.js";

const LARGE = 16 * 2 ** 20; // bytes; larger files are sent in parts and can resume
const POLL = 500; // milliseconds

/** @param {HTMLFormElement} form @param {AbortSignal} signal */
export function start(form, signal) {
  const zone = form.querySelector("#drop");
  if (!zone) return;
  const card = zone.closest(".decision");
  const on = (target, type, act) => target.addEventListener(type, act, { signal });
  const input = zone.querySelector("input");
  const carriesFile = (event) => event.dataTransfer?.types.includes("Files");
  const takeChosen = () => input.files.length && take(form, zone, input.files[0], signal);
  on(input, "change", (event) => {
    event.stopPropagation(); // The file is no setting.
    takeChosen();
  });
  takeChosen(); // Chosen before this module was loaded.
  // Anywhere on the page, or the browser would leave it and open the file.
  on(document, "dragover", (event) => {
    if (!carriesFile(event)) return;
    event.preventDefault();
    card.classList.add("dragging");
  });
  on(document, "dragleave", (event) => event.relatedTarget || card.classList.remove("dragging"));
  on(document, "drop", (event) => {
    if (!carriesFile(event)) return;
    event.preventDefault();
    card.classList.remove("dragging");
    take(form, zone, event.dataTransfer.files[0], signal);
  });
}

async function take(form, zone, file, left) {
  const stop = new AbortController();
  const signal = AbortSignal.any([left, stop.signal]);
  const [input, bar, cancel] = ["input", "progress", "[data-cancel]"].map((one) => zone.querySelector(one));
  const show = (words, share = 0) => {
    zone.querySelector("#upload-status").textContent = words;
    input.disabled = words !== "";
    bar.hidden = cancel.hidden = words === "";
    if (share === null) bar.removeAttribute("value");
    else bar.value = share;
  };
  if (!bar.hidden) return; // One file at a time.
  tell(zone, null);
  cancel.onclick = () => stop.abort();
  try {
    if (file.size > Number(zone.dataset.limit)) {
      throw refusal(phrase("The file is too large."), phrase("Split it into smaller files."));
    }
    const how = { signal, show, stopped: stop.signal };
    await use(form, await (file.size > LARGE ? importLarge : importSmall)(file, how), how);
  } catch (error) {
    if (stop.signal.aborted) parts.drop(file);
    else if (!left.aborted) tell(zone, error.told ?? UNREACHED);
  } finally {
    show("");
    input.value = "";
    if (!left.aborted && document.activeElement === document.body) input.focus();
  }
}

/** Choose a new dataset, once its rows have been read; if the columns are not certain, ask first. */
async function use(form, dataset, how) {
  let made = await whenRead(dataset, how);
  if (made.status === "draft" && await build(made, how)) made = await whenRead(made, how);
  if (made.status === "ready") choose(form, made.name, made.train_rows);
  else location.assign(`/datasets/${made.id}/mapping?then=${encodeURIComponent(addressOf(form))}`);
}

/** Return a dataset as soon as no task reads it any more. */
async function whenRead({ id }, how) {
  const dataset = await call(`/api/v1/datasets/${id}`, null, how.signal);
  if (dataset.status !== "building") return dataset;
  await follow(dataset.chore, how);
  return whenRead(dataset, how);
}

function importSmall(file, { signal, show }) {
  const data = new FormData();
  data.set("file", file);
  data.set("draft", "true");
  return post("/api/v1/datasets", data, { signal, show });
}

/** Send a large file in parts; a task imports it. */
async function importLarge(file, how) {
  const upload = await parts.send(file, how);
  const { id } = await call("/api/v1/datasets", { source: { kind: "upload", upload } }, how.signal);
  const { result } = await follow(id, how);
  return { id: result.dataset_id };
}

/** Wait until a task has succeeded. Who leaves the page lets it go on; who cancels ends it. */
async function follow(id, { signal, show, stopped }) {
  const cancel = () => fetch(`/api/v1/chores/${id}/cancel`, { method: "POST" }).catch(() => null);
  const ended = new AbortController();
  stopped.addEventListener("abort", cancel, { once: true, signal: ended.signal });
  for (;;) {
    const task = await call(`/api/v1/chores/${id}`, null, signal);
    if (task.finished_at) ended.abort();
    if (task.status === "succeeded") return task;
    if (task.finished_at) throw refusal(task.error?.message ?? phrase("Cancelled. Nothing was saved."), task.error?.hint);
    show(task.status === "queued" ? phrase("Waiting in the queue…") : phrase("Reading the rows…"), task.progress || null);
    await parts.pause(POLL, signal);
  }
}

/** Read the rows with the detected mapping, if it is certain; return whether they are. */
async function build({ id }, how) {
  const detection = await call(`/api/v1/datasets/${id}/detection`, null, how.signal).catch(() => null);
  if (detection?.sureness !== "sure" || detection.questions.length) return false;
  const built = await call(`/api/v1/datasets/${id}/versions`, { mapping: detection.mapping }, how.signal).catch(() => null);
  if (built?.chore && !built.version) await follow(built.chore, how);
  return built !== null;
}

async function call(url, body, signal) {
  const sent = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(url, { ...sent, signal });
  const told = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(answer.statusText), { told: told.error });
  return told;
}

function choose(form, name, rows) {
  const select = form.elements.namedItem("dataset");
  select.add(new Option(phrase("{name} ({rows} rows)", { name, rows }), name, false, true), 0);
  select.dispatchEvent(new Event("change", { bubbles: true }));
  select.focus();
}

/** The URL that opens the form as it is filled in. */
function addressOf(form) {
  const given = new URLSearchParams();
  for (const name of ["method", "preset", "from", "name", "notes"]) {
    const { value } = form.elements.namedItem(name);
    if (value) given.set(name, value);
  }
  for (const knob of form.querySelectorAll(".changed[data-base]")) {
    const control = knob.querySelector("[type=radio]:checked, input:not([type=hidden], [type=radio]), select");
    given.set(control.name, control.type === "checkbox" ? String(control.checked) : control.value);
  }
  return `/new?${given}`;
}

function refusal(message, hint) {
  return Object.assign(new Error(message), { told: { message, hint } });
}

function tell(zone, told) {
  const error = zone.querySelector("#upload-problem");
  error.textContent = told ? [told.message, told.hint].filter(Boolean).join(" ") : "";
  error.hidden = !told;
}
