// Runs before the first paint, so that the page does not flash in the wrong theme.
if (localStorage.theme) document.documentElement.dataset.theme = localStorage.theme;
// The tour is offered once.
if (localStorage.tour) document.documentElement.dataset.toured = "";
