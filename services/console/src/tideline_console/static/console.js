"use strict";
// Shows times in the viewer's zone, asks for fresh parts of the page, and lets "/" reach the search.
const REFRESH_MS = 2000;
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const dayOfYear = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const brief = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });

function showTimes(root) {
  const now = new Date();
  for (const each of root.querySelectorAll("time[datetime]:not(.ago):not([data-shown])")) {
    const at = new Date(each.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    each.title = each.textContent;
    const form = at.getFullYear() === now.getFullYear() ? day : dayOfYear;
    each.textContent = (dayOfYear.format(at) === dayOfYear.format(now) ? "" : form.format(at) + ", ") + clock.format(at);
    each.dataset.shown = "";
  }
  for (const each of root.querySelectorAll("text[data-at]")) {
    if (!each.textContent.includes(":")) continue;
    const at = new Date(each.dataset.at);
    each.textContent = each.textContent.length > 5 ? clock.format(at) : brief.format(at);
  }
}

function isInUse() {
  // What a person points at, reads with the keyboard, opened or selected must not be replaced.
  const live = document.getElementById("live");
  if (!live) return false;
  if (live.contains(document.activeElement) || live.querySelector("details[open], tbody input:checked, tbody:hover, .lanes:hover")) return true;
  const selected = window.getSelection();
  return Boolean(selected && !selected.isCollapsed && live.contains(selected.anchorNode));
}

function sayHeld() {
  sayLag("held while used", "Parts of the page have the focus, are selected, opened or pointed at: they are not replaced.");
}

function sayLag(text, why) {
  const lag = document.getElementById("lag");
  lag.querySelector("i").className = "late";
  lag.querySelector(".live-t").textContent = text;
  lag.title = why;
}

function closeMenu(menu) {
  const hasFocus = menu.contains(document.activeElement);
  menu.open = false;
  if (hasFocus) menu.querySelector("summary").focus();
}

document.addEventListener("DOMContentLoaded", () => {
  showTimes(document);
  document.body.addEventListener("htmx:afterSettle", () => showTimes(document));
  let isWaiting = false;
  document.body.addEventListener("htmx:beforeRequest", () => { isWaiting = true; });
  document.body.addEventListener("htmx:afterRequest", (event) => {
    isWaiting = false;
    const said = event.detail.successful ? "" : "The console does not answer; what is shown is old.";
    document.getElementById("said").textContent = said;  // Read aloud once, unlike the age of what is shown.
    if (!said) return;
    // The figures are those of the last answer: the page must not look live. The next good answer replaces this.
    sayLag("no answer", said);
  });
  // How far a person scrolled a wide or long table stays, although the table is a new one.
  const scrolled = () => [...document.querySelectorAll("#live .scroll")];
  let places = [];
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    places = scrolled().map((each) => [each.scrollLeft, each.scrollTop]);
    if (!isInUse()) return;
    event.detail.shouldSwap = false;  // A person began to use the page while the answer was under way.
    sayHeld();
  });
  document.body.addEventListener("htmx:afterSwap", () => {
    scrolled().forEach((each, at) => { if (places[at]) [each.scrollLeft, each.scrollTop] = places[at]; });
  });
  setInterval(() => {
    if (isWaiting || document.hidden || !document.getElementById("live").hasAttribute("hx-get")) return;
    if (isInUse()) sayHeld();
    else document.body.dispatchEvent(new Event("refresh"));
  }, REFRESH_MS);
});

document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelectorAll(".menu[open]").forEach(closeMenu);
  const isTyping = event.target instanceof HTMLInputElement;
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    document.querySelector(".top .find input").focus();
  }
});
