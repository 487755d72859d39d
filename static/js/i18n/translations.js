// Texts of scripts in the language of the page: the server embeds the translations.

const known = JSON.parse(document.getElementById("phrases")?.textContent ?? "{}");

export const LANGUAGE = document.documentElement.lang || "en";

/** Translate a text and replace each `{name}` in it by the value of that name. */
export function phrase(text, values = {}) {
  return (known[text] ?? text).replace(/\{(\w+)\}/g, (_hole, name) => values[name]);
}
