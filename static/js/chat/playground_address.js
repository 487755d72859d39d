// The address of the playground: it holds the models, their settings and a prompt.

import { PLAIN } from "./answer_format.js";

const DEFAULTS = { temperature: 0, top_p: 1, max_tokens: 256, seed: null, ...PLAIN, system: "" };

/** Return the URL of the playground in a state. */
export function writeAddress({ columns, shared, isText, prompt }) {
  const address = new URL("/playground", location.href);
  const query = address.searchParams;
  for (const { model } of columns) query.append("model", model);
  for (const [index, { format, own }] of columns.entries()) {
    if (format) query.set(`format.${index + 1}`, format);
    if (own) writeSettings(query, own, `.${index + 1}`, null);
  }
  writeSettings(query, shared, "", DEFAULTS);
  if (isText) query.set("mode", "text");
  if (prompt) query.set("prompt", prompt);
  return String(address);
}

/** Write the settings that differ from the defaults; without these, write all, also empty ones. */
function writeSettings(query, { sampling, format, system }, ending, defaults) {
  const { stop, ...others } = sampling;
  for (const [name, value] of Object.entries({ ...others, ...format, system })) {
    if (!defaults || value !== defaults[name]) query.set(name + ending, value ?? "");
  }
  for (const text of stop.length || defaults ? stop : [""]) query.append(`stop${ending}`, text);
}
