// Shared by all pages: helpers, updating a page in place, keys, session checks, and dropped files.
const one = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const parseHtml = (html) => new DOMParser().parseFromString(html, "text/html");  // runs no script
const problemIn = (html) => {
  const page = parseHtml(html);
  return (one("main [role=alert]", page) || one("main", page) || page.body).textContent.trim().replace(/\s+/g, " ");
};
const csrf = one("input[name=csrf]")?.value;
const send = (address, body, more) => fetch(address, { method: "POST", headers: { "X-CSRF-Token": csrf }, body, ...more });

// Make `old` like `fresh` but keep its nodes, so that presses, focus and selections survive.
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
  wanted.forEach((child, index) => {
    const at = old.childNodes[index] || null;
    const known = child.id && [...old.children].find(({ id }) => id === child.id);  // move elements with ids
    if (known !== at && (!at || child.id || at.id)) old.insertBefore(known || child, at);
    if (old.childNodes[index] !== child) morph(old.childNodes[index], child);
  });
  [...old.childNodes].slice(wanted.length).forEach((child) => child.remove());
};

// --- parts that stay current: `data-refresh` is the number of seconds between refreshes -----------
const refreshPart = async (place) => {
  if (document.hidden || !endedBanner.hidden || !place.dataset.refresh) return;
  const response = await fetch(place.dataset.from || location.href).catch(() => null);  // null: unreachable
  const fresh = response?.ok && parseHtml(await response.text()).getElementById(place.id);
  if (fresh) morph(place, fresh);
};

// --- keys on all pages: "/" searches, "j" and "k" move in a list, arrows open neighboring pages ----
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, [contenteditable], [role=tab], #log")) return;
  const rows = all("[data-row]").filter((each) => each.offsetParent);
  const at = rows.indexOf(document.activeElement);
  const target = { "/": one("[type=search]"), j: rows[at + 1], k: rows[Math.max(at - 1, 0)], "?": one("#keys") }[event.key];
  const link = { ArrowLeft: one("header [rel=prev]"), ArrowRight: one("header [rel=next]") }[event.key];
  if (target || link) event.preventDefault();
  if (target?.matches("dialog")) target.showModal();
  else target?.focus();
  link?.click();
});

// --- the session: when it ends, offer a login that leads back to this page -----------------------
localStorage.removeItem("next");
const endedBanner = one("#ended");
const checkSession = async () => {
  if (!endedBanner.hidden || document.hidden) return;
  const response = await fetch("/", { redirect: "manual" }).catch(() => null);  // null: unreachable
  if (response?.status !== 401) return;
  one("a", endedBanner).href = location.href;
  endedBanner.hidden = false;
};
for (const place of all("[data-refresh]")) setInterval(() => refreshPart(place), 1000 * place.dataset.refresh);
setInterval(checkSession, 15_000);
document.addEventListener("visibilitychange", checkSession);

// --- files: dropped anywhere on a page, they are imported -----------------------------------------
const drop = one("form[data-drop]");
const hasFile = (event) => drop && [...(event.dataTransfer?.types || [])].includes("Files");
addEventListener("dragover", (event) => {
  if (!hasFile(event)) return;
  event.preventDefault();
  document.body.classList.add("over");
});
addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("over"); });
addEventListener("drop", async (event) => {
  if (!hasFile(event)) return;
  event.preventDefault();
  document.body.classList.remove("over");
  one("input[type=file]", drop).files = event.dataTransfer.files;
  if (typeof saveAtOnce === "function" && form) await saveAtOnce();  // in the preset editor
  drop.submit();
});
