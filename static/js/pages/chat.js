// Chat with the model of a run beside its base model.

import { isValid, keepDraft, readSampling, sendOnEnter } from "../chat/composer.js";
import { attachImages } from "../chat/image_field.js";
import { clear, converse, send, stop } from "../chat/conversation.js";

export default function start(root) {
  const ended = new AbortController();
  const { signal } = ended;
  const find = (selector) => root.querySelector(selector);
  const [form, draft] = [find("[data-composer]"), find("[data-draft]")];
  const isText = "text" in root.dataset;

  const settings = (side) => {
    const { sampling, system } = readSampling(form);
    return { body: { ...sampling, side, checkpoint: root.dataset.step ? Number(root.dataset.step) : null }, system };
  };
  const chat = converse(root, { settings, isReady: () => isValid(form), isText: () => isText, signal });
  const kept = `chat-draft-${root.dataset.run}`;
  keepDraft(draft, kept, signal);
  draft.addEventListener("keydown", sendOnEnter, { signal });
  const attached = attachImages(form, () => "sees" in root.dataset, signal);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const prompt = draft.value.trim();
    if (chat.busy || !(prompt || attached.count)) return draft.focus();
    if (!isValid(form)) return;
    draft.value = sessionStorage[kept] = "";
    send(chat, { prompt, images: attached.take(), expected: "" });
  }, { signal });
  const fresh = document.querySelector("[data-new-chat]");
  fresh.addEventListener("click", () => {
    clear(chat);
    draft.focus();
  }, { signal });
  fresh.hidden = false;
  if ("isFree" in root.dataset) load(root, settings, signal);
  return () => {
    stop(chat);
    ended.abort();
  };
}

/** Load the model while the user reads or types: the first start takes seconds. */
function load(root, settings, signal) {
  const reloads = root.querySelector("[data-column][data-memory]");
  const { body } = settings(reloads ? "base" : "run"); // With an adapter comes its base.
  const sent = { ...body, is_text: "text" in root.dataset, messages: [{ role: "user", content: "?" }] };
  const headers = { "Content-Type": "application/json" };
  // The first prompt says what is wrong.
  fetch(root.dataset.load, { method: "POST", headers, body: JSON.stringify(sent), signal }).catch(() => {});
}
