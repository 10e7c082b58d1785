// The playground. Without it, every form works by loading the page again.
const one = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const play = one(".play");
const log = one("#log");
const composer = one("#composer");
const say = one("#say");
const csrf = one("input[name=csrf]", composer).value;

const newKey = () => [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const send = (address, fields) => fetch(address, {
  method: "POST",
  body: new URLSearchParams(fields),
  headers: { "X-CSRF-Token": csrf },
  redirect: "manual",
});

// --- what is said: forms that do not load the page again ------------------------------------
const problem = one("#problem");
const tell = (text) => { problem.textContent = text; problem.hidden = !text; };
const failed = async (response) => {
  if (response.type === "opaqueredirect" || response.ok) return "";
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  return (one("main", page) || page.body).textContent.trim().replace(/\s+/g, " ");
};
const author = () => one("input[name=author]:checked")?.value || "";
let isSending = false;

document.addEventListener("submit", async (event) => {
  const form = event.target;
  const isPress = form.hasAttribute("data-press");
  if (!isPress && !form.hasAttribute("data-live")) return;
  event.preventDefault();
  if (form === composer && isSending) return;
  const fields = new FormData(form);
  if (isPress) { if (event.submitter.name === "data") fields.set("data", event.submitter.value); fields.set("author", author()); fields.set("key", newKey()); }
  isSending = form === composer;
  try {
    const text = await failed(await send(form.action, fields));
    tell(text);
    if (form === composer && !text) {
      say.value = "";
      one("input[name=key]", form).value = newKey();
      one("#replying")?.remove();
      resize();
      preview();
      say.focus();
    }
  } catch (error) {
    tell(String(error));  // the service is away; the same key is sent again
  } finally {
    isSending = false;
  }
});

// --- what is shown: each event replaces one message ------------------------------------------
const isAtEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 80;
const show = ({ id, position, html }) => {
  const wasAtEnd = isAtEnd();
  const old = document.getElementById(`m-${id}`);
  const holder = document.createElement("template");
  holder.innerHTML = html;  // rendered on the server, where every text is escaped
  const fresh = holder.content.firstElementChild;
  const hadFocus = old?.contains(document.activeElement) ? document.activeElement.textContent : null;
  if (!fresh) old?.remove();
  else if (old) old.replaceWith(fresh);
  else {
    const next = [...log.children].find((other) => Number(other.dataset.position) > position);
    log.insertBefore(fresh, next || null);
  }
  if (fresh && hadFocus !== null) (all("a, button", fresh).find((each) => each.textContent === hadFocus) || one("a, button", fresh))?.focus();
  if (fresh && !fresh.hasAttribute("aria-busy")) speak(fresh);
  if (wasAtEnd) log.scrollTop = log.scrollHeight;
};
const speak = (message) => {  // finished messages only, for those who listen
  const name = one(".who b", message)?.textContent || "";
  one("#spoken").textContent = `${name} ${(one(".text", message) || message).textContent}`.trim();
};
const events = new EventSource(play.dataset.events);
let lastTimer = 0;
events.onmessage = (event) => {
  show(JSON.parse(event.data));
  clearTimeout(lastTimer);
  lastTimer = setTimeout(loadLast, 500);
};

// --- the next prompt, as one writes -----------------------------------------------------------
let timer = 0;
let asked = 0;
const preview = () => { clearTimeout(timer); timer = setTimeout(ask, 150); };
const ask = async () => {
  const number = ++asked;
  const fields = { author: author(), text: say.value, reply_to: one("input[name=reply_to]")?.value || "" };
  if (!fields.author) return;
  try {
    const response = await send(play.dataset.next, fields);
    if (!response.ok || number !== asked) return;
    const page = document.createElement("template");
    page.innerHTML = await response.text();
    for (const part of ["next", "who"]) one(`#pane-${part}`).replaceChildren(...one(`[data-part=${part}]`, page.content).childNodes);
  } catch { /* the service is away; the next key asks again */ }
};
const loadLast = async () => {
  if (one("#pane-last").hidden) return;
  const response = await fetch(play.dataset.last);
  if (response.ok) one("#pane-last").innerHTML = await response.text();
};

// --- the composer: Enter sends, a slash opens the commands -------------------------------------
const commands = JSON.parse(one("#commands").textContent);
const slash = one("#slash");
const list = one("#slash-list");
let chosen = 0;
let options = [];
const resize = () => { say.rows = Math.min(8, say.value.split("\n").length); };
const suggestions = () => {
  const typed = say.value;
  if (!typed.startsWith("/") || typed.includes("\n")) return [];
  const found = commands.filter((each) => each.text.startsWith(typed) && each.text !== typed)
    .map((each) => ({ text: each.text + (each.options.length ? " " : ""), shown: each.text, detail: each.options.join(" "), summary: each.summary }));
  for (const each of commands) {
    const rest = typed.slice(each.text.length + 1);
    if (typed.startsWith(`${each.text} `)) found.push(...each.values
      .filter((value) => value.toLowerCase().startsWith(rest.toLowerCase()) && value !== rest)
      .map((value) => ({ text: `${each.text} ${value}`, shown: `${each.text} ${value}`, detail: "", summary: "" })));
  }
  return found.slice(0, 8);
};
const close = () => { slash.hidden = true; say.setAttribute("aria-expanded", "false"); say.removeAttribute("aria-activedescendant"); };
const suggest = () => {
  options = suggestions();
  chosen = 0;
  if (!options.length) { close(); return; }
  list.replaceChildren(...options.map((option, index) => {
    const item = document.createElement("li");
    item.id = `slash-${index}`;
    item.setAttribute("role", "option");
    for (const [tag, text] of [["code", `${option.shown} ${option.detail}`.trim()], ["span", option.summary]]) {
      const part = document.createElement(tag);
      part.textContent = text;
      item.append(part);
    }
    item.addEventListener("mousedown", (event) => { event.preventDefault(); take(index); });
    return item;
  }));
  slash.hidden = false;
  say.setAttribute("aria-expanded", "true");
  mark();
};
const mark = () => {
  all("li", list).forEach((item, index) => item.setAttribute("aria-selected", String(index === chosen)));
  say.setAttribute("aria-activedescendant", `slash-${chosen}`);
};
const take = (index) => { say.value = options[index].text; suggest(); preview(); };
say.addEventListener("input", () => { resize(); suggest(); preview(); });
say.addEventListener("keydown", (event) => {
  if (!slash.hidden) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { chosen = (chosen + step + options.length) % options.length; mark(); event.preventDefault(); return; }
    if (event.key === "Escape") { close(); event.preventDefault(); return; }
    if (event.key === "Tab") { take(chosen); event.preventDefault(); return; }
  }
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    close();
    if (say.value.trim()) composer.requestSubmit();
  }
});
all("input[name=author]").forEach((each) => each.addEventListener("change", preview));

// --- tabs by the ARIA pattern; on a phone one part of the page at a time -----------------------
const tabs = all("[role=tab]");
const open = (tab) => {
  for (const each of tabs) {
    const isOpen = each === tab;
    each.setAttribute("aria-selected", String(isOpen));
    each.tabIndex = isOpen ? 0 : -1;
    document.getElementById(each.getAttribute("aria-controls")).hidden = !isOpen;
  }
  loadLast();
};
tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => open(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(index + step + tabs.length) % tabs.length];
    open(next);
    next.focus();
  });
});
all("[data-view-to]").forEach((button) => button.addEventListener("click", () => {
  for (const each of all("[data-view-to]")) each.setAttribute("aria-pressed", String(each === button));
  play.dataset.view = button.dataset.viewTo;
  if (button.dataset.viewTo !== "log") open(one(`#tab-${button.dataset.viewTo}`));
}));

log.scrollTop = log.scrollHeight;
resize();
if (composer.hasAttribute("data-live")) preview();
