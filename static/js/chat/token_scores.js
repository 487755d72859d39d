// How likely a model finds each token of an answer: the server draws it, below the answer.

import { phrase } from "../i18n/translations.js";

/** Show the probabilities of an answer's tokens, or hide them again. */
export async function toggleScores(button, url, scored) {
  const place = button.closest(".chat-reply").querySelector("[data-token-scores]");
  if (!place.hidden) return hideScores(button.closest(".chat-reply"));
  button.setAttribute("aria-pressed", "true");
  place.hidden = false;
  place.textContent = phrase("Reading the answer…");
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(scored) }).catch(() => null);
  if (place.hidden) return; // It was hidden meanwhile.
  if (answer?.ok) place.innerHTML = await answer.text();
  else place.textContent = phrase("The probabilities could not be loaded. Try again.");
}

/** Hide the probabilities: another answer is shown. */
export function hideScores(reply) {
  reply.querySelector("[data-heat]").setAttribute("aria-pressed", "false");
  const place = reply.querySelector("[data-token-scores]");
  place.hidden = true;
  place.replaceChildren();
}
