// Functions that an answer calls: the calls, and the fields for what the functions return.

import { phrase } from "../i18n/translations.js";

/** Whether an answer was asked for with functions, so that it is no plain example of an answer. */
export function usesFunctions({ asked, before, calls }) {
  return Boolean(before.length || calls.length || (asked?.functions && asked.function_choice !== "none"));
}

/** Show the calls before an answer with their results, from the messages that hold them. */
export function showSteps(reply, messages) {
  const place = reply.querySelector("[data-steps]");
  const results = new Map(messages.map((one) => [one.tool_call_id, one.content]));
  const steps = messages.filter(({ role }) => role === "assistant");
  place.replaceChildren(...steps.flatMap(({ content, tool_calls: calls }) => [
    ...(content.trim() ? [said(content)] : []),
    ...calls.map((call) => drawCall(reply, call, results.get(call.id))),
  ]));
  place.hidden = !steps.length;
}

/** Show the calls that an answer ends with, with a field for each result. */
export function showCalls(reply, calls) {
  const form = reply.querySelector("[data-results]");
  form.querySelector("[data-calls]").replaceChildren(...calls.map((call) => drawCall(reply, call)));
  form.hidden = !calls.length;
}

/** Return an answer with its calls and the results in its form as messages. */
export function messagesOf({ text, calls }, form) {
  const results = [...form.querySelectorAll("textarea")].map(({ value }) => value);
  return [
    { role: "assistant", content: text, tool_calls: calls },
    ...calls.map(({ id }, index) => ({ role: "tool", tool_call_id: id, content: results[index] })),
  ];
}

/** Return calls in a line, for screen readers. */
export function listCalls(calls) {
  return calls.map(({ function: { name, arguments: text } }) => `${name} ${text}`).join(", ");
}

function said(content) {
  const words = document.createElement("p");
  words.className = "words";
  words.textContent = content;
  return words;
}

function drawCall(reply, { function: called }, result) {
  const template = reply.closest(".chat").querySelector("template[data-call]");
  const drawn = template.content.cloneNode(true).firstElementChild;
  const part = (name) => drawn.querySelector(`[data-${name}]`);
  part("call-name").textContent = called.name;
  part("call-arguments").textContent = formatted(called.arguments);
  part("call-result").textContent = result ?? "";
  part("returned").hidden = result === undefined;
  const field = part("result-field");
  if (result !== undefined) field.remove();
  else field.querySelector("textarea").setAttribute("aria-label", phrase("Result of {name}", { name: called.name }));
  return drawn;
}

/** Return JSON over several lines; a model may also have written something else. */
function formatted(text) {
  try {
    // Scripts would round longer numbers.
    return /\d{16}/.test(text) ? text : JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
