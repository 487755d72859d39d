// One EventSource for everything live on a page. It is closed while the tab is hidden, because a
// browser allows six connections per host, and resumes by event id. It stays open while a
// notification is requested.

import { check, heard } from "../shell/connection.js";
import { phrase } from "../i18n/translations.js";

const HIDDEN_GRACE_MS = 5_000;
const SILENCE_MS = 45_000; // three heartbeats missed: the connection died without an error
const MOST_WAIT_MS = 30_000;

const WORDS = { live: phrase("Live"), reconnecting: phrase("Reconnecting"), paused: phrase("Paused"), off: "" };

/** Show the connection state next to the menu. */
function show(state) {
  document.documentElement.dataset.live = state;
  const words = document.getElementById("connection");
  if (words) words.textContent = WORDS[state];
}

/**
 * Follow a stream of events until the returned function is called.
 * @param {string} url
 * @param {Record<string, (data: any) => void>} handlers by event name
 * @param {string} after the id of the last event already known
 * @param {() => boolean} stays whether to stay open while the tab is hidden
 */
export function follow(url, handlers, after = "", stays = () => false) {
  let source = null;
  let last = after;
  let tries = 0;
  let ended = false;
  const timers = {};

  function close(state) {
    clearTimeout(timers.silence);
    clearTimeout(timers.retry);
    source?.close();
    source = null;
    show(state);
  }

  function expectMore() {
    heard();
    clearTimeout(timers.silence);
    timers.silence = setTimeout(() => {
      close("reconnecting");
      check();
      open();
    }, SILENCE_MS);
  }

  /** EventSource retries lost connections itself, but gives up on a response such as 503. */
  function retry() {
    check();
    if (source?.readyState !== EventSource.CLOSED) return show("reconnecting");
    close("reconnecting");
    const wait = Math.min(MOST_WAIT_MS, 500 * 2 ** tries++);
    timers.retry = setTimeout(open, wait * (0.7 + 0.6 * Math.random()));
  }

  function hear(name, handle) {
    source.addEventListener(name, (event) => {
      expectMore();
      if (event.lastEventId) last = event.lastEventId;
      handle(JSON.parse(event.data || "null"));
    });
  }

  function open() {
    if (source || ended || (document.hidden && !stays())) return;
    source = new EventSource(last ? `${url}?after=${encodeURIComponent(last)}` : url);
    source.onopen = () => {
      tries = 0;
      show("live");
      expectMore();
    };
    source.onerror = retry;
    source.addEventListener("hb", expectMore);
    source.addEventListener("end", () => {
      ended = true;
      close("off");
    });
    Object.entries(handlers).forEach(([name, handle]) => hear(name, handle));
  }

  function onVisibility() {
    clearTimeout(timers.hidden);
    if (!document.hidden) return open();
    timers.hidden = setTimeout(() => source && !stays() && close("paused"), HIDDEN_GRACE_MS);
  }

  /** The studio responds again: reconnect without waiting for the next attempt. */
  function onBack() {
    if (source && source.readyState !== EventSource.CLOSED) return;
    tries = 0;
    close("reconnecting");
    open();
  }

  const watch = new AbortController();
  const { signal } = watch;
  document.addEventListener("visibilitychange", onVisibility, { signal });
  document.addEventListener("studio-back", onBack, { signal });
  addEventListener("pagehide", () => close("off"), { signal });
  addEventListener("pageshow", (event) => event.persisted && open(), { signal });
  open();

  return () => {
    ended = true;
    clearTimeout(timers.hidden);
    watch.abort();
    close("off");
  };
}
