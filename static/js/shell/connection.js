// Whether the studio answers. While it does not, a notice says so and actions are disabled. A slow
// answer is seen to be waited for.

import { span } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";

const ACTIONS = "form[method=post] button:not([type=button], :disabled), button[hx-post]:not(:disabled)";
const { dataset } = document.documentElement;
const waiting = new Set();
const timers = {};
let heardAt = 0;
let checking;

/** Note that the event stream has brought something. */
export function heard() {
  heardAt = Date.now();
}

/** Ask whether the studio answers; while it does not, ask again. */
export function check() {
  clearTimeout(timers.again);
  checking ??= fetch("/api/v1/health", { cache: "no-store", signal: AbortSignal.timeout(5000) })
    .then(isGateway, () => true)
    .then((isAway) => {
      checking = null;
      if (isAway) timers.again = setTimeout(check, 2000);
      if (isAway !== "away" in dataset) turn(isAway);
      if (isAway) clearTimeout(timers.hide);
    });
}

/** Whether a proxy answered for a studio that it cannot reach: the studio's own answers have an id. */
function isGateway({ status, headers }) {
  return status >= 502 && status <= 504 && !headers.has("X-Request-ID");
}

function turn(isAway) {
  clearInterval(timers.age);
  for (const button of document.querySelectorAll(isAway ? ACTIONS : "button[data-away]")) {
    button.disabled = isAway;
    button.toggleAttribute("data-away", isAway);
  }
  if (isAway) {
    dataset.away = "";
    timers.age = setInterval(age, 1000);
    if (!notice().matches(":popover-open")) tell(phrase("The studio does not answer. Actions are disabled until it does."));
    return age();
  }
  delete dataset.away;
  tell(phrase("The studio answers again."));
  document.dispatchEvent(new Event("studio-back"));
}

function notice() {
  return document.getElementById("notice");
}

/** Say something for some seconds, above dialogs, too; while the studio is away, it stays. */
function tell(words) {
  const box = notice();
  if (box.matches(":popover-open")) box.hidePopover();
  box.firstChild.textContent = words;
  box.lastChild.textContent = "";
  box.showPopover();
  clearTimeout(timers.hide);
  timers.hide = setTimeout(() => box.hidePopover(), 8000);
}

/** Say how old the figures of a live page are. */
function age() {
  if (dataset.live !== "reconnecting" || !heardAt) return;
  const time = span(Math.round((Date.now() - heardAt) / 1000)).replace(".0", "");
  notice().lastChild.textContent = phrase("Last update {time} ago", { time });
}

/** Tell who pressed that no answer came; what a page asks by itself is only checked on. */
function miss({ request, sourceEvent }, mayStillWork) {
  check();
  if (!sourceEvent?.isTrusted) return;
  if (mayStillWork) tell(phrase("No answer yet. The studio may still be working on it: reload the page before you try again."));
  else if (request.method === "GET") tell(phrase("The studio does not answer. Try again."));
  else tell(phrase("The studio does not answer. Nothing was saved; try again."));
}

function begin({ detail: { ctx } }) {
  if (!ctx.sourceEvent?.isTrusted) return;
  waiting.add(ctx);
  timers.busy ??= setTimeout(() => (dataset.busy = ""), 400);
  timers.slow ??= setTimeout(() => {
    tell(phrase("The studio is still working on it."));
    check();
  }, 10_000);
}

function end({ detail: { ctx } }) {
  waiting.delete(ctx);
  if (waiting.size) return;
  clearTimeout(timers.busy);
  clearTimeout(timers.slow);
  timers.busy = timers.slow = null;
  delete dataset.busy;
}

/** Watch all requests of a page. */
export function watch() {
  document.addEventListener("htmx:before:request", begin);
  document.addEventListener("htmx:finally:request", end);
  document.addEventListener("htmx:before:response", (event) => {
    const { ctx } = event.detail;
    if (!isGateway(ctx.response)) return;
    event.preventDefault();
    miss(ctx, ctx.response.status === 504);
  });
  document.addEventListener("htmx:error", ({ detail: { ctx } }) => {
    if (ctx && !ctx.response) miss(ctx, ctx.request.signal.reason === "timeout");
  });
  addEventListener("online", check);
  addEventListener("offline", check);
}
