// Reads an answer that the server streams as events.

import { phrase } from "../i18n/translations.js";

const SILENCE_MS = 45_000; // The server sends something every 15 seconds.

const REFUSALS = {
  401: phrase("You are signed out. Sign in again in another tab, then retry."),
  403: phrase("You may not chat with this run."),
  404: phrase("This run has been deleted."),
  413: phrase("This conversation is too large. Remove images, or start a new chat."),
};

/**
 * Ask a model, and pass on each event of its answer.
 * @throws {{message: string, hint: string}} what went wrong, unless `signal` is aborted
 */
export async function ask(url, body, signal, onEvent) {
  const lost = new AbortController();
  const watch = { timer: 0 };
  const expectMore = () => {
    clearTimeout(watch.timer);
    watch.timer = setTimeout(() => lost.abort(), SILENCE_MS);
  };
  try {
    expectMore();
    const answer = await fetch(url, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: AbortSignal.any([signal, lost.signal]),
    });
    if (!answer.ok) throw refusal(answer.status);
    await read(answer.body, expectMore, onEvent);
  } catch (error) {
    throw error.hint === undefined ? disconnected() : error;
  } finally {
    clearTimeout(watch.timer);
  }
}

async function read(body, expectMore, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  let isComplete = false;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    expectMore();
    const lines = (unread + part.value).split(/\r?\n/);
    unread = lines.pop();
    for (const line of lines.filter((one) => one.startsWith("data:"))) {
      const event = JSON.parse(line.slice("data:".length));
      isComplete ||= Boolean(event.end ?? event.error);
      onEvent(event);
    }
  }
  if (!isComplete) throw disconnected();
}

function refusal(status) {
  const message = REFUSALS[status] ?? phrase("The studio refused this request ({status}).", { status });
  return { message, hint: "" };
}

function disconnected() {
  const message = phrase("The connection to the studio was lost.");
  return { message, hint: phrase("Retry when it is running again.") };
}
