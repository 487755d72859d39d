// The command palette. The server searches; this module selects and activates a result.

const found = () => document.getElementById("palette-found");
const field = () => document.getElementById("palette-q");
const lines = () => [...found().querySelectorAll("[role=option]:not([aria-disabled])")];

/** Open the palette with an empty field, or close it. */
export function open() {
  const dialog = document.getElementById("palette");
  if (dialog.open) return dialog.close();
  if (document.querySelector("dialog:modal")) return;
  field().value = "";
  dialog.showModal();
  field().focus();
  field().dispatchEvent(new Event("input", { bubbles: true }));
}

function choose(line) {
  for (const one of lines()) one.setAttribute("aria-selected", String(one === line));
  if (line) field().setAttribute("aria-activedescendant", line.id);
  else field().removeAttribute("aria-activedescendant");
  line?.scrollIntoView({ block: "nearest" });
}

/** Move the selection by a number of lines, wrapping around at the ends. */
function move(by) {
  const all = lines();
  const now = all.findIndex((one) => one.getAttribute("aria-selected") === "true");
  choose(all.at((now + by) % all.length));
}

function press(event) {
  if (event.target !== field()) return;
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && lines().length) move(step);
  else if (event.key === "Enter") found().querySelector("[aria-selected=true]")?.click();
  else return;
  event.preventDefault();
}

document.addEventListener("keydown", press);
document.addEventListener("click", (event) => {
  // Close before running the action: it may open another dialog.
  if (event.target.closest("#palette [role=option]")) document.getElementById("palette").close();
}, { capture: true });
document.addEventListener("htmx:after:swap", () => document.getElementById("palette").open && choose(lines()[0]));
