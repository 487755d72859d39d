// One answer on the page: waiting, growing, complete, stopped or failed.

import { span } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";
import { showCalls, showSteps, usesFunctions } from "./function_calls.js";
import { hideScores } from "./token_scores.js";
import { describeSource, describeSpeed } from "./answer_source.js";

const STATES = {
  accepted: phrase("Reading the prompt"),
  starting: phrase("Starting the inference process"),
  queued: phrase("Waiting for the model"),
  loading: phrase("Loading the model"),
  remote: phrase("Waiting for the endpoint"),
  answering: "",
};

/** @type {WeakMap<Element, number>} the timer that shows how long a reply has waited */
const clocks = new WeakMap();

const part = (reply, name) => reply.querySelector(`[data-${name}]`);

/** Begin a reply with what it has; `words` say what it waits for, if its turn has not come. */
export function begin(reply, { text, before }, words) {
  reply.classList.remove("failed", "answering");
  reply.classList.add("waiting");
  showSteps(reply, before);
  showCalls(reply, []);
  grow(reply, text);
  part(reply, "foot").hidden = true;
  hideScores(reply);
  part(reply, "source").textContent = "";
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

/**
 * Show a version of an answer that is complete, stopped or failed.
 * @param {{text: string, tokens: object[], calls: object[], before: object[], end?: object, problem?: object, isStopped?: boolean}} version
 */
export function show(reply, version, position, count) {
  showSteps(reply, version.before);
  grow(reply, version.text);
  showCalls(reply, version.calls);
  close(reply);
  reply.classList.toggle("failed", Boolean(version.problem));
  rest(reply, outcome(version));
  part(reply, "figures").textContent = version.end ? describeSpeed(version.end) : "";
  part(reply, "source").textContent = version.sources.map(describeSource).join("\n");
  hideScores(reply);
  part(reply, "heat").hidden = !canScore(version);
  part(reply, "copy-answer").hidden = !version.text.trim();
  part(reply, "continue").hidden = !version.end?.is_cut || !version.text || !isPlain(version);
  part(reply, "retry").textContent = version.end ? phrase("Regenerate") : phrase("Retry");
  judge(reply, version.end?.is_right ?? null);
  part(reply, "versions").hidden = count < 2;
  part(reply, "version").textContent = phrase("{position} of {count}", { position: position + 1, count });
  for (const arrow of reply.querySelectorAll("[data-turn-to]")) {
    const next = position + Number(arrow.dataset.turnTo);
    arrow.setAttribute("aria-disabled", String(next < 0 || next >= count));
  }
}

/** Whether the tokens of an answer have probabilities: an endpoint gives them with it, or never. */
function canScore(version) {
  if (!version.end || !version.text.trim() || version.asked.is_text || usesFunctions(version)) return false;
  return !version.sources.at(-1)?.endpoint || version.tokens.length > 0;
}

/** Whether an answer is any text of a model here, so that it can be continued in the middle. */
function isPlain(version) {
  return !version.sources.at(-1)?.endpoint && (version.asked.answer_format ?? "text") === "text" && !usesFunctions(version);
}

/** Show that a column has not been asked yet. */
export function waitForPress(reply) {
  close(reply);
  rest(reply, phrase("Not asked yet."));
  part(reply, "retry").textContent = phrase("Ask");
}

function outcome({ text, calls, end, problem, isStopped }) {
  if (problem) return `${problem.message} ${problem.hint ?? ""}`.trim();
  if (isStopped) return phrase("Stopped.");
  const isEmpty = !text.trim() && !calls.length && phrase("The model answered nothing.");
  const cut = end.is_cut && !calls.length && phrase("Cut off by max tokens.");
  return [isEmpty, cut].filter(Boolean).join(" ");
}

/** Mark an answer as equal to the expected one or not; null if there is none. */
function judge(reply, isRight) {
  const verdict = part(reply, "verdict");
  verdict.hidden = isRight === null;
  verdict.classList.toggle("better", isRight === true);
  verdict.classList.toggle("worse", isRight === false);
  verdict.textContent = isRight ? `✓ ${phrase("As expected")}` : `✗ ${phrase("Not as expected")}`;
}

function close(reply) {
  reply.classList.remove("waiting", "answering");
  part(reply, "foot").hidden = false;
}

function rest(reply, words) {
  clearInterval(clocks.get(reply));
  part(reply, "state").textContent = words;
}
