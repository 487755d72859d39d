// A tour in four steps, each next to its menu entry. It is shown once.

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

  function show(step) {
    at = step;
    steps.forEach((one, i) => { one.hidden = i !== at; });
    const isLast = at === steps.length - 1;
    button("back").disabled = at === 0;
    button("next").hidden = isLast;
    button("done").hidden = !isLast;
    point(steps[at].dataset.at);
    dialog.setAttribute("aria-labelledby", steps[at].querySelector("h2").id);
    button(isLast ? "done" : "next").focus();
  }

  dialog.addEventListener("click", (event) => {
    const act = event.target.closest("[data-tour]")?.dataset.tour;
    if (act === "next") show(at + 1);
    else if (act === "back") show(at - 1);
    else if (act) finish();
  });
  dialog.addEventListener("keydown", (event) => event.key === "Escape" && finish());
  dialog.show();
  show(0);
}

function finish() {
  localStorage.tour = "done";
  end();
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
