// Uploads a large file in parts. An interrupted upload resumes, also after a reload of the page.

import { phrase } from "../i18n/translations.js";

const PART = 2 * 2 ** 20;
const LONGEST_PAUSE = 30_000;

/**
 * @param {File} file
 * @param {{ signal: AbortSignal, show: (words: string, share: number) => void }} how
 * @returns {Promise<string>} the upload's id, once it is complete
 */
export async function send(file, { signal, show }) {
  const key = `upload:${file.name}:${file.size}:${file.lastModified}`;
  let upload = localStorage.getItem(key);
  let offset = upload ? await reached(upload, signal) : null;
  let failures = 0;
  while (offset === null || offset < file.size) {
    try {
      if (offset === null) {
        upload = await begin(file, signal);
        localStorage.setItem(key, upload);
        offset = 0;
      }
      show(phrase("Uploading: {share} %", { share: Math.floor((100 * offset) / file.size) }), offset / file.size);
      offset = await part(upload, file, offset, signal);
      failures = 0;
    } catch (error) {
      // Do not retry what the studio rejects or the user stops.
      if (signal.aborted || error.told) throw error;
      failures += 1;
      show(phrase("Connection lost. Retrying…"), (offset ?? 0) / file.size);
      await pause(Math.min(1000 * 2 ** failures, LONGEST_PAUSE), signal);
      if (upload) offset = await reached(upload, signal, offset);
    }
  }
  localStorage.removeItem(key);
  return upload;
}

/** Forget an unfinished upload, in the browser and on the server. */
export async function drop(file) {
  const key = `upload:${file.name}:${file.size}:${file.lastModified}`;
  const upload = localStorage.getItem(key);
  localStorage.removeItem(key);
  if (upload) await fetch(`/api/v1/uploads/${upload}`, { method: "DELETE" }).catch(() => null);
}

async function begin(file, signal) {
  const answer = await fetch("/api/v1/uploads", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ filename: file.name, size: file.size }),
    signal,
  });
  return (await told(answer)).id;
}

async function part(upload, file, offset, signal) {
  const answer = await fetch(`/api/v1/uploads/${upload}`, {
    method: "PATCH",
    headers: { "Content-Type": "application/offset+octet-stream", "Upload-Offset": String(offset) },
    body: file.slice(offset, offset + PART),
    signal,
  });
  if (answer.status === 409) throw new Error("not the next part");
  if (!answer.ok) await told(answer);
  return Number(answer.headers.get("Upload-Offset"));
}

/** Return the offset reached: null if the server has forgotten it, `otherwise` without a response. */
async function reached(upload, signal, otherwise = null) {
  try {
    const answer = await fetch(`/api/v1/uploads/${upload}`, { method: "HEAD", signal });
    if (answer.status === 404) return null;
    return answer.ok ? Number(answer.headers.get("Upload-Offset")) : otherwise;
  } catch {
    signal.throwIfAborted();
    return otherwise;
  }
}

/** Return the data of a response, or throw its error. */
async function told(answer) {
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  const error = new Error(body.error?.message ?? answer.statusText);
  // What may succeed later is not a rejection.
  if (answer.status < 500 || answer.status === 507) error.told = body.error;
  throw error;
}

/** Wait; rejects as soon as the signal aborts. */
export function pause(milliseconds, signal) {
  return new Promise((go, leave) => {
    const timer = setTimeout(go, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      leave(signal.reason);
    }, { once: true });
  });
}
