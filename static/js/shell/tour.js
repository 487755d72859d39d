// A tour in four steps, each next to its menu entry. It is offered until it was taken or skipped.

/** Start the tour on the current page. */
export async function start() {
  const answer = await fetch("/help/tour");
  if (!answer.ok) return;
  end();
  document.body.insertAdjacentHTML("beforeend", await answer.text());
  const dialog = document.querySelector(".tour");
  const steps = [...dialog.querySelectorAll(".tour-step")];
  let at = 0;
  const button = (name) => dialog.querySelector(`[data-tour=${name}]`);
  const actions = dialog.querySelectorAll("[data-tour=done]");

  function show(step) {
    at = step;
    steps.forEach((one, i) => { one.hidden = i !== at; });
    const isLast = at === steps.length - 1;
    button("back").disabled = at === 0;
    button("next").hidden = isLast;
    for (const action of actions) action.hidden = !isLast;
    point(steps[at].dataset.at);
    dialog.setAttribute("aria-labelledby", steps[at].querySelector("h2").id);
    const main = isLast ? [...actions].at(-1) : button("next");
    (main.querySelector("button") ?? main).focus();
  }

  dialog.addEventListener("click", (event) => {
    const act = event.target.closest("[data-tour]")?.dataset.tour;
    if (act === "next") show(at + 1);
    else if (act === "back") show(at - 1);
    else if (act) remember();
    // A link or form of the last step leads to another page, and must stay until then.
    if (event.target.closest("button[data-tour=skip], button[data-tour=done]")) end();
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    remember();
    end();
  });
  dialog.show();
  show(0);
}

/** Do not offer the tour again in this browser. */
function remember() {
  localStorage.tour = "done";
  document.documentElement.dataset.toured = "";
}

function end() {
  point("");
  document.querySelector(".tour")?.remove();
}

function point(href) {
  document.querySelector(".toured")?.classList.remove("toured");
  const links = href ? [...document.querySelectorAll(`nav a[href="${href}"]`)] : [];
  const place = links.find((link) => link.checkVisibility());
  place?.classList.add("toured");
  place?.scrollIntoView?.({ block: "nearest", inline: "center" });
}
