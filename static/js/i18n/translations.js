// What scripts say, in the language of the page: the server draws what is not said in English.

const known = JSON.parse(document.getElementById("phrases")?.textContent ?? "{}");

export const LANGUAGE = document.documentElement.lang || "en";

/** Say a sentence; `{name}` in it becomes the value of that name. */
export function phrase(text, values = {}) {
  return (known[text] ?? text).replace(/\{(\w+)\}/g, (_hole, name) => values[name]);
}
