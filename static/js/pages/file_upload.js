// Sends a form with files and reports its progress, which fetch does not.

import { phrase } from "../i18n/translations.js";

/** The error for a studio that does not answer. */
export const UNREACHED = {
  message: phrase("The studio could not be reached."),
  hint: phrase("Check that it is running, then try again."),
};

/**
 * @param {string} url
 * @param {FormData} data
 * @param {{ signal: AbortSignal, show: (words: string, share: number | null) => void, sent?: () => void }} how
 * @returns {Promise<any>} the created resource; rejects with what the studio told as `told`
 */
export function post(url, data, { signal, show, sent }) {
  return new Promise((resolve, reject) => {
    const refuse = (told) => reject(Object.assign(new Error("refused"), { told }));
    const request = new XMLHttpRequest();
    request.upload.addEventListener("progress", ({ loaded, total }) => {
      show(phrase("Uploading: {share} %", { share: Math.floor((100 * loaded) / total) }), loaded / total);
    });
    request.upload.addEventListener("load", () => {
      show(phrase("Reading the rows…"), null);
      sent?.();
    });
    request.addEventListener("load", () => {
      if (request.status === 201) resolve(request.response);
      else refuse(request.response?.error ?? UNREACHED);
    });
    request.addEventListener("error", () => refuse(UNREACHED));
    request.addEventListener("abort", () => reject(signal.reason));
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.open("POST", url);
    request.responseType = "json";
    request.send(data);
    show(phrase("Uploading…"), 0);
  });
}
