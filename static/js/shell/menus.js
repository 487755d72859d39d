// Menus that are `<details class="menu">`: they close on Escape and on a click outside, and arrow keys
// move between their items.

/** Close the menus within an element as people expect, until a signal aborts. */
export function closeMenus(root, signal) {
  const opened = () => [...root.querySelectorAll("details.menu[open]")];
  document.addEventListener("click", ({ target }) => {
    for (const menu of opened()) if (!menu.contains(target) || isChoice(target)) menu.open = false;
  }, { signal });
  root.addEventListener("keydown", (event) => {
    const menu = event.target.closest("details.menu");
    if (!menu) return;
    if (event.key === "Escape" && menu.open) leave(menu);
    if (event.key === "ArrowDown" || event.key === "ArrowUp") step(menu, event);
  }, { signal });
}

function isChoice(target) {
  return Boolean(target.closest(".menu-body :is(a, button)"));
}

function leave(menu) {
  menu.open = false;
  menu.querySelector("summary").focus();
}

/** Move focus to the next or previous item. */
function step(menu, event) {
  event.preventDefault();
  menu.open = true;
  const items = [...menu.querySelectorAll(".menu-body :is(a, button)")].filter((one) => one.checkVisibility());
  const at = items.indexOf(document.activeElement);
  const by = event.key === "ArrowDown" ? 1 : -1;
  items.at(at < 0 && by < 0 ? -1 : (at + by) % items.length)?.focus();
}
