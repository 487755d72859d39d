// The images of the next message: chosen, pasted or dropped.

import { phrase } from "../i18n/translations.js";
import { readFile, showImages } from "./images.js";

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/**
 * Let a form take images.
 * @param {HTMLFormElement} form
 * @param {() => boolean} sees whether a model that is asked reads images
 */
export function attachImages(form, sees, signal) {
  const find = (name) => form.querySelector(`[data-${name}]`);
  const field = { form, sees, find, list: [] };
  const listen = (target, event, act) => target.addEventListener(event, act, { signal });
  const files = find("attached-files");
  listen(find("attach"), "click", () => files.click());
  listen(files, "change", async (event) => {
    event.stopPropagation(); // It is no setting.
    await add(field, [...files.files]);
    files.value = "";
  });
  // Cells of a table are copied as a text and as an image of it: the text is meant.
  listen(find("draft"), "paste", (event) => event.clipboardData.getData("text/plain") || take(field, event, event.clipboardData));
  listen(document, "dragover", (event) => sees() && hasFiles(event) && event.preventDefault());
  listen(document, "drop", (event) => hasFiles(event) && take(field, event, event.dataTransfer));
  refresh(field);
  return {
    refresh: () => refresh(field),
    take: () => empty(field),
    get list() {
      return field.list;
    },
    get count() {
      return field.list.length;
    },
  };
}

function hasFiles(event) {
  return event.dataTransfer?.types.includes("Files");
}

/** Show the button and the images while a model reads them. */
function refresh(field) {
  if (!field.sees()) field.list = [];
  field.find("attach").hidden = !field.sees();
  tell(field, "");
  draw(field);
}

/** Take what was pasted or dropped, if it is files. */
function take(field, event, { files }) {
  if (!field.sees() || !files.length) return;
  event.preventDefault();
  add(field, [...files]);
}

async function add(field, files) {
  const fitting = files.filter(({ type }) => TYPES.includes(type));
  tell(field, fitting.length < files.length ? phrase("Only PNG, JPEG, WebP and GIF files can be attached.") : "");
  const read = await Promise.allSettled(fitting.map(async (file) => ({ url: await readFile(file), at: 0, name: file.name })));
  if (!field.sees()) return;
  field.list.push(...read.filter(({ status }) => status === "fulfilled").map(({ value }) => value));
  draw(field);
  if (fitting.length) say(field, phrase("Images attached: {count}", { count: field.list.length }));
}

function remove(field, image) {
  const index = field.list.indexOf(image);
  field.list.splice(index, 1);
  draw(field);
  say(field, phrase("Images attached: {count}", { count: field.list.length }));
  const buttons = field.find("attached-list").querySelectorAll("button");
  (buttons[Math.min(index, buttons.length - 1)] ?? field.find("attach")).focus();
}

/** Return the images, and begin without any. */
function empty(field) {
  const taken = field.list;
  field.list = [];
  tell(field, "");
  draw(field);
  return taken;
}

function draw(field) {
  showImages(field.find("attached-list"), field.list, (image) => remove(field, image));
  showOrHide(field);
}

function tell(field, words) {
  field.find("attached-problem").textContent = words;
  field.find("attached-problem").hidden = !words;
  showOrHide(field);
}

function showOrHide(field) {
  field.find("attached").hidden = !field.list.length && field.find("attached-problem").hidden;
}

function say(field, words) {
  field.find("attached-said").textContent = words;
}
