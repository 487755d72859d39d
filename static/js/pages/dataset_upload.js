// Dataset upload: drop or choose a file, follow the progress, and keep the form if it is rejected.
// The form also works without this module, but then the browser forgets the rejected file.

import { post, UNREACHED } from "./file_upload.js";
import * as parts from "./resumable_upload.js";
import { phrase } from "../i18n/translations.js";

const LARGE = 16 * 2 ** 20; // bytes; larger files are sent in parts and can resume

/** @param {HTMLFormElement} form */
export default function start(form) {
  const ending = new AbortController();
  const { signal } = ending;
  const bar = form.querySelector("progress");
  const told = form.querySelector("[data-told]");
  const stop = form.querySelector("[data-stop]");
  const submit = form.querySelector("button:not([type])");
  /** @type {AbortController | null} */
  let stopping = null;

  /** Show the progress; without words, no upload is running. */
  function show(words, share = 0) {
    told.textContent = words;
    submit.disabled = words !== "";
    stop.hidden = bar.hidden = words === "";
    if (share === null) bar.removeAttribute("value");
    else bar.value = share;
  }

  function send(event) {
    event.preventDefault();
    forget(form);
    if (form.file.files[0].size > Number(form.dataset.limit)) {
      tell(form, { message: phrase("The file is too large."), hint: phrase("Split it into smaller files.") });
      return;
    }
    if (form.file.files[0].size > LARGE && !form.validation_file.files.length) {
      sendInParts(form.file.files[0]);
      return;
    }
    sendWhole();
  }

  async function sendWhole() {
    const sending = new AbortController();
    stopping = sending;
    // Once everything is sent, the studio keeps processing even if this page closes.
    const sent = () => (stop.hidden = true);
    try {
      const dataset = await post(form.dataset.api, new FormData(form), { signal: sending.signal, show, sent });
      location.assign(`/datasets/${dataset.id}`);
    } catch (error) {
      if (!sending.signal.aborted) tell(form, error.told);
    } finally {
      show("");
      stopping = null;
    }
  }

  async function sendInParts(file) {
    const sending = new AbortController();
    stopping = sending;
    try {
      show(phrase("Uploading…"));
      const upload = await parts.send(file, { signal: sending.signal, show });
      const answer = await fetch("/api/v1/datasets", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ source: { kind: "upload", upload }, name: form.elements.name.value }),
      });
      const chore = await answer.json();
      if (answer.ok) location.assign(`/chores/${chore.id}?then=/datasets/imports/${chore.id}/done`);
      else tell(form, chore.error);
    } catch (error) {
      if (!sending.signal.aborted) tell(form, error.told ?? UNREACHED);
    } finally {
      show("");
      stopping = null;
    }
  }

  /** The user cancelled the upload; leaving the page does not, so that it can resume. */
  function halt() {
    if (stopping === null) return;
    stopping.abort();
    parts.drop(form.file.files[0]);
  }

  function drop(event) {
    event.preventDefault();
    if (event.dataTransfer.files.length === 0) return;
    const field = event.target.closest(".field")?.querySelector("input[type=file]") ?? form.file;
    field.files = event.dataTransfer.files;
  }

  form.addEventListener("submit", send, { signal });
  form.addEventListener("dragover", (event) => event.preventDefault(), { signal });
  form.addEventListener("drop", drop, { signal });
  stop.addEventListener("click", halt, { signal });

  return () => {
    ending.abort();
    stopping?.abort();
  };
}

/** Clear the errors of an earlier attempt. */
function forget(form) {
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  for (const error of form.querySelectorAll(".error")) error.hidden = true;
}

/** Show an error next to the field it belongs to. */
function tell(form, { param, message, hint }) {
  const field = form.elements.namedItem(param ?? "file") ?? form.file;
  const error = form.querySelector(`#${field.id}-problem`);
  error.textContent = [message, hint].filter(Boolean).join(" ");
  error.hidden = false;
  field.setAttribute("aria-invalid", "true");
  field.focus();
}
