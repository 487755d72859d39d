// How long ago something was goes on while a page is open.

const MINUTE = 60;
/** As the server calls them in English. Other languages have their own words. */
const UNITS = [["day", 86400, "d"], ["hour", 3600, "h"], ["minute", MINUTE, "min"]];

/** Write anew, once a minute, how far off each moment is; hidden pages wait until they are seen. */
export function tick() {
  setInterval(write, MINUTE * 1000);
  document.addEventListener("visibilitychange", write);
}

function write() {
  if (document.hidden) return;
  for (const spot of document.querySelectorAll("time[datetime]")) {
    const told = far((Date.parse(spot.dateTime) - Date.now()) / 1000);
    // Below a minute it stays as the server wrote it: just now.
    if (told && spot.textContent !== told) spot.textContent = told;
  }
}

/** Write how far off a moment is that lies so many seconds ahead. */
function far(away) {
  const found = UNITS.find(([, span]) => Math.abs(away) >= span);
  if (!found) return "";
  const [unit, span, sign] = found;
  const many = Math.trunc(away / span);
  const { lang } = document.documentElement;
  if (!lang.startsWith("en")) return new Intl.RelativeTimeFormat(lang).format(many, unit);
  return many < 0 ? `${-many} ${sign} ago` : `in ${many} ${sign}`;
}
