// Chat with two models: the same prompt goes to both, and their answers stream side by side.
// The conversation lives in this page only. Each model has a history of its own.

import { phrase } from "../i18n/translations.js";
import { short, span } from "../i18n/formatting.js";
import { ask } from "../chat/answer_reader.js";
import { begin, fail, finish, grow, report, stopped, waitFor } from "../chat/reply.js";

const SIDES = ["base", "run"];

export default function start(root) {
  const ended = new AbortController();
  const { signal } = ended;
  const chat = { root, turns: [], prefix: [], busy: null, last: "" };
  const find = (selector) => root.querySelector(selector);
  const [form, draft] = [find("[data-composer]"), find("[data-draft]")];
  const kept = `chat-draft-${root.dataset.run}`;

  const listen = (element, event, act) => element.addEventListener(event, act, { signal });
  draft.value ||= sessionStorage[kept] ?? "";
  listen(draft, "input", () => (sessionStorage[kept] = draft.value));
  listen(draft, "keydown", (event) => sendOnEnter(event, form));
  listen(document, "keydown", (event) => {
    if (event.key === "Escape" && chat.busy && !document.querySelector("dialog[open]")) stop(chat);
  });
  listen(find("[data-stop]"), "click", () => stop(chat));
  listen(form, "submit", (event) => {
    event.preventDefault();
    if (chat.busy || !draft.value.trim()) return draft.focus();
    const prompt = draft.value.trim();
    draft.value = sessionStorage[kept] = "";
    send(chat, { prompt, expected: "" });
  });
  listen(root, "click", (event) => {
    const { target } = event;
    const row = target.closest("[data-row]");
    if (row) tryRow(chat, JSON.parse(row.dataset.row));
    const retried = target.closest("[data-retry]")?.closest(".chat-reply");
    if (retried) retry(chat, retried);
    const copied = target.closest("[data-copy-answer]");
    if (copied) copy(copied);
  });
  const fresh = document.querySelector("[data-new-chat]");
  listen(fresh, "click", () => {
    clear(chat);
    draft.focus();
  });
  fresh.hidden = false;
  if ("isFree" in root.dataset) load(chat, signal);
  setBusy(chat, null);
  return () => {
    stop(chat);
    ended.abort();
  };
}

/** Load the model while the user reads or types: the first start takes seconds. */
function load(chat, signal) {
  const side = "reloads" in chat.root.dataset ? "base" : "run"; // With an adapter comes its base.
  const body = { ...settings(chat), side, messages: [{ role: "user", content: "?" }] };
  const headers = { "Content-Type": "application/json" };
  const sent = { method: "POST", headers, body: JSON.stringify(body), signal };
  fetch(chat.root.dataset.load, sent).catch(() => {}); // The first prompt says what is wrong.
}

/** Enter sends, except while an input method composes a word. */
function sendOnEnter(event, form) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
}

/** Start a new chat with a validation row. */
function tryRow(chat, { messages, expected }) {
  if (chat.busy) return;
  clear(chat);
  chat.prefix = messages.slice(0, -1);
  send(chat, { prompt: messages.at(-1).content, expected });
}

function clear(chat) {
  stop(chat);
  chat.turns = [];
  chat.prefix = [];
  chat.root.querySelector("[data-turns]").replaceChildren();
  say(chat, "");
}

/** Send a prompt to both models. */
async function send(chat, { prompt, expected }) {
  if (!chat.root.querySelector("[data-composer]").reportValidity()) return;
  const turn = draw(chat, { prompt, expected, answers: {} });
  chat.turns.push(turn);
  await answer(chat, turn, order(chat));
}

/** Two full models do not share memory: begin with the one that is loaded. */
function order(chat) {
  const loaded = "reloads" in chat.root.dataset ? chat.last : "";
  return loaded ? [loaded, ...SIDES.filter((side) => side !== loaded)] : SIDES;
}

/** Let models answer a turn, one after the other. */
async function answer(chat, turn, sides) {
  const busy = new AbortController();
  setBusy(chat, busy);
  const replies = sides.map((side) => turn.element.querySelector(`[data-side="${side}"]`));
  replies.forEach((reply, index) => begin(reply, index ? phrase("Answers next") : ""));
  for (const [index, side] of sides.entries()) {
    if (busy.signal.aborted) stopped(replies[index]);
    else await answerOne(chat, turn, side, replies[index], busy.signal);
    chat.last = side;
  }
  if (chat.busy !== busy) return; // A new chat has started.
  setBusy(chat, null);
  turn.element.querySelector("[data-wanted]").hidden = !turn.expected;
  follow(turn.element);
  announce(chat, turn, sides);
}

async function answerOne(chat, turn, side, reply, signal) {
  const body = { ...settings(chat), side, messages: history(chat, turn, side), expected: turn.expected };
  const isAtEnd = () => innerHeight + scrollY > document.documentElement.scrollHeight - 160;
  turn.answers[side] = "";
  reply.setAttribute("aria-busy", "true");
  try {
    await ask(chat.root.dataset.send, body, signal, (event) => {
      const stays = isAtEnd();
      if (event.error) fail(reply, event.error);
      else if (event.end) finish(reply, figures(event.end), event.end);
      else if (event.text !== undefined) grow(reply, (turn.answers[side] += event.text));
      else if (event.state === "waiting") waitFor(reply, event);
      else report(reply, event.state);
      if (stays) follow(turn.element);
    });
  } catch (error) {
    if (signal.aborted) stopped(reply);
    else fail(reply, error);
  }
  reply.removeAttribute("aria-busy");
}

/** Return the conversation of one model up to a turn; turns it did not answer are left out. */
function history(chat, turn, side) {
  const isText = "text" in chat.root.dataset;
  if (isText) return [{ role: "user", content: turn.prompt }];
  const before = chat.turns.slice(0, chat.turns.indexOf(turn)).filter((one) => one.answers[side]);
  const system = chat.root.querySelector("[name=system]").value.trim();
  const own = system && !chat.prefix.some(({ role }) => role === "system");
  return [
    ...(own ? [{ role: "system", content: system }] : []),
    ...chat.prefix,
    ...before.flatMap((one) => [
      { role: "user", content: one.prompt },
      { role: "assistant", content: one.answers[side] },
    ]),
    { role: "user", content: turn.prompt },
  ];
}

function settings(chat) {
  const { dataset } = chat.root;
  const { temperature, max_tokens: tokens, seed } = chat.root.querySelector("[data-composer]").elements;
  return {
    checkpoint: dataset.step ? Number(dataset.step) : null,
    is_text: "text" in dataset,
    temperature: Number(temperature.value),
    max_tokens: Number(tokens.value),
    seed: seed.value ? Number(seed.value) : null,
  };
}

function figures({ tokens, seconds }) {
  if (tokens < 2) return phrase("1 token");
  const rate = short(Number((tokens / Math.max(seconds, 0.001)).toPrecision(2)));
  return phrase("{tokens} tokens · {time} · {rate} tokens/s", { tokens, time: span(seconds), rate });
}

/** Ask one model again; turns after this one keep their answers. */
function retry(chat, reply) {
  const turn = chat.turns.find(({ element }) => element.contains(reply));
  if (chat.busy || !turn) return;
  answer(chat, turn, [reply.dataset.side]);
}

function stop(chat) {
  chat.busy?.abort();
}

function setBusy(chat, busy) {
  chat.busy = busy;
  chat.root.querySelector("[data-stop]").hidden = !busy;
  chat.root.querySelector("[data-submit]").disabled = Boolean(busy);
  for (const button of chat.root.querySelectorAll("[data-row]")) button.disabled = Boolean(busy);
  for (const button of chat.root.querySelectorAll("[data-retry]")) button.disabled = Boolean(busy);
}

/** Add a turn to the page. */
function draw(chat, turn) {
  const drawn = chat.root.querySelector("template[data-turn]").content.cloneNode(true);
  const element = drawn.querySelector("li");
  const before = chat.turns.length ? [] : chat.prefix;
  const beforeLine = element.querySelector("[data-before]");
  beforeLine.textContent = before.map(({ role, content }) => `${role}: ${content}`).join("\n");
  beforeLine.hidden = !before.length;
  element.querySelector("[data-prompt]").textContent = turn.prompt;
  element.querySelector("[data-expected]").textContent = turn.expected;
  chat.root.querySelector("[data-turns]").append(element);
  return { ...turn, element };
}

/** Keep the end of a turn above the composer. */
function follow(element) {
  const dock = element.closest(".chat").querySelector(".chat-dock");
  const hidden = element.getBoundingClientRect().bottom - dock.getBoundingClientRect().top;
  if (hidden > 0) scrollBy(0, hidden + 16);
}

/** Tell screen readers the answers once they are complete, not token by token. */
function announce(chat, turn, sides) {
  const names = { base: phrase("Base model"), run: phrase("Your model") };
  const lines = [...sides].sort().map((side) => `${names[side]}: ${turn.answers[side] || "–"}`);
  say(chat, lines.join("\n"));
}

function say(chat, text) {
  chat.root.querySelector("[data-said]").textContent = text;
}

async function copy(button) {
  const text = button.closest(".chat-reply").querySelector("[data-answer]");
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = phrase("Copied");
  } catch {
    getSelection().selectAllChildren(text);
    button.textContent = phrase("Press Ctrl+C to copy");
  }
}
