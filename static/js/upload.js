// Upload a data set: drop or choose a file, see how far it is, and keep the form when it is refused.
// Without this module the form works too, but a browser then forgets the file it refuses.

const UNREACHED = { error: { message: "The studio could not be reached.", hint: "Is it still running? Try again." } };

/** @param {HTMLFormElement} form */
export default function start(form) {
  const ending = new AbortController();
  const { signal } = ending;
  const bar = form.querySelector("progress");
  const told = form.querySelector("[data-told]");
  const stop = form.querySelector("[data-stop]");
  const submit = form.querySelector("button:not([type])");
  /** @type {XMLHttpRequest | null} */
  let request = null;

  /** Show how far it is; no words, no upload. */
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
      tell(form, { message: "The file is larger than is taken here.", hint: "Split it." });
      return;
    }
    // fetch cannot tell how much has been sent.
    request = new XMLHttpRequest();
    request.upload.addEventListener("progress", ({ loaded, total }) => {
      show(`Sending: ${Math.floor((100 * loaded) / total)} %`, loaded / total);
    });
    request.upload.addEventListener("load", () => {
      show("Reading the rows…", null);
      // All has been sent; the studio goes on reading, whether or not we listen.
      stop.hidden = true;
    });
    request.addEventListener("load", ({ target: { status, response } }) => {
      if (status === 201) location.assign(`/datasets/${response.id}`);
      else tell(form, (response ?? UNREACHED).error);
    });
    request.addEventListener("error", () => tell(form, UNREACHED.error));
    request.addEventListener("loadend", () => show(""));
    request.open("POST", form.dataset.api);
    request.responseType = "json";
    request.send(new FormData(form));
    show("Sending…");
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
  stop.addEventListener("click", () => request?.abort(), { signal });

  return () => {
    ending.abort();
    request?.abort();
  };
}

/** Take away what was said of an earlier try. */
function forget(form) {
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  for (const error of form.querySelectorAll(".error")) error.hidden = true;
}

/** Say what is wrong beside the field that it is about. */
function tell(form, { param, message, hint }) {
  const field = form.elements.namedItem(param ?? "file") ?? form.file;
  const error = form.querySelector(`#${field.id}-problem`);
  error.textContent = [message, hint].filter(Boolean).join(" ");
  error.hidden = false;
  field.setAttribute("aria-invalid", "true");
  field.focus();
}
