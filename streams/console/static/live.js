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

  const SILENT = 3500; // milliseconds without a word of the worker, also of one that is frozen
  let lastAt = Date.now();
  let why = ""; // what the worker has answered instead of the page

  function lost(yes) {
    const since = new Date(lastAt).toISOString().slice(11, 19);
    document.documentElement.classList.toggle("stale", yes);
    for (const sign of all("[data-lost]")) {
      const text = yes ? `${why || "The worker does not answer"}, trying again. This page shows the state at ${since} UTC.` : "";
      if (sign.textContent !== text) sign.textContent = text; // a screen reader says each change
    }
  }

  function hear() {
    lastAt = Date.now();
    why = "";
    lost(false);
  }

  setInterval(() => {
    const waits = live && !document.hidden && document.querySelector("[data-polled], [sse-connect]");
    if (!waits) lastAt = Date.now();
    else if (Date.now() - lastAt > SILENT) lost(true);
  }, 250);

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
    hear();
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
  document.addEventListener("htmx:sseOpen", hear);

  function away() {
    why = "";
    lost(true);
  }
  document.addEventListener("htmx:sseError", away);

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    const search = document.querySelector("form[role=search] input");
    if (event.key !== "/" || typing || !search || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    search.focus();
    search.select();
  });

  const polled = (event) => event.target.closest("[data-polled]");
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (polled(event) && (!live || document.hidden)) event.preventDefault();
  });
  document.addEventListener("htmx:sendError", (event) => polled(event) && away());
  document.addEventListener("htmx:responseError", (event) => {
    if (!polled(event)) return;
    const page = new DOMParser().parseFromString(event.detail.xhr.responseText, "text/html");
    const text = page.querySelector("h1")?.textContent ?? "";
    why = text.charAt(0).toUpperCase() + text.slice(1);
    lost(true);
  });
  // Before its answer takes the place of the element: after that, nothing polled has been answered.
  document.addEventListener("htmx:beforeOnLoad", (event) => polled(event) && event.detail.xhr.status < 400 && hear());
  // A form that is replaced once a request was carried out keeps the text that is being typed into it.
  const isText = (field) => field.tagName === "TEXTAREA" || ["text", "search"].includes(field.type);
  document.addEventListener("htmx:oobBeforeSwap", (event) => {
    const { target, fragment } = event.detail;
    for (const form of target.querySelectorAll("form")) {
      const action = CSS.escape(form.getAttribute("action") ?? "");
      for (const field of [...form.elements].filter(isText)) {
        const selector = `form[action="${action}"] [name="${CSS.escape(field.name)}"]`;
        const next = fragment.querySelector(selector);
        if (!next) continue;
        if (field.value !== field.defaultValue) next.value = field.value;
        if (field !== document.activeElement) continue;
        const { selectionStart, selectionEnd } = field;
        queueMicrotask(() => {
          next.focus({ preventScroll: true });
          next.setSelectionRange(selectionStart, selectionEnd);
        });
      }
    }
  });
  document.addEventListener("htmx:afterSettle", show);
  document.addEventListener("DOMContentLoaded", show);
  show();
})();
