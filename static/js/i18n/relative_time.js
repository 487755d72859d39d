// Keeps relative times up to date while a page is open.

const MINUTE = 60;
/** Units as the server writes them in English. Other languages use Intl. */
const UNITS = [["day", 86400, "d"], ["hour", 3600, "h"], ["minute", MINUTE, "min"]];

/** Update each relative time once a minute; hidden pages wait until they are visible. */
export function tick() {
  setInterval(write, MINUTE * 1000);
  document.addEventListener("visibilitychange", write);
}

function write() {
  if (document.hidden) return;
  for (const spot of document.querySelectorAll("time[datetime]")) {
    const told = far((Date.parse(spot.dateTime) - Date.now()) / 1000);
    // Below a minute, keep the server's text: just now.
    if (told && spot.textContent !== told) spot.textContent = told;
  }
}

/** Format the time that is so many seconds in the future. */
function far(away) {
  const found = UNITS.find(([, span]) => Math.abs(away) >= span);
  if (!found) return "";
  const [unit, span, sign] = found;
  const many = Math.trunc(away / span);
  const { lang } = document.documentElement;
  if (!lang.startsWith("en")) return new Intl.RelativeTimeFormat(lang).format(many, unit);
  return many < 0 ? `${-many} ${sign} ago` : `in ${many} ${sign}`;
}
