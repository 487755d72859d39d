// Images in messages: a turn holds each as a data URL, with the place in the text where it stands.

import { phrase } from "../i18n/translations.js";

/** Return what a user said as a message has it: text, or parts if there are images. */
export function contentOf({ prompt, images = [] }) {
  if (!images.length) return prompt;
  const parts = [];
  let said = 0;
  for (const { url, at } of images) {
    addText(parts, prompt.slice(said, at));
    parts.push({ type: "image_url", image_url: { url } });
    said = Math.max(said, Math.min(at, prompt.length));
  }
  addText(parts, prompt.slice(said));
  return parts;
}

function addText(parts, text) {
  if (text) parts.push({ type: "text", text });
}

/** Return the text of a message's content. */
export function textOf(content) {
  if (typeof content === "string") return content;
  return content.map((part) => part.text ?? "").join("");
}

/** Return the images of a message, with their places in its text. */
export function imagesOf({ content }) {
  if (typeof content === "string") return [];
  let at = 0;
  return content.flatMap((part) => {
    if (part.type === "image_url") return [{ url: part.image_url.url, at }];
    at += part.text.length;
    return [];
  });
}

export function hasImages(messages) {
  return messages.some((message) => imagesOf(message).length > 0);
}

/** Return a validation row as it is sent: its images are loaded from the studio. */
export async function loadRow(messages) {
  const loaded = await Promise.all(messages.map(loadMessage));
  const last = loaded.at(-1);
  return { before: loaded.slice(0, -1), prompt: textOf(last.content), images: imagesOf(last) };
}

async function loadMessage(message) {
  if (typeof message.content === "string") return message;
  const content = await Promise.all(message.content.map(loadPart));
  return { ...message, content };
}

async function loadPart(part) {
  if (part.type !== "image_url" || part.image_url.url.startsWith("data:")) return part;
  const answer = await fetch(part.image_url.url).catch(() => null);
  if (!answer?.ok) return part; // The studio says that it cannot be fetched.
  return { type: "image_url", image_url: { url: await readFile(await answer.blob()) } };
}

/** Return a file as a data URL. */
export function readFile(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** Show images in a list; with `onRemove`, each has a button that removes it. */
export function showImages(list, images, onRemove = null) {
  list.replaceChildren(...images.map((image, index) => drawImage(image, index + 1, onRemove)));
  list.hidden = !images.length;
}

function drawImage(image, number, onRemove) {
  const item = document.createElement("li");
  const shown = document.createElement("img");
  const name = image.name || phrase("Image {number}", { number });
  shown.src = image.url;
  shown.alt = shown.title = name;
  item.append(shown);
  if (onRemove) item.append(removeButton(name, () => onRemove(image)));
  return item;
}

function removeButton(name, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "btn quiet small";
  button.textContent = "✕";
  button.setAttribute("aria-label", phrase("Remove {name}", { name }));
  button.title = button.getAttribute("aria-label");
  button.addEventListener("click", act);
  return button;
}
