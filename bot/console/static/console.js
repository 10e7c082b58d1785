// Shared by all pages: helpers, changing a page in place, and the end of the session.
const one = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const parsed = (html) => new DOMParser().parseFromString(html, "text/html");  // runs no script
const problemIn = (html) => {
  const page = parsed(html);
  return (one("main [role=alert]", page) || one("main", page) || page.body).textContent.trim().replace(/\s+/g, " ");
};
const csrf = one("input[name=csrf]")?.value;
const send = (address, body, more) => fetch(address, { method: "POST", headers: { "X-CSRF-Token": csrf }, body, ...more });

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
  wanted.forEach((child, index) => {
    const at = old.childNodes[index] || null;
    const known = child.id && [...old.children].find(({ id }) => id === child.id);  // what has an id moves
    if (known !== at && (!at || child.id || at.id)) old.insertBefore(known || child, at);
    if (old.childNodes[index] !== child) morph(old.childNodes[index], child);
  });
  [...old.childNodes].slice(wanted.length).forEach((child) => child.remove());
};

// --- parts that stay current: `data-refresh` is the number of seconds between two looks -----------
const refreshPart = async (place) => {
  if (document.hidden || !ended.hidden || !place.dataset.refresh) return;
  const response = await fetch(place.dataset.from || location.href).catch(() => null);  // null: it is away
  const fresh = response?.ok && parsed(await response.text()).getElementById(place.id);
  if (fresh) morph(place, fresh);
};

// --- keys of all pages: "/" searches, "j" and "k" go through a list, arrows to the page beside -----
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
for (const place of all("[data-refresh]")) setInterval(() => refreshPart(place), 1000 * place.dataset.refresh);
setInterval(checkSession, 15_000);
document.addEventListener("visibilitychange", checkSession);

// --- files: a drop anywhere on any page is an import ----------------------------------------------
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
  if (typeof saveAtOnce === "function" && form) await saveAtOnce();  // in the editor of presets
  drop.submit();
});
