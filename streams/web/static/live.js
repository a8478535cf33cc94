// What is live on a page: a button pauses it, and a lost connection is said. Without scripts pages stand still.
(() => {
  "use strict";
  const KEY = "steadfaust-live";
  const held = new Map(); // by element, what came for it while it was paused
  let live = !window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  try {
    live = (window.sessionStorage.getItem(KEY) ?? String(live)) === "true";
  } catch {
    // Storage is forbidden: each page begins as the preference says.
  }

  const all = (selector) => document.querySelectorAll(selector);

  function show() {
    for (const button of all("[data-live]")) {
      button.hidden = !document.querySelector("[data-polled], [sse-connect]");
      button.querySelector("span").textContent = live ? "Pause updates" : "Go live";
    }
  }

  function lost(yes) {
    for (const sign of all("[data-lost]")) {
      sign.textContent = yes ? "Connection lost, trying again. What you see is not up to date." : "";
    }
  }

  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-live]")) return;
    live = !live;
    try {
      window.sessionStorage.setItem(KEY, String(live));
    } catch {
      // As above.
    }
    show();
    if (!live) return;
    for (const [element, text] of held) window.htmx.swap(element, text, { swapStyle: "innerHTML" });
    held.clear();
  });

  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    if (live && !document.hidden) {
      held.delete(event.target);
      return;
    }
    held.set(event.target, event.detail.data);
    event.preventDefault();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || !live) return;
    for (const [element, text] of held) window.htmx.swap(element, text, { swapStyle: "innerHTML" });
    held.clear();
  });
  document.addEventListener("htmx:sseOpen", () => lost(false));
  document.addEventListener("htmx:sseError", () => lost(true));

  const polled = (event) => event.target.closest("[data-polled]");
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (polled(event) && (!live || document.hidden)) event.preventDefault();
  });
  document.addEventListener("htmx:sendError", (event) => polled(event) && lost(true));
  document.addEventListener("htmx:afterOnLoad", (event) => polled(event) && lost(false));
  document.addEventListener("htmx:afterSettle", show);
  document.addEventListener("DOMContentLoaded", show);
  show();
})();
