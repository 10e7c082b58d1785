// Shared by all pages: helpers, changing a page in place, and the end of the session.
const one = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const parsed = (html) => new DOMParser().parseFromString(html, "text/html");  // runs no script
const problemIn = (html) => {
  const page = parsed(html);
  return (one("main [role=alert]", page) || one("main", page) || page.body).textContent.trim().replace(/\s+/g, " ");
};

// Make `old` like `fresh` and keep its nodes, so that presses, focus and selections survive.
const morph = (old, fresh) => {
  const isOther = old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName;
  if (isOther || (old.nodeName === "BUTTON" && old.getAttribute("value") !== fresh.getAttribute("value"))) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (fresh.data.startsWith(old.data)) old.appendData(fresh.data.slice(old.data.length));
    else old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !["tabindex", "open"].includes(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const wanted = [...fresh.childNodes];
  const known = [...old.childNodes];
  wanted.forEach((child, index) => { if (index < known.length) morph(known[index], child); else old.append(child); });
  known.slice(wanted.length).forEach((child) => child.remove());
};

// --- the session: its end is told, with a way back to the same page ------------------------------
localStorage.removeItem("next");
const ended = one("#ended");
const checkSession = async () => {
  if (!ended.hidden || document.hidden) return;
  const response = await fetch("/", { redirect: "manual" }).catch(() => null);  // null: it is away
  if (response?.status !== 401) return;
  one("a", ended).href = location.href;
  ended.hidden = false;
};
setInterval(checkSession, 15_000);
document.addEventListener("visibilitychange", checkSession);
