// One answer on the page: waiting, growing, complete, stopped or failed.

import { span } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";

const STATES = {
  accepted: phrase("Reading the prompt"),
  starting: phrase("Starting the inference process"),
  queued: phrase("Waiting for the model"),
  loading: phrase("Loading the model"),
  answering: "",
};

/** @type {WeakMap<Element, number>} the timer that shows how long a reply has waited */
const clocks = new WeakMap();

const part = (reply, name) => reply.querySelector(`[data-${name}]`);

/** Empty a reply; `words` say what it waits for, if its turn has not come. */
export function begin(reply, words) {
  reply.classList.remove("failed", "answering");
  reply.classList.add("waiting");
  part(reply, "answer").textContent = "";
  part(reply, "foot").hidden = true;
  part(reply, "verdict").hidden = true;
  if (words) rest(reply, words);
  else report(reply, "accepted");
}

/** Show a state, with the time it has taken so far. */
export function report(reply, state) {
  reply.classList.toggle("answering", state === "answering");
  const words = STATES[state] ?? "";
  rest(reply, words && `${words}…`);
  if (!words) return;
  const since = performance.now();
  const show = () => {
    if (!reply.isConnected) return clearInterval(clocks.get(reply));
    part(reply, "state").textContent = `${words}… ${span(Math.round((performance.now() - since) / 1000))}`;
  };
  clocks.set(reply, setInterval(show, 1000));
}

/** Show what a reply waits for, with a link to it. */
export function waitFor(reply, { message, link }) {
  rest(reply, message);
  if (!link) return;
  const anchor = document.createElement("a");
  anchor.href = link.href;
  anchor.textContent = link.title;
  part(reply, "state").append(" ", anchor);
}

export function grow(reply, text) {
  part(reply, "answer").textContent = text;
}

export function finish(reply, figures, end) {
  close(reply);
  const cut = phrase("Cut off by max tokens: raise the limit in Settings.");
  rest(reply, [emptiness(reply), end.is_cut ? cut : ""].filter(Boolean).join(" "));
  const line = part(reply, "figures");
  line.textContent = figures;
  line.title = end.computed_in ? phrase("Computed in {format}", { format: end.computed_in }) : "";
  judge(reply, end.is_right);
}

function emptiness(reply) {
  return part(reply, "answer").textContent.trim() ? "" : phrase("The model answered nothing.");
}

/** Mark an answer as equal to the expected one or not; null if there is none. */
function judge(reply, isRight) {
  const verdict = part(reply, "verdict");
  verdict.hidden = isRight === null;
  verdict.classList.toggle("right", isRight === true);
  verdict.classList.toggle("wrong", isRight === false);
  verdict.textContent = isRight ? `✓ ${phrase("As expected")}` : `✗ ${phrase("Not as expected")}`;
}

export function stopped(reply) {
  close(reply);
  rest(reply, phrase("Stopped."));
  part(reply, "figures").textContent = "";
}

export function fail(reply, { message, hint }) {
  close(reply);
  reply.classList.add("failed");
  rest(reply, `${message} ${hint ?? ""}`.trim());
  part(reply, "figures").textContent = "";
}

function close(reply) {
  reply.classList.remove("waiting", "answering");
  part(reply, "foot").hidden = false;
}

function rest(reply, words) {
  clearInterval(clocks.get(reply));
  part(reply, "state").textContent = words;
}
