// One prompt on the page, with a reply for each column.

import { imagesOf, showImages, textOf } from "./images.js";

/** Add a turn to the page, with an empty reply for each column. */
export function draw(root, { prompt, images, expected, before }, columns) {
  const element = cloned(root, "turn");
  const beforeLine = element.querySelector("[data-before]");
  beforeLine.textContent = before.map(({ role, content }) => `${role}: ${textOf(content)}`).join("\n");
  beforeLine.hidden = !before.length;
  element.querySelector("[data-prompt]").textContent = prompt;
  showImages(element.querySelector("[data-shown-images]"), [...before.flatMap(imagesOf), ...images]);
  element.querySelector("[data-expected]").textContent = expected;
  for (const column of columns) addReply(root, element, column);
  root.querySelector("[data-turns]").append(element);
  return element;
}

/** Add the reply of a column to a turn. */
export function addReply(root, element, { key, title }) {
  const reply = cloned(root, "reply");
  reply.dataset.side = key;
  element.querySelector("[data-replies]").append(reply);
  name(reply, title);
  return reply;
}

/** Name a reply by its column. */
export function name(reply, title) {
  reply.setAttribute("aria-label", title);
  reply.querySelector("[data-name]").textContent = title;
}

function cloned(root, part) {
  return root.querySelector(`template[data-${part}]`).content.cloneNode(true).firstElementChild;
}

/** Return the reply of a column. */
export function replyOf(element, key) {
  return element.querySelector(`[data-side="${key}"]`);
}

/** Show the field to edit a prompt, or the prompt again. */
export function toggleEditor(element, isOpen) {
  const form = element.querySelector("[data-edited]");
  form.hidden = !isOpen;
  element.querySelector(".chat-asked").hidden = isOpen;
  if (!isOpen) return element.querySelector("[data-edit]").focus();
  const field = form.querySelector("textarea");
  field.value = element.querySelector("[data-prompt]").textContent;
  field.focus();
}

/** Whether the page shows its end, where answers grow. */
export function isAtEnd() {
  return innerHeight + scrollY > document.documentElement.scrollHeight - 160;
}

/** Keep the end of a turn above the composer. */
export function follow(element) {
  const dock = element.closest(".chat").querySelector(".chat-dock");
  const hidden = element.getBoundingClientRect().bottom - dock.getBoundingClientRect().top;
  if (hidden > 0) scrollBy(0, hidden + 16);
}
