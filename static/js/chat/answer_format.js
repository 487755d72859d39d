// The format of answers and the functions they may call: their fields, checked in the page.

import { phrase } from "../i18n/translations.js";

const NAME = /^[a-zA-Z0-9_.-]{1,64}$/;

const SCHEMA = {
  type: "object",
  properties: { answer: { type: "string" }, is_sure: { type: "boolean" } },
  required: ["answer", "is_sure"],
  additionalProperties: false,
};

const FUNCTION = {
  name: "get_weather",
  description: "The weather in a city now",
  parameters: {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
    additionalProperties: false,
  },
};

const EXAMPLES = { json_schema: SCHEMA, functions: [{ type: "function", function: FUNCTION }] };
const CHECKS = { json_schema: findSchemaProblem, functions: findFunctionsProblem };

/** The format of an answer that is any text. */
export const PLAIN = { answer_format: "text", json_schema: "", functions: "", function_choice: "auto" };

/** Return the format in a form, as the server takes it. */
export function readFormat({ elements }) {
  return Object.fromEntries(Object.keys(PLAIN).map((name) => [name, elements[name].value.trim()]));
}

/** Check the fields in an element as somebody leaves them, and insert examples. */
export function watchFormats(root, signal) {
  const listen = (event, act) => root.addEventListener(event, act, { signal });
  listen("change", ({ target }) => within(target) && checkFormat(target.form));
  listen("input", ({ target }) => within(target) && update(target.form));
  listen("click", ({ target }) => target.closest("[data-example]") && insert(target.closest("[data-json-field]")));
  for (const form of root.querySelectorAll("form:has([data-answer-format])")) update(form);
}

function within(target) {
  return target.form && target.closest("[data-answer-format]");
}

function insert(block) {
  const field = block.querySelector("textarea");
  field.value = JSON.stringify(EXAMPLES[field.name], null, 2);
  field.focus();
  field.dispatchEvent(new Event("change", { bubbles: true }));
}

/** Show the fields that the chosen format has, and forget a problem that has been solved. */
export function update(form) {
  const isSchema = form.elements.answer_format.value === "schema";
  form.querySelector("[data-json-field=json_schema]").hidden = !isSchema;
  form.querySelector("[data-choice]").hidden = !form.elements.functions.value.trim();
  for (const block of form.querySelectorAll("[data-json-field]")) {
    const field = block.querySelector("textarea");
    block.querySelector("[data-example]").hidden = Boolean(field.value.trim());
    if (field.validity.customError && !findProblem(field)) report(block, "");
  }
}

/** Say beside each field what is wrong with it; nothing is while models continue texts. */
export function checkFormat(form, isText = false) {
  update(form);
  for (const block of form.querySelectorAll("[data-json-field]")) {
    report(block, isText || block.hidden ? "" : findProblem(block.querySelector("textarea")));
  }
}

function report(block, problem) {
  const [field, words] = [block.querySelector("textarea"), block.querySelector("[data-json-problem]")];
  field.setCustomValidity(problem);
  field.setAttribute("aria-invalid", String(Boolean(problem)));
  words.textContent = problem;
  words.hidden = !problem;
}

function findProblem({ name, value }) {
  if (!value.trim()) return name === "functions" ? "" : phrase("Write a schema, or choose another format.");
  try {
    return CHECKS[name](JSON.parse(value));
  } catch (error) {
    return phrase("This is not valid JSON: {reason}", { reason: error.message });
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function findSchemaProblem(schema) {
  return isObject(schema) ? "" : phrase("A schema is an object, in braces.");
}

function findFunctionsProblem(functions) {
  if (!Array.isArray(functions)) return phrase("Functions are a list, in square brackets.");
  const names = functions.map((one) => one?.function?.name);
  for (const [index, one] of functions.entries()) {
    const problem = findFunctionProblem(one);
    if (problem) return phrase("Function {number}: {problem}", { number: index + 1, problem });
  }
  const again = names.find((name, index) => names.indexOf(name) < index);
  return again ? phrase("Two functions are named {name}.", { name: again }) : "";
}

function findFunctionProblem(one) {
  if (!isObject(one) || one.type !== "function" || !isObject(one.function)) {
    return phrase("it must have the type “function” and a “function”.");
  }
  const { name, parameters } = one.function;
  if (!NAME.test(name ?? "")) return phrase("its name must be up to 64 letters, digits, dots, - and _.");
  return parameters === undefined || isObject(parameters) ? "" : phrase("its parameters must be a JSON schema.");
}
