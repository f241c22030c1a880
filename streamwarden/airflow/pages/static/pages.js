// Theme, ages of times, links into Airflow, and polling. No page needs it to be read.
"use strict";
(() => {
  const root = document.documentElement;
  const outer = () => {
    try { return parent !== window && parent.document.documentElement ? parent.document : null; } catch { return null; }
  };
  // Airflow keeps its theme as a class of its document, and in the browser's storage.
  const setTheme = () => {
    const frame = outer();
    let chosen = null;
    try { chosen = localStorage.getItem("theme"); } catch { /* storage may be off */ }
    const dark = frame ? frame.documentElement.classList.contains("dark")
      : chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
    if (root.classList.contains("dark") !== dark) {
      root.classList.toggle("dark", dark);
      document.dispatchEvent(new Event("theme"));
    }
  };
  setTheme();
  const frame = outer();
  if (frame) new MutationObserver(setTheme).observe(frame.documentElement, { attributeFilter: ["class"] });
  addEventListener("storage", setTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", setTheme);

  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const age = (seconds) => {
    if (Math.abs(seconds) < 5) return "now";
    const [unit, size] = UNITS.find(([, one]) => Math.abs(seconds) >= one) || UNITS[3];
    const number = Math.floor(Math.abs(seconds) / size);
    return seconds > 0 ? `${number} ${unit} ago` : `in ${number} ${unit}`;
  };
  const showAges = () => {
    for (const one of document.querySelectorAll("time[data-ago]")) {
      if (!one.title) one.title = one.textContent;
      const text = age((Date.now() - Date.parse(one.dateTime)) / 1000);
      if (one.textContent !== text) one.textContent = text;
    }
  };

  // A frame may not load Airflow's pages over itself: the outer document follows the link.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-airflow]");
    const around = outer();
    if (!link || !around || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    const twin = around.createElement("a");
    twin.href = link.href;
    around.body.append(twin);
    twin.click();
    twin.remove();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy).textContent;
    navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Select the text and copy it"; });
  });

  let tag = null, failed = 0, at = Date.now();
  const say = (text, stale) => {
    const place = document.getElementById("fresh");
    place.classList.toggle("stale", stale);
    if (place.textContent !== text) place.textContent = text;
  };
  const swap = (text) => {
    const next = new DOMParser().parseFromString(text, "text/html");
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = next.getElementById(old.id);
      if (!fresh || old.textContent === fresh.textContent && old.innerHTML === fresh.innerHTML) continue;
      // A reader's place stays: what has the focus is not replaced.
      if (old.contains(document.activeElement) && document.activeElement !== document.body && old.id !== "chart-data") {
        const path = document.activeElement.getAttribute("href");
        old.innerHTML = fresh.innerHTML;
        const again = path && [...old.querySelectorAll("a")].find((one) => one.getAttribute("href") === path);
        if (again) again.focus();
      } else old.innerHTML = fresh.innerHTML;
    }
    showAges();
    document.dispatchEvent(new Event("fresh"));
  };
  const poll = async (every) => {
    if (document.visibilityState === "visible") {
      try {
        const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
        if (answer.status === 200) {
          tag = answer.headers.get("ETag");
          swap(await answer.text());
        } else if (answer.status !== 304) throw new Error(String(answer.status));
        failed = 0;
        at = Date.now();
        say("Live", false);
      } catch (error) {
        failed += 1;
        const why = /^\d+$/.test(error.message) ? `the server answered ${error.message}` : "the server does not answer";
        say(`Not current: ${why} since ${new Date(at).toLocaleTimeString()}`, true);
      }
    }
    // After failures slower: at most a minute.
    setTimeout(poll, Math.min(every * 2 ** failed, 60) * 1000, every);
  };
  document.addEventListener("DOMContentLoaded", () => {
    showAges();
    setInterval(showAges, 5000);
    const every = Number(document.body.dataset.poll);
    if (every) {
      say("Live", false);
      setTimeout(poll, every * 1000, every);
    }
  });
})();
