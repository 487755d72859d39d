// A file dropped on the form of an experiment becomes its dataset. Where the columns are not certain,
// the page that maps them comes in between, and leads back to the form as it was.

import { post, UNREACHED } from "./file_upload.js";
import * as parts from "./resumable_upload.js";
import { phrase } from "../i18n/translations.js";

const LARGE = 16 * 2 ** 20; // bytes; larger files are sent in parts and can resume

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

async function take(form, zone, file, signal) {
  const [status, bar, input] = [zone.querySelector("#upload-status"), zone.querySelector("progress"), zone.querySelector("input")];
  const show = (words, share = 0) => {
    status.textContent = words;
    input.disabled = words !== "";
    bar.hidden = words === "";
    if (share === null) bar.removeAttribute("value");
    else bar.value = share;
  };
  tell(zone, null);
  try {
    if (file.size > Number(zone.dataset.limit)) {
      throw refusal(phrase("The file is too large."), phrase("Split it into smaller files."));
    }
    await (file.size > LARGE ? importLarge : importSmall)(form, file, { signal, show });
  } catch (error) {
    if (!signal.aborted) tell(zone, error.told ?? UNREACHED);
  } finally {
    show("");
    input.value = "";
  }
}

async function importSmall(form, file, { signal, show }) {
  const data = new FormData();
  data.set("file", file);
  data.set("draft", "true");
  const dataset = await post("/api/v1/datasets", data, { signal, show });
  if (dataset.status === "building") return location.assign(`/datasets/${dataset.id}`);
  const version = await build(dataset.id, signal);
  if (version) choose(form, dataset.name, version.train_rows);
  else location.assign(`/datasets/${dataset.id}/mapping?then=${encodeURIComponent(addressOf(form))}`);
}

/** A task imports a large file; the form cannot wait for it. */
async function importLarge(_form, file, { signal, show }) {
  const upload = await parts.send(file, { signal, show });
  const chore = await call("/api/v1/datasets", { source: { kind: "upload", upload } }, signal);
  location.assign(`/chores/${chore.id}?then=/datasets/imports/${chore.id}/done`);
}

/** Read the rows with the detected mapping, and return their version; none if it should be checked first. */
async function build(dataset, signal) {
  const detection = await call(`/api/v1/datasets/${dataset}/detection`, null, signal).catch(() => null);
  if (detection?.sureness !== "sure" || detection.questions.length) return null;
  const built = await call(`/api/v1/datasets/${dataset}/versions`, { mapping: detection.mapping }, signal).catch(() => null);
  return built?.version;
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
