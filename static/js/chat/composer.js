// The field for the next message, and the settings of answers.

import { phrase } from "../i18n/translations.js";

const MAX_STOPS = 4;

/** Let Enter send, except while an input method composes a word. */
export function sendOnEnter(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.target.form.requestSubmit();
}

/** Keep the draft of a message in this tab. */
export function keepDraft(draft, name, signal) {
  draft.value ||= sessionStorage[name] ?? "";
  draft.addEventListener("input", () => (sessionStorage[name] = draft.value), { signal });
}

/** Return the settings in a form, as the server takes them, and the system prompt. */
export function readSampling(form) {
  const { temperature, top_p: topP, max_tokens: tokens, seed, stop, system } = form.elements;
  return {
    sampling: {
      temperature: Number(temperature.value),
      top_p: Number(topP.value),
      max_tokens: Number(tokens.value),
      seed: seed.value ? Number(seed.value) : null,
      stop: stopSequences(stop.value),
    },
    system: system?.value.trim() ?? "",
  };
}

function stopSequences(text) {
  const lines = text.split(/\r?\n/).filter(Boolean);
  return lines.map((line) => line.replaceAll("\\n", "\n").replaceAll("\\t", "\t"));
}

/** Whether the settings in a form can be sent; if not, show what is wrong. */
export function isValid(form) {
  const { stop } = form.elements;
  const tooMany = stopSequences(stop.value).length > MAX_STOPS;
  stop.setCustomValidity(tooMany ? phrase("At most {count} stop sequences, one a line.", { count: MAX_STOPS }) : "");
  if (form.checkValidity()) return true;
  for (const details of form.querySelectorAll("details")) details.open = true;
  form.closest("details")?.setAttribute("open", "");
  return form.reportValidity();
}
