// Monitors the connection to the studio. While it is lost, a notice says so and actions are
// disabled. Slow responses show a progress bar.

import { span } from "../i18n/formatting.js";
import { phrase } from "../i18n/translations.js";

const ACTIONS = "form[method=post] button:not([type=button], :disabled), button[hx-post]:not(:disabled)";
const { dataset } = document.documentElement;
const waiting = new Set();
const timers = {};
let heardAt = 0;
let checking;

/** Record that the event stream delivered something. */
export function heard() {
  heardAt = Date.now();
}

/** Check whether the studio responds, and repeat until it does. */
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

/** Whether a proxy responded for an unreachable studio: the studio's own responses have an id. */
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
    if (!notice().matches(":popover-open")) tell(phrase("The studio is not responding. Actions are disabled until it responds."));
    return age();
  }
  delete dataset.away;
  tell(phrase("The studio is back online."));
  document.dispatchEvent(new Event("studio-back"));
}

function notice() {
  return document.getElementById("notice");
}

/** Show a notice for some seconds, also above dialogs; it stays while the studio is unreachable. */
function tell(words) {
  const box = notice();
  if (box.matches(":popover-open")) box.hidePopover();
  box.firstChild.textContent = words;
  box.lastChild.textContent = "";
  box.showPopover();
  clearTimeout(timers.hide);
  timers.hide = setTimeout(() => box.hidePopover(), 8000);
}

/** Show how old the figures of a live page are. */
function age() {
  if (dataset.live !== "reconnecting" || !heardAt) return;
  const time = span(Math.round((Date.now() - heardAt) / 1000)).replace(".0", "");
  notice().lastChild.textContent = phrase("Last update {time} ago", { time });
}

/** Report a user's request that got no response; for a page's own requests only check the connection. */
function miss({ request, sourceEvent }, mayStillWork) {
  check();
  if (!sourceEvent?.isTrusted) return;
  if (mayStillWork) tell(phrase("No response yet. The studio may still be working on it: reload the page before you retry."));
  else if (request.method === "GET") tell(phrase("The studio is not responding. Try again."));
  else tell(phrase("The studio is not responding. Nothing was saved; try again."));
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
