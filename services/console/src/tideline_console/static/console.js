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

// Zoom of the timeline: a range that is dragged over, the wheel with Ctrl (as a pinch is), and a double click to zoom out.
const LEAST_S = 1, MARGIN = 0.06;  // The server draws so much beyond the end of a range.
let isZooming = false, hasDragged = false, wheeled = null, dragged = null;

function zoom(plot, begin, end) {
  const length = Math.max(LEAST_S, Math.round((end - begin) / (1 + MARGIN))), until = begin + length;
  const given = new URLSearchParams(location.search);
  given.set("window", length);
  if (until < Number(plot.dataset.now)) given.set("until", until.toFixed(3));
  else given.delete("until");
  const address = `${location.pathname}?${given}`;
  isZooming = true;
  htmx.ajax("GET", address, { target: "#live", select: "#live", swap: "outerHTML" }).then(
    () => { history.replaceState(null, "", address); }, () => { isZooming = false; });
}

const rangeOf = (plot) => [Number(plot.dataset.begin), Number(plot.dataset.end)];

function shareOf(plot, event) {
  const box = plot.getBoundingClientRect();
  return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
}

document.addEventListener("wheel", (event) => {
  const plot = event.target.closest?.("#drawing");
  if (!plot || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  const [begin, end] = wheeled?.range ?? rangeOf(plot);
  const at = begin + (end - begin) * shareOf(plot, event), factor = 2 ** Math.max(-1, Math.min(1, event.deltaY / 200));
  clearTimeout(wheeled?.timer);
  const range = [at - (at - begin) * factor, at + (end - at) * factor];
  wheeled = { range, timer: setTimeout(() => { wheeled = null; zoom(plot, ...range); }, 150) };
}, { passive: false });

document.addEventListener("pointerdown", (event) => {
  const plot = event.button === 0 && event.pointerType !== "touch" ? event.target.closest("#drawing") : null;
  hasDragged = false;
  dragged = plot && { plot, from: shareOf(plot, event), x: event.clientX, mark: null };
});

document.addEventListener("pointermove", (event) => {
  if (!dragged || (!dragged.mark && Math.abs(event.clientX - dragged.x) < 5)) return;
  dragged.mark ??= dragged.plot.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "rect"));
  const shares = [dragged.from, shareOf(dragged.plot, event)].sort((a, b) => a - b);
  const look = { class: "chosen-range", x: `${shares[0] * 100}%`, width: `${(shares[1] - shares[0]) * 100}%`, y: 0, height: "100%" };
  for (const [name, value] of Object.entries(look)) dragged.mark.setAttribute(name, value);
  dragged.shares = shares;
});

document.addEventListener("pointerup", () => {
  if (dragged?.mark) {
    const [begin, end] = rangeOf(dragged.plot);
    zoom(dragged.plot, ...dragged.shares.map((share) => begin + (end - begin) * share));
    dragged.mark.remove();
    hasDragged = true;
  }
  dragged = null;
});

document.addEventListener("click", (event) => {
  if (hasDragged && event.target.closest("#drawing")) event.preventDefault();  // The mark under the end of the range is not meant.
}, { capture: true });

document.addEventListener("dragstart", (event) => { if (event.target.closest?.("#drawing")) event.preventDefault(); });

document.addEventListener("dblclick", (event) => {
  const plot = event.target.closest("#drawing");
  if (!plot) return;
  const [begin, end] = rangeOf(plot), at = begin + (end - begin) * shareOf(plot, event);
  zoom(plot, at - (at - begin) * 4, at + (end - at) * 4);
});

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
    if (isZooming || !isInUse()) return;
    event.detail.shouldSwap = false;  // A person began to use the page while the answer was under way.
    sayHeld();
  });
  document.body.addEventListener("htmx:afterSwap", () => {
    isZooming = false;
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
