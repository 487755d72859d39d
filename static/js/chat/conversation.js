// A conversation with one or more models: each prompt goes to all, and their answers stream side by
// side. It lives in the page only. Each model has a column and a history of its own.

import { phrase } from "../i18n/translations.js";
import { ask } from "./answer_reader.js";
import { collectFeedback } from "./feedback.js";
import { listCalls, messagesOf, usesFunctions } from "./function_calls.js";
import { contentOf, hasImages, loadRow } from "./images.js";
import { begin, grow, report, show, waitFor, waitForPress } from "./reply.js";
import { toggleScores } from "./token_scores.js";
import { addReply, draw, follow, isAtEnd, name, replyOf, toggleEditor } from "./turn.js";
import { sendOnEnter } from "./composer.js";

/**
 * Start a conversation in an element.
 * @param {Element} root
 * @param {(key: string) => {body: object, system: string}} settings how to ask the model of a column
 * @param {() => boolean} isReady whether the settings can be sent; it shows what is wrong
 * @param {() => boolean} isText whether models continue texts
 */
export function converse(root, { settings, isReady, isText, signal }) {
  const chat = { root, turns: [], prefix: [], busy: null, memory: "", settings, isReady, isText };
  const listen = (target, event, act) => target.addEventListener(event, act, { signal });
  listen(document, "keydown", (event) => {
    if (event.key === "Escape" && chat.busy && !document.querySelector("dialog[open]")) stop(chat);
  });
  listen(root.querySelector("[data-stop]"), "click", () => stop(chat));
  listen(root, "click", ({ target }) => press(chat, target));
  listen(root, "submit", (event) => {
    const act = event.target.matches("[data-edited]") ? sendAgain : event.target.matches("[data-results]") && sendResults;
    if (!act) return;
    event.preventDefault();
    act(chat, event.target);
  });
  listen(root, "keydown", (event) => {
    if (event.target.matches("[data-new-prompt]")) sendOnEnter(event);
  });
  collectFeedback(root, root.dataset.run ? "chat" : "playground", (reply) => describe(chat, reply), signal);
  setBusy(chat, null);
  return chat;
}

const BUTTONS = {
  "[data-row]": (chat, button) => tryRow(chat, JSON.parse(button.dataset.row)),
  "[data-retry]": (chat, button) => regenerate(chat, button.closest(".chat-reply")),
  "[data-continue]": (chat, button) => goOn(chat, button.closest(".chat-reply")),
  "[data-turn-to]": (chat, button) => turnTo(chat, button.closest(".chat-reply"), Number(button.dataset.turnTo)),
  "[data-heat]": (chat, button) => toggleScores(button, chat.root.dataset.scores, scored(chat, button.closest(".chat-reply"))),
  "[data-copy-answer]": (_chat, button) => copy(button),
  "[data-edit]": (chat, button) => !chat.busy && toggleEditor(button.closest("li"), true),
  "[data-cancel]": (_chat, button) => toggleEditor(button.closest("li"), false),
};

function press(chat, target) {
  for (const [selector, act] of Object.entries(BUTTONS)) {
    const button = target.closest(selector);
    if (button) act(chat, button);
  }
}

/** Return the columns on the page: the key, the title, and what must be in memory for each. */
export function columns(root) {
  return [...root.querySelectorAll("[data-column]")].map(({ dataset }) => ({
    key: dataset.column,
    title: dataset.title,
    memory: dataset.memory ?? "",
  }));
}

/** Start a new chat with a validation row. */
async function tryRow(chat, row) {
  if (chat.busy || !chat.isReady()) return;
  clear(chat);
  const { before, prompt, images } = await loadRow(row.messages);
  if (chat.busy) return; // Another row was pressed meanwhile.
  chat.prefix = before;
  send(chat, { prompt, images, expected: row.expected });
}

export function clear(chat) {
  stop(chat);
  chat.turns = [];
  chat.prefix = [];
  chat.root.querySelector("[data-turns]").replaceChildren();
  say(chat, "");
}

/** Send a prompt to all models. */
export async function send(chat, { prompt, images = [], expected }) {
  const shown = columns(chat.root);
  if (!shown.length || !chat.isReady()) return;
  const before = chat.turns.length ? [] : chat.prefix;
  const element = draw(chat.root, { prompt, images, expected, before }, shown);
  const turn = { prompt, images, expected, element, answers: {} };
  chat.turns.push(turn);
  await answer(chat, turn, order(chat, shown));
}

/** Models that share no memory take turns in it: begin with what is loaded. */
function order(chat, shown) {
  const rank = ({ memory }) => {
    const first = shown.findIndex((one) => one.memory === memory);
    return memory === chat.memory ? -1 : first;
  };
  return shown.toSorted((one, other) => rank(one) - rank(other));
}

/** Let models answer a turn, one after the other. */
async function answer(chat, turn, asked, start = {}) {
  const busy = new AbortController();
  setBusy(chat, busy);
  const versions = asked.map(({ key }) => ({
    ...{ text: start.text ?? "", tokens: [], calls: [], end: start.end, sources: start.sources ?? [] },
    before: start.before ?? shownVersion(turn, key)?.before ?? [],
  }));
  asked.forEach(({ key }, index) => {
    const before = asked[index - 1]?.title;
    begin(replyOf(turn.element, key), versions[index], before && phrase("Waits for the answer of {name}", { name: before }));
  });
  for (const [index, column] of asked.entries()) {
    const version = versions[index];
    if (busy.signal.aborted) version.isStopped = true;
    else await answerOne(chat, turn, column, version, start, busy.signal);
    chat.memory = column.memory || chat.memory;
    keep(turn, column.key, version, start);
  }
  if (chat.busy !== busy) return; // A new chat has started.
  setBusy(chat, null);
  turn.element.querySelector("[data-wanted]").hidden = !turn.expected;
  follow(turn.element);
  announce(chat, turn, asked);
}

async function answerOne(chat, turn, { key }, version, start, signal) {
  const { body, system } = chat.settings(key);
  const messages = messagesFor(chat, turn, key, system, version.before);
  const sent = { ...body, messages, is_text: chat.isText(), expected: turn.expected, answer_start: version.text };
  if (start.isNew) sent.seed = null;
  version.asked = sent;
  const reply = replyOf(turn.element, key);
  reply.setAttribute("aria-busy", "true");
  try {
    await ask(chat.root.dataset.send, sent, signal, (event) => {
      const stays = isAtEnd();
      if (event.error) version.problem = event.error;
      else if (event.end) Object.assign(version, { end: total(event.end, start), calls: event.end.calls });
      else if (event.text !== undefined) add(reply, version, event);
      else if (event.state === "waiting") waitFor(reply, event);
      else report(reply, event.state);
      if (event.source) noteSource(version, event.source, start);
      if (stays) follow(turn.element);
    });
  } catch (error) {
    if (signal.aborted) version.isStopped = true;
    else version.problem = error;
  }
  reply.removeAttribute("aria-busy");
}

function add(reply, version, { text, tokens = [] }) {
  version.tokens.push(...tokens);
  grow(reply, (version.text += text));
}

/** Note what gives an answer; a continued one may have several. */
function noteSource(version, source, { sources = [] }) {
  const isNew = JSON.stringify(sources.at(-1)) !== JSON.stringify(source);
  version.sources = isNew ? [...sources, source] : sources;
}

/** Return how an answer ended; a continued one has the tokens and the time of all its parts. */
function total(end, { end: before }) {
  if (!before) return end;
  return { ...end, tokens: end.tokens + before.tokens, seconds: end.seconds + before.seconds };
}

/** Keep a version of an answer: in place of one without text, or of the one it continues. */
function keep(turn, key, version, { isContinued }) {
  const kept = (turn.answers[key] ??= { versions: [], shown: 0 });
  const replaces = kept.versions.length && (isContinued || isEmpty(kept.versions[kept.shown]));
  if (replaces) kept.versions[kept.shown] = version;
  else kept.shown = kept.versions.push(version) - 1;
  showVersion(turn, key);
}

function showVersion(turn, key) {
  const reply = replyOf(turn.element, key);
  const { versions, shown } = turn.answers[key];
  if (reply) show(reply, versions[shown], shown, versions.length);
}

function isEmpty({ text, calls }) {
  return !text && !calls.length;
}

/**
 * Return the conversation of one model up to a turn; turns it did not answer are left out.
 * @param {object[]} calls the calls and results that the answer to this turn follows
 */
export function messagesFor(chat, turn, key, system, calls = shownVersion(turn, key)?.before ?? []) {
  if (chat.isText()) return [{ role: "user", content: turn.prompt }];
  const index = chat.turns.indexOf(turn);
  const before = chat.turns.slice(0, index < 0 ? undefined : index).filter((one) => text(one, key));
  const own = system && !chat.prefix.some(({ role }) => role === "system");
  return [
    ...(own ? [{ role: "system", content: system }] : []),
    ...chat.prefix,
    ...before.flatMap((one) => [
      { role: "user", content: contentOf(one) },
      ...shownVersion(one, key).before,
      { role: "assistant", content: text(one, key) },
    ]),
    { role: "user", content: contentOf(turn) },
    ...calls,
  ];
}

function shownVersion(turn, key) {
  const kept = turn.answers[key];
  return kept?.versions[kept.shown];
}

/** Return the text that answers a turn; there is none while calls of functions wait for results. */
function text(turn, key) {
  const version = shownVersion(turn, key);
  return version && !version.calls.length ? version.text : "";
}

function place(chat, reply) {
  const turn = chat.turns.find(({ element }) => element.contains(reply));
  const column = columns(chat.root).find(({ key }) => key === reply.dataset.side);
  return { turn, column, kept: turn?.answers[reply.dataset.side] };
}

/** Describe the answer that a reply shows, as people rate it; null while there is none. */
function describe(chat, reply) {
  const { kept } = place(chat, reply);
  const version = kept?.versions[kept.shown];
  const isShown = version?.text && reply.querySelector("[data-answer]").textContent === version.text;
  if (!isShown || !version.asked || version.asked.is_text || reply.hasAttribute("aria-busy")) return null;
  if (usesFunctions(version) || hasImages(version.asked.messages)) return null; // Rows of feedback have neither.
  const { base, run, step, seed } = version.sources.at(-1) ?? {};
  const trained = step === null ? `run ${run}` : `run ${run}, step ${step}`;
  return {
    text: version.text,
    isWhole: Boolean(version.end) && !version.end.is_cut && !version.isStopped && !version.problem,
    prompt: version.asked.messages,
    model: run ? trained : (base ?? ""),
    run: run ?? (Number(chat.root.dataset.run) || null),
    temperature: version.asked.temperature,
    seed: seed ?? version.asked.seed,
  };
}

/** Return the answer that a reply shows as it is scored: what was asked, with the answer. */
function scored(chat, reply) {
  const { turn, kept } = place(chat, reply);
  const { asked, text, tokens } = kept.versions[kept.shown];
  const given = tokens.length ? { tokens } : {};
  return { ...asked, ...given, answer: text, expected: turn.expected, answer_start: "" };
}

/** Ask one model again; turns after this one keep their answers. */
function regenerate(chat, reply) {
  const { turn, column, kept } = place(chat, reply);
  if (chat.busy || !turn || !chat.isReady()) return;
  answer(chat, turn, [column], { isNew: Boolean(kept?.versions[kept.shown].end) });
}

/** Let a model continue an answer that was cut off. */
function goOn(chat, reply) {
  const { turn, column, kept } = place(chat, reply);
  if (chat.busy || !kept || !chat.isReady()) return;
  const { text: start, end: before, sources } = kept.versions[kept.shown];
  answer(chat, turn, [column], { text: start, end: before, sources, isContinued: true, isNew: true });
}

/** Tell a model what its functions returned, and let it go on. The calls stay as a version. */
function sendResults(chat, form) {
  const { turn, column, kept } = place(chat, form.closest(".chat-reply"));
  if (chat.busy || !kept || !chat.isReady()) return;
  const { before, ...version } = kept.versions[kept.shown];
  answer(chat, turn, [column], { before: [...before, ...messagesOf(version, form)] });
  chat.root.querySelector("[data-draft]").focus({ preventScroll: true }); // The button has gone.
}

function turnTo(chat, reply, by) {
  const { turn, kept } = place(chat, reply);
  if (chat.busy || !kept?.versions[kept.shown + by]) return;
  kept.shown += by;
  showVersion(turn, reply.dataset.side);
}

/** Send an edited prompt in place of a turn and of those after it. */
function sendAgain(chat, form) {
  const index = chat.turns.findIndex(({ element }) => element.contains(form));
  const prompt = form.querySelector("textarea").value.trim();
  if (chat.busy || index < 0 || !chat.isReady()) return;
  const { prompt: old, images, expected: wanted } = chat.turns[index];
  if (!prompt && !images.length) return;
  for (const { element } of chat.turns.splice(index)) element.remove();
  send(chat, { prompt, images, expected: prompt === old ? wanted : "" });
}

/** Add a column to the turns on the page. */
export function addColumn(chat, column) {
  for (const { element } of chat.turns) waitForPress(addReply(chat.root, element, column));
  setBusy(chat, chat.busy);
}

export function removeColumn(chat, key) {
  for (const { element } of chat.turns) replyOf(element, key)?.remove();
}

/** Name the replies by their columns, whose numbers have changed. */
export function renameReplies(chat) {
  for (const { element } of chat.turns) {
    for (const { key, title } of columns(chat.root)) {
      const reply = replyOf(element, key);
      if (reply) name(reply, title);
    }
  }
}

export function stop(chat) {
  chat.busy?.abort();
}

function setBusy(chat, busy) {
  chat.busy = busy;
  chat.root.querySelector("[data-stop]").hidden = !busy;
  const buttons = "[data-submit], [data-row], [data-retry], [data-continue], [data-edit], [data-send-results], [data-when-idle]";
  for (const button of chat.root.querySelectorAll(buttons)) button.disabled = Boolean(busy);
}

/** Tell screen readers the answers once they are complete, not token by token. */
function announce(chat, turn, asked) {
  const shown = columns(chat.root).filter(({ key }) => asked.some((one) => one.key === key));
  const told = (key) => {
    const version = shownVersion(turn, key);
    return version?.calls.length ? phrase("calls {functions}", { functions: listCalls(version.calls) }) : version?.text;
  };
  say(chat, shown.map(({ key, title }) => `${title}: ${told(key) || "–"}`).join("\n"));
}

function say(chat, words) {
  chat.root.querySelector("[data-said]").textContent = words;
}

async function copy(button) {
  const answered = button.closest(".chat-reply").querySelector("[data-answer]");
  try {
    await navigator.clipboard.writeText(answered.textContent);
    button.textContent = phrase("Copied");
  } catch {
    getSelection().selectAllChildren(answered);
    button.textContent = phrase("Press Ctrl+C to copy");
  }
}
