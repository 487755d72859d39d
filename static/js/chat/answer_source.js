// What gave an answer and how fast, in a line.

import { short, span } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";

/** Describe the model, format, chat template and seed of an answer, as the server tells them. */
export function describeSource(source) {
  if (source.endpoint) return describeEndpoint(source);
  return [
    model(source),
    source.run && (source.step === null ? phrase("final model") : phrase("checkpoint of step {step}", { step: short(source.step) })),
    source.rounded_to && phrase("weights in {format}", { format: source.rounded_to }),
    source.computed_in && phrase("computed in {format}", { format: source.computed_in }),
    source.template ? phrase("chat template {hash}", { hash: source.template }) : phrase("no chat template"),
    source.seed === null ? phrase("most likely tokens") : phrase("seed {seed}", { seed: source.seed }),
  ]
    .filter(Boolean)
    .join(" · ");
}

function describeEndpoint({ model: name, endpoint, seed, is_random: isRandom, left_out: leftOut }) {
  const chance = seed === null ? phrase("no seed") : phrase("seed {seed}", { seed });
  return [
    phrase("{name} at {host}", { name, host: endpoint }),
    isRandom ? chance : phrase("most likely tokens"),
    ...leftOut.map((option) => phrase("without {option}, which it refuses", { option })),
  ].join(" · ");
}

function model({ base, run, is_adapter: isAdapter }) {
  if (!run) return base;
  return isAdapter ? phrase("{base} with the adapter of run {run}", { base, run }) : phrase("run {run}, trained from {base}", { base, run });
}

/** Describe the length of an answer and its speed. */
export function describeSpeed({ tokens, seconds }) {
  if (tokens < 2) return phrase("1 token");
  const rate = short(Number((tokens / Math.max(seconds, 0.001)).toPrecision(2)));
  return phrase("{tokens} tokens · {time} · {rate} tokens/s", { tokens, time: span(seconds), rate });
}
