// The playground: one to four models answer the same prompts. The address holds the models and the
// settings; nothing is asked before the user sends a prompt.

import { phrase } from "../i18n/translations.js";
import { PLAIN, checkFormat, readFormat, update, watchFormats } from "../chat/answer_format.js";
import { isValid, keepDraft, readSampling, sendOnEnter } from "../chat/composer.js";
import { attachImages } from "../chat/image_field.js";
import { addColumn, clear, columns, converse, messagesFor, removeColumn, renameReplies, send, stop } from "../chat/conversation.js";
import { writeAddress } from "../chat/playground_address.js";

const DRAFT = "playground-draft";

export default function start(root) {
  const ended = new AbortController();
  const { signal } = ended;
  const find = (selector) => root.querySelector(selector);
  const listen = (target, event, act) => target.addEventListener(event, act, { signal });
  const [form, draft, actions] = [find("[data-composer]"), find("[data-draft]"), document.querySelector("[data-actions]")];
  const mode = form.elements.mode;

  const own = (key) => head(root, key).querySelector("[data-own-settings]:not([hidden])");
  const isText = () => mode.value === "text";
  const settings = (key) => {
    const { sampling, format, system } = readSettings(own(key) ?? form);
    return { body: { ...sampling, ...(isText() ? PLAIN : format), ...modelOf(root, key) }, system };
  };
  const isReady = () => columns(root).every(({ key }) => {
    checkFormat(own(key) ?? form, isText());
    return isValid(own(key) ?? form);
  });
  const chat = converse(root, { settings, isReady, isText, signal });
  const sees = () => !isText() && root.querySelector("[data-column][data-sees]") !== null;
  const attached = attachImages(form, sees, signal);
  const page = { root, chat, form, draft, attached, settings, isText, next: columns(root).length + 1, choosing: "" };

  keepDraft(draft, DRAFT, signal);
  listen(draft, "keydown", sendOnEnter);
  listen(form, "submit", (event) => {
    event.preventDefault();
    const prompt = draft.value.trim();
    if (chat.busy || !(prompt || attached.count)) return draft.focus();
    if (!isReady()) return;
    draft.value = sessionStorage[DRAFT] = "";
    send(chat, { prompt, images: attached.take(), expected: "" });
  });
  listen(root, "submit", (event) => event.target.matches("[data-own-settings]") && event.preventDefault());
  listen(root, "change", () => keepAddress(page));
  listen(root, "change", ({ target }) => target.matches("[data-format]") && reload(page, target));
  listen(mode, "change", () => followMode(page));
  watchFormats(root, signal);
  listen(root, "click", ({ target }) => press(page, target));
  listen(find("#choose-model input"), "keydown", (event) => {
    if (event.key === "Enter") find("[data-pick]")?.click();
  });
  listen(actions, "click", ({ target }) => act(page, target));
  actions.hidden = false;
  followMode(page);
  offerMore(page);
  return () => {
    stop(chat);
    ended.abort();
  };
}

function head(root, key) {
  return root.querySelector(`[data-column="${key}"]`);
}

function modelOf(root, key) {
  const column = head(root, key);
  return { model: column.dataset.model, format: column.querySelector("[data-format]")?.value ?? "" };
}

function readSettings(form) {
  return { ...readSampling(form), format: readFormat(form) };
}

/** A text that is continued has no format, no functions and no images. */
function followMode({ root, form, attached, isText }) {
  form.querySelector("[data-submit]").textContent = isText() ? phrase("Continue the text") : phrase("Send");
  for (const fields of root.querySelectorAll("[data-answer-format]")) fields.hidden = isText();
  attached.refresh();
}

/** Press a button of the whole page. */
function act(page, target) {
  if (target.closest("[data-add]")) choose(page, "");
  if (target.closest("[data-share]")) share(page);
  if (target.closest("[data-new-chat]")) {
    clear(page.chat);
    page.draft.focus();
  }
}

/** Press a button of a column, or of a dialog. */
function press(page, target) {
  const key = target.closest("[data-column]")?.dataset.column;
  const [picked, code] = ["[data-pick]", "[data-code]"].map((one) => target.closest(one));
  if (target.closest("[data-choose]")) choose(page, key);
  else if (target.closest("[data-remove]")) remove(page, key);
  else if (target.closest("[data-own]")) toggleOwn(page, key);
  else if (code) showCode(page, key, code.dataset.send);
  else if (picked) pick(page, picked.dataset.pick);
}

/** Open the list of models for a column, or for a new one. */
function choose(page, key) {
  if (page.chat.busy) return;
  page.choosing = key;
  const dialog = page.root.querySelector("#choose-model");
  const field = dialog.querySelector("input");
  field.value = "";
  field.dispatchEvent(new Event("refill", { bubbles: true }));
  dialog.showModal();
}

async function pick(page, model) {
  page.root.querySelector("#choose-model").close();
  const isNew = !page.choosing;
  const key = page.choosing || `c${page.next++}`;
  await show(page, key, { model, format: "" });
  const [column] = columns(page.root).filter((one) => one.key === key);
  if (isNew && column) addColumn(page.chat, column);
  refreshPrompts(page);
}

/** Load the head of a column again for another number format. */
async function reload(page, select) {
  const { column: key, model } = select.closest("[data-column]").dataset;
  await show(page, key, { model, format: select.value });
  const details = head(page.root, key).querySelector("details");
  details.open = true;
  details.querySelector("select").focus();
}

/** Show a model in a column. Its own settings stay. */
async function show(page, key, { model, format }) {
  const query = new URLSearchParams({ model, key, format });
  const answer = await fetch(`/playground/column?${query}`).catch(() => null);
  if (!answer?.ok) return tell(page, phrase("The model could not be loaded into the page. Try again."));
  const drawn = document.createElement("template");
  drawn.innerHTML = await answer.text();
  const fresh = drawn.content.querySelector("[data-column]");
  const old = head(page.root, key);
  if (old) {
    const [before, after] = [old, fresh].map((one) => one.querySelector("[data-own-settings]"));
    fresh.querySelector("[data-own]").setAttribute("aria-pressed", String(!before.hidden));
    after.replaceWith(before);
    old.replaceWith(fresh);
  } else page.root.querySelector("[data-heads]").append(fresh);
  followMode(page);
  renumber(page);
}

function remove(page, key) {
  if (page.chat.busy) return;
  head(page.root, key).remove();
  removeColumn(page.chat, key);
  renumber(page);
  refreshPrompts(page);
  (page.root.querySelector("[data-remove]") ?? page.draft).focus();
}

/** Number the columns from 1, in the order they stand. */
function renumber(page) {
  const heads = [...page.root.querySelectorAll("[data-column]")];
  for (const [index, column] of heads.entries()) {
    const title = phrase("Column {number}", { number: index + 1 });
    column.dataset.title = title;
    column.setAttribute("aria-label", title);
    column.querySelector("[data-number]").textContent = index + 1;
  }
  renameReplies(page.chat);
  page.attached.refresh();
  offerMore(page);
  keepAddress(page);
}

/** Offer another column only while there is room, and to remove one only if another stays. */
function offerMore({ root }) {
  const { length } = columns(root);
  document.querySelector("[data-add]").disabled = length >= Number(root.dataset.most);
  for (const button of root.querySelectorAll("[data-remove]")) button.hidden = length < 2;
}

/** Let a column have settings of its own, which begin as those of all, or again those of all. */
function toggleOwn(page, key) {
  const column = head(page.root, key);
  const own = column.querySelector("[data-own-settings]");
  own.hidden = !own.hidden;
  column.querySelector("[data-own]").setAttribute("aria-pressed", String(!own.hidden));
  if (!own.hidden) for (const field of own.elements) if (field.name) field.value = page.form.elements[field.name].value;
  update(own);
  keepAddress(page);
}

async function refreshPrompts(page) {
  const models = columns(page.root).map(({ key }) => ["model", modelOf(page.root, key).model]);
  const answer = await fetch(`/playground/prompts?${new URLSearchParams(models)}`).catch(() => null);
  if (answer?.ok) page.root.querySelector("[data-prompts]").outerHTML = await answer.text();
  for (const button of page.root.querySelectorAll("[data-row]")) button.disabled = Boolean(page.chat.busy);
}

/** Show what a column is asked, or was asked last, as code. */
async function showCode(page, key, url) {
  const last = page.chat.turns.at(-1);
  const written = page.draft.value.trim();
  const turn = written || !last ? { prompt: written || phrase("Your message"), images: page.attached.list, answers: {} } : last;
  const { body, system } = page.settings(key);
  const sent = { ...body, messages: messagesFor(page.chat, turn, key, system), is_text: page.isText() };
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(sent) }).catch(() => null);
  if (!answer?.ok) return tell(page, phrase("The code could not be written. Try again."));
  const dialog = page.root.querySelector("#question-code");
  dialog.querySelector("[data-code-text]").innerHTML = await answer.text();
  dialog.showModal();
}

function state({ root, form, isText }, prompt) {
  const shown = columns(root).map(({ key }) => {
    const own = head(root, key).querySelector("[data-own-settings]");
    return { ...modelOf(root, key), own: own.hidden ? null : readSettings(own) };
  });
  return { columns: shown, shared: readSettings(form), isText: isText(), prompt };
}

/** Keep the models and the settings in the address, so that a reload shows them again. */
function keepAddress(page) {
  const address = writeAddress(state(page, ""));
  if (address.length <= Number(page.root.dataset.maxKept)) return history.replaceState(history.state, "", address);
  tell(page, phrase("These settings are too long for the address of this page, so a reload would lose the last change."));
}

/** Copy the address with the prompt, if it is not too long. */
async function share(page) {
  const most = Number(page.root.dataset.maxAddress);
  const prompt = page.draft.value.trim() || page.chat.turns.at(-1)?.prompt || "";
  const whole = writeAddress(state(page, prompt));
  const isShort = whole.length <= most;
  const address = isShort ? whole : writeAddress(state(page, ""));
  if (address.length > most) return tell(page, phrase("The settings are too long for an address. Shorten the system prompt, the schema or the functions."));
  const left = [
    isShort ? "" : phrase("The prompt is too long for an address, so the link leaves it out."),
    page.attached.count || page.chat.turns.at(-1)?.images.length ? phrase("The link leaves the images out.") : "",
  ].join(" ");
  try {
    await navigator.clipboard.writeText(address);
    tell(page, `${phrase("Link copied. Opening it asks nothing.")} ${left}`.trim());
  } catch {
    history.replaceState(history.state, "", address);
    tell(page, `${phrase("The address of this page is the link now.")} ${left}`.trim());
  }
}

function tell({ root }, words) {
  root.querySelector("[data-shared]").textContent = words;
}
