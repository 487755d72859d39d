// What people say about the answers of a chat: good or bad, better than the others, or rewritten.
// Each is kept by the server as a row to train on, and taken back by a second press.

import { phrase } from "../i18n/translations.js";

/**
 * An answer as it was asked for. Whole ones only can be an example: others stop in the middle.
 * @typedef {{text: string, isWhole: boolean, prompt: object[], model: string,
 *   run: ?number, temperature: number, seed: ?number}} Answer
 */

/**
 * Listen to the feedback buttons of the replies in an element.
 * @param {Element} root
 * @param {string} place where it is said: chat or playground
 * @param {(reply: Element) => ?Answer} describe the answer that a reply shows; null without one
 */
export function collectFeedback(root, place, describe, signal) {
  const chat = { root, place, describe, kept: new WeakMap(), told: new WeakMap() };
  const listen = (event, act) => root.addEventListener(event, act, { signal });
  listen("click", ({ target }) => press(chat, target));
  listen("submit", (event) => {
    if (!event.target.matches("[data-rewrite-form]")) return;
    event.preventDefault();
    rewrite(chat, event.target.closest(".chat-reply"));
  });
  listen("keydown", (event) => {
    if (event.key !== "Escape" || !event.target.closest("[data-rewrite-form]")) return;
    event.stopPropagation(); // It would also stop the models.
    closeForm(event.target.closest(".chat-reply"));
  });
  // Another answer, or another version of it, has feedback of its own.
  const news = new MutationObserver(() => root.querySelectorAll(".chat-reply").forEach((one) => show(chat, one)));
  news.observe(root.querySelector("[data-turns]"), {
    ...{ subtree: true, childList: true, characterData: true },
    attributeFilter: ["aria-busy"],
  });
  signal.addEventListener("abort", () => news.disconnect());
}

const BUTTONS = {
  "[data-thumb]": (chat, reply, button) => rate(chat, reply, button.dataset.thumb),
  "[data-better]": prefer,
  "[data-rewrite]": openForm,
  "[data-rewrite-cancel]": (_chat, reply) => closeForm(reply),
  "[data-rewrite-undo]": undoRewrite,
};

function press(chat, target) {
  const reply = target.closest(".chat-reply");
  for (const [selector, act] of Object.entries(BUTTONS)) {
    const button = target.closest(selector);
    if (reply && button) act(chat, reply, button);
  }
}

/** Return what was said about the answer that a reply shows, by its text. */
function said(chat, reply, answer) {
  if (!chat.kept.has(reply)) chat.kept.set(reply, new Map());
  const all = chat.kept.get(reply);
  if (!all.has(answer.text)) all.set(answer.text, { thumb: "", thumbId: 0, pairs: new Map(), rewrite: null });
  return all.get(answer.text);
}

function rate(chat, reply, thumb) {
  return tell(chat, reply, async (answer) => {
    const kept = said(chat, reply, answer);
    if (kept.thumb === thumb) {
      await forget(kept.thumbId);
      kept.thumb = "";
      return "";
    }
    if (thumb === "up") requireWhole(answer);
    kept.thumbId = await keep(chat, answer, { answer: answer.text, label: thumb === "up", model: answer.model });
    kept.thumb = thumb;
    return phrase("Kept as a rating.");
  });
}

/** Keep that an answer is better than the others to the same prompt, or take that back. */
function prefer(chat, reply) {
  return tell(chat, reply, async (answer) => {
    const rivals = others(chat, reply);
    if (isPreferred(chat, reply, answer)) {
      await dropPairs(said(chat, reply, answer));
      return "";
    }
    const fair = rivals.filter(({ rival }) => isSame(rival.prompt, answer.prompt));
    if (!rivals.length) throw { message: phrase("There is no other answer to compare with.") };
    if (!fair.length) {
      throw { message: phrase("The answers follow different conversations, so they cannot be compared. Start a new chat.") };
    }
    requireWhole(answer);
    for (const { element, rival } of fair) await dropPairs(said(chat, element, rival));
    for (const { rival } of fair) {
      const pair = { answer: answer.text, rejected: rival.text, model: answer.model, other_model: rival.model };
      said(chat, reply, answer).pairs.set(rival.text, await keep(chat, answer, pair));
    }
    fair.forEach(({ element }) => show(chat, element));
    return phrase("Kept as a preference.");
  });
}

/** Return the answers to the same prompt in the other columns. */
function others(chat, reply) {
  const replies = [...reply.closest("li").querySelectorAll(".chat-reply")].filter((one) => one !== reply);
  const described = replies.map((element) => ({ element, rival: chat.describe(element) }));
  return described.filter(({ rival }) => rival?.text.trim());
}

function isPreferred(chat, reply, answer) {
  const { pairs } = said(chat, reply, answer);
  return others(chat, reply).some(({ rival }) => pairs.has(rival.text));
}

async function dropPairs(kept) {
  for (const [text, id] of kept.pairs) {
    await forget(id);
    kept.pairs.delete(text);
  }
}

function openForm(chat, reply) {
  const answer = chat.describe(reply);
  if (!answer) return;
  const form = reply.querySelector("[data-rewrite-form]");
  const field = form.querySelector("textarea");
  field.value = said(chat, reply, answer).rewrite?.text ?? answer.text;
  form.hidden = false;
  field.focus();
}

function closeForm(reply) {
  const form = reply.querySelector("[data-rewrite-form]");
  form.hidden = true;
  reply.querySelector("[data-rewrite]").focus();
}

/** Keep an edited answer as better than the original. */
function rewrite(chat, reply) {
  const text = reply.querySelector("[data-rewrite-form] textarea").value.trim();
  return tell(chat, reply, async (answer) => {
    const kept = said(chat, reply, answer);
    const id = await keep(chat, answer, { answer: text, rejected: answer.text, other_model: answer.model });
    if (kept.rewrite && kept.rewrite.id !== id) await forget(kept.rewrite.id);
    kept.rewrite = { id, text };
    closeForm(reply);
    return phrase("Kept as a preference: your answer over that of the model.");
  });
}

function undoRewrite(chat, reply) {
  return tell(chat, reply, async (answer) => {
    const kept = said(chat, reply, answer);
    await forget(kept.rewrite.id);
    kept.rewrite = null;
    reply.querySelector("[data-rewrite]").focus();
    return "";
  });
}

/** Do something with the answer of a reply, and show what came of it. */
async function tell(chat, reply, act) {
  const answer = chat.describe(reply);
  const line = reply.querySelector("[data-kept]");
  if (!answer || reply.dataset.isTelling) return;
  reply.dataset.isTelling = "1";
  try {
    const words = await act(answer);
    line.replaceChildren(words, ...(words ? [" ", link()] : []));
    line.classList.remove("error");
  } catch (error) {
    line.textContent = [error.message, error.hint].filter(Boolean).join(" ");
    line.classList.add("error");
  }
  delete reply.dataset.isTelling;
  chat.told.set(reply, answer.text);
  show(chat, reply);
}

function link() {
  const anchor = document.createElement("a");
  anchor.href = "/feedback";
  anchor.textContent = phrase("See all feedback");
  return anchor;
}

/** Press the buttons of a reply as its answer needs it. */
function show(chat, reply) {
  const answer = chat.describe(reply);
  const bar = reply.querySelector("[data-feedback]");
  const isShown = Boolean(answer?.text.trim());
  if (bar.hidden === isShown) bar.hidden = !isShown;
  if (chat.told.has(reply) && chat.told.get(reply) !== answer?.text) {
    chat.told.delete(reply);
    reply.querySelector("[data-kept]").replaceChildren();
  }
  if (!isShown) return;
  const kept = said(chat, reply, answer);
  for (const button of bar.querySelectorAll("[data-thumb]")) set(button, kept.thumb === button.dataset.thumb);
  const better = bar.querySelector("[data-better]");
  if (better) set(better, isPreferred(chat, reply, answer));
  set(bar.querySelector("[data-rewrite]"), Boolean(kept.rewrite));
  const block = reply.querySelector("[data-rewritten]");
  block.hidden = !kept.rewrite;
  const text = block.querySelector("[data-rewritten-text]");
  if (text.textContent !== (kept.rewrite?.text ?? "")) text.textContent = kept.rewrite?.text ?? "";
}

function set(button, isPressed) {
  if (button.getAttribute("aria-pressed") !== String(isPressed)) button.setAttribute("aria-pressed", String(isPressed));
}

function requireWhole({ isWhole }) {
  if (!isWhole) throw { message: phrase("This answer stops in the middle, and a model would learn that. Edit it instead.") };
}

function isSame(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** Keep feedback. Return its number. */
async function keep(chat, { prompt, run, temperature, seed }, told) {
  const body = { ...told, prompt, run_id: run, temperature, seed, said_in: chat.place };
  const answer = await send("/api/v1/feedback", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  return (await answer.json()).id;
}

/** Take feedback back; it may be gone already. */
async function forget(id) {
  await send(`/api/v1/feedback/${id}`, { method: "DELETE" }, [404]);
}

async function send(url, request, allowed = []) {
  const answer = await fetch(url, request).catch(() => {
    throw { message: phrase("The connection to the studio was lost."), hint: phrase("Retry when it is running again.") };
  });
  if (answer.ok || allowed.includes(answer.status)) return answer;
  const told = await answer.json().catch(() => ({}));
  throw told.error ?? { message: phrase("The studio refused this request ({status}).", { status: answer.status }) };
}
