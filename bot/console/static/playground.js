// The playground. Without this script, every form reloads the page.
const play = one(".play");
const log = one("#log");
const composer = one("#composer");
const say = one("#say");
const replyTo = one("input[name=reply_to]", composer);
const mode = one("#mode");

const newKey = () => [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

// --- sending: forms that do not reload the page ---------------------------------------------
const problem = one("#problem");
const showProblem = (text) => { problem.textContent = text; problem.hidden = !text; };
const author = () => one("input[name=author]:checked")?.value || "";
let isSending = false;
let isFollowing = false;

const submit = async (form, fields) => {
  try {
    const keepalive = !fields.has("text");  // a deletion is sent even while the page closes
    const response = await send(form.getAttribute("action"), new URLSearchParams(fields), { redirect: "manual", keepalive });
    if (response.status === 401) checkSession();
    const isDone = response.type === "opaqueredirect" || response.ok;
    showProblem(isDone ? "" : problemIn(await response.text()));
    return isDone;
  } catch {
    showProblem(composer.dataset.away);  // the same key is sent again
    return false;
  }
};
document.addEventListener("submit", async (event) => {
  const form = event.target;
  const isPress = form.hasAttribute("data-press");
  if (!isPress && !form.hasAttribute("data-live")) return;
  event.preventDefault();
  const fields = new FormData(form);
  if (isPress) {
    if (event.submitter?.name === "data") fields.set("data", event.submitter.value);
    fields.set("author", author());
    fields.set("key", newKey());
  }
  if (form !== composer) {
    if (event.submitter?.hasAttribute("data-delete")) deleteLater(form, fields);
    else submit(form, fields);
    return;
  }
  if (isSending) return;
  isSending = true;
  if (await submit(form, fields)) {
    const wasEdit = isEditing();
    leaveMode();
    if (!wasEdit) { say.value = ""; isFollowing = true; scrollToEnd(); }
    one("input[name=key]", form).value = newKey();
    resize();
    preview();
    say.focus();
  }
  isSending = false;
});

// --- replying and editing in place; the unsent text comes back afterwards ---------------------
let draft = null;
const isEditing = () => composer.getAttribute("action") !== composer.dataset.say;
const enterMode = (text, { reply = "", edit = "" }) => {
  if (isEditing()) leaveMode();
  one("span", mode).textContent = text;
  mode.hidden = false;
  replyTo.value = reply;
  if (edit) {
    draft = say.value;
    composer.setAttribute("action", `${composer.dataset.say}/${edit}/edit`);
    say.value = one(".text", document.getElementById(`m-${edit}`)).textContent;
  }
  resize();
  preview();
  say.focus();
  say.setSelectionRange(say.value.length, say.value.length);
};
const leaveMode = () => {
  if (isEditing()) say.value = draft || "";
  draft = null;
  composer.setAttribute("action", composer.dataset.say);
  replyTo.value = "";
  mode.hidden = true;
  resize();
  preview();
};
const nameIn = (message) => one(".who b", message).textContent;
document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-reply], [data-edit], #mode a");
  if (!link) return;
  event.preventDefault();
  const message = link.closest(".msg");
  if (!message) {
    leaveMode();
    say.focus();
  } else if (link.dataset.reply) enterMode(`↱ ${nameIn(message)}: ${one(".text", message).textContent.slice(0, 80)}`, { reply: link.dataset.reply });
  else enterMode(mode.dataset.edit.replace("%name%", () => nameIn(message)), { edit: link.dataset.edit });
});

// --- deleting: can be undone for some seconds before it is sent ----------------------------------
const toast = one("#toast");
let deletion = null;
const deleteLater = (form, fields) => {
  finishDeletion();
  const message = form.closest(".msg");
  message.hidden = true;
  deletion = { id: message.id, form, fields, timer: setTimeout(finishDeletion, 6000) };
  one("span", toast).textContent = composer.dataset.deleted;
  toast.hidden = false;
};
const finishDeletion = async () => {
  if (!deletion) return;
  const { id, form, fields } = undelete();
  const message = document.getElementById(id);
  if (message) message.hidden = true;
  if (!await submit(form, fields) && message) message.hidden = false;
};
const undelete = () => {
  const undone = deletion;
  clearTimeout(undone.timer);
  deletion = null;
  toast.hidden = true;
  const message = document.getElementById(undone.id);
  if (message) message.hidden = false;
  return undone;
};
one("button", toast).addEventListener("click", () => undelete());
addEventListener("pagehide", finishDeletion);

// --- shown messages: each event changes one --------------------------------------------------
const isAtEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 80;
const fresh = one("#fresh");
let unseen = 0;
const scrollToEnd = () => { log.scrollTop = log.scrollHeight; unseen = 0; fresh.hidden = true; };
const show = ({ id, position, html, about }) => {
  const wasAtEnd = isAtEnd() || isFollowing;
  const old = document.getElementById(`m-${id}`);
  const holder = document.createElement("template");
  holder.innerHTML = html;  // rendered on the server, where every text is escaped
  const changed = holder.content.firstElementChild;
  if (!changed) {
    if (old && old === current) setCurrent(old.previousElementSibling);
    old?.remove();
  } else if (old) morph(old, changed);
  else {
    const next = [...log.children].find((other) => Number(other.dataset.position) > position);
    log.insertBefore(changed, next || null);
    if (!wasAtEnd) { unseen += 1; fresh.textContent = `↓ ${composer.dataset.new.replace("%count%", unseen)}`; fresh.hidden = false; }
    if (!next && (!current || current === changed.previousElementSibling) && !log.contains(document.activeElement)) setCurrent(changed);
    isFollowing = false;
  }
  const shown = document.getElementById(`m-${id}`);
  if (shown) {
    if (deletion?.id === shown.id) shown.hidden = true;
    setReachable(shown, shown === current);
    if (!shown.hasAttribute("aria-busy")) speak(shown);
  }
  if (about && one("#about").innerHTML !== about) one("#about").innerHTML = about;
  if (wasAtEnd) scrollToEnd();
};
const speak = (message) => {  // for screen readers, finished messages only
  const name = one(".who b", message)?.textContent || "";
  one("#spoken").textContent = `${name} ${(one(".text", message) || message).textContent}`.trim();
};
fresh.addEventListener("click", scrollToEnd);
log.addEventListener("scroll", () => {
  if (isAtEnd()) { unseen = 0; fresh.hidden = true; }
  if (log.scrollTop < 200) loadOlder();
});
let isLoading = false;
const loadOlder = async () => {
  const link = one("[data-older]", log);
  if (!link || isLoading) return;
  isLoading = true;
  const response = await fetch(link.href).catch(() => null);
  const older = response?.ok ? all("#log > li:not(.empty)", parseHtml(await response.text())) : [];
  const below = log.scrollHeight - log.scrollTop;
  if (older.length) link.parentElement.replaceWith(...older);
  for (const message of older) setReachable(message, false);
  log.scrollTop = log.scrollHeight - below;
  isLoading = false;
};
log.addEventListener("click", (event) => {
  if (!event.target.closest("[data-older]")) return;
  event.preventDefault();
  loadOlder();
});
const events = new EventSource(play.dataset.events);
let lastTimer = 0;
events.onmessage = (event) => {
  show(JSON.parse(event.data));
  clearTimeout(lastTimer);
  if (!inspected) lastTimer = setTimeout(loadLast, 500);
};
events.onerror = () => { if (events.readyState === EventSource.CLOSED) checkSession(); };

// --- keyboard: the conversation is one tab stop, and arrow keys move between messages ------------
let current = null;
const setReachable = (message, isCurrent) => {
  message.tabIndex = isCurrent ? 0 : -1;
  for (const each of all("a, button, select, summary, .spoiler", message)) each.tabIndex = isCurrent ? 0 : -1;
};
const setCurrent = (message) => {
  if (current?.isConnected) setReachable(current, false);
  current = message;
  if (message) setReachable(message, true);
};
for (const message of log.children) setReachable(message, false);
setCurrent(log.lastElementChild);
const turnVersion = (message, step) => {
  const button = message && all(".versions button", message).find((each) => each.textContent === (step < 0 ? "‹" : "›"));
  button?.click();
  return Boolean(button);
};
log.addEventListener("focusin", (event) => { const message = event.target.closest("#log > li"); if (message !== current) setCurrent(message); });
log.addEventListener("keydown", (event) => {
  const shown = [...log.children].filter((each) => each.offsetParent);
  const at = shown.indexOf(current);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1 }[event.key];
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step && turnVersion(current, step)) event.preventDefault();
  if (to === undefined || event.target.matches("select")) return;
  event.preventDefault();
  setCurrent(shown[Math.min(Math.max(to, 0), shown.length - 1)]);
  current.focus();
});

// --- the next prompt, updated while typing ----------------------------------------------------
let timer = 0;
let askedNumber = 0;
const preview = () => { clearTimeout(timer); timer = setTimeout(showNextPrompt, 150); };
const showNextPrompt = async () => {
  const number = ++askedNumber;
  const fields = { author: author(), text: say.value, reply_to: replyTo.value };
  if (!fields.author || isEditing()) return;
  try {
    const response = await send(play.dataset.next, new URLSearchParams(fields));
    if (!response.ok || number !== askedNumber) return;
    const page = document.createElement("template");
    page.innerHTML = await response.text();
    for (const part of ["next", "who"]) one(`#pane-${part}`).replaceChildren(...one(`[data-part=${part}]`, page.content).childNodes);
  } catch { /* unreachable; the next key press tries again */ }
};
let inspected = 0;  // the number of the answer shown at the side; 0: the newest
const loadLast = async () => {
  const pane = one("#pane-last");
  const number = inspected || all("[data-answer]", log).pop()?.dataset.answer;
  if (pane.hidden || !number) return;
  const response = await fetch(`/answers/${number}`).catch(() => null);
  if (response?.ok) pane.replaceChildren(...all("[data-beside]", parseHtml(await response.text())));
};
play.addEventListener("click", (event) => {  // with Ctrl or the middle button, the page of the answer opens
  const link = event.target.closest("[data-answer]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  inspected = Number(link.dataset.answer);
  for (const each of all("[data-answer]", log)) each.toggleAttribute("aria-current", each.dataset.answer === link.dataset.answer);
  if (!link.closest("#log")) { loadLast(); return; }
  if (one("#tab-last").offsetParent) openTab(one("#tab-last"));
  else one("[data-view-to=last]").click();
});

// --- the composer: Enter sends, "/" opens the commands, "@" the names ---------------------------
const commands = JSON.parse(one("#commands").textContent);
const slash = one("#slash");
const list = one("#slash-list");
let chosen = 0;
let options = [];
const resize = () => { say.rows = Math.min(8, say.value.split("\n").length); };
const matching = (values, typed) => values.filter((value) => value.toLowerCase().startsWith(typed.toLowerCase()) && value !== typed);
const suggestions = () => {
  const typed = say.value;
  const before = typed.slice(0, say.selectionEnd);
  const name = /(?:^|\s)@([^\s@]*)$/u.exec(before);
  if (name) {
    const names = JSON.parse(one("#about [data-names]").dataset.names);
    const begin = before.slice(0, before.length - name[1].length);
    return matching(names, name[1]).map((value) => ({ text: `${begin}${value} ${typed.slice(before.length)}`, shown: `@${value}`, detail: "", summary: "", caret: begin.length + value.length + 1 }));
  }
  if (!typed.startsWith("/") || typed.includes("\n")) return [];
  const found = commands.filter((each) => each.text.startsWith(typed) && each.text !== typed)
    .map((each) => ({ text: each.text + (each.options.length ? " " : ""), shown: each.text, detail: each.options.join(" "), summary: each.summary }));
  for (const each of commands) {
    if (typed.startsWith(`${each.text} `)) found.push(...matching(each.values, typed.slice(each.text.length + 1))
      .map((value) => ({ text: `${each.text} ${value}`, shown: `${each.text} ${value}`, detail: "", summary: "" })));
  }
  return found;
};
const closeSuggestions = () => { slash.hidden = true; say.setAttribute("aria-expanded", "false"); say.removeAttribute("aria-activedescendant"); };
const suggest = () => {
  options = suggestions();
  chosen = 0;
  if (!options.length) { closeSuggestions(); return; }
  list.replaceChildren(...options.map((option, index) => {
    const item = document.createElement("li");
    item.id = `slash-${index}`;
    item.setAttribute("role", "option");
    for (const [tag, text] of [["code", `${option.shown} ${option.detail}`.trim()], ["span", option.summary]]) {
      const part = document.createElement(tag);
      part.textContent = text;
      item.append(part);
    }
    item.addEventListener("mousedown", (event) => { event.preventDefault(); takeSuggestion(index); });
    return item;
  }));
  slash.hidden = false;
  say.setAttribute("aria-expanded", "true");
  markChosen();
};
const markChosen = () => {
  all("li", list).forEach((item, index) => item.setAttribute("aria-selected", String(index === chosen)));
  say.setAttribute("aria-activedescendant", `slash-${chosen}`);
  list.children[chosen].scrollIntoView({ block: "nearest" });
};
const takeSuggestion = (index) => {
  const { text, caret } = options[index];
  say.value = text;
  if (caret) say.setSelectionRange(caret, caret);
  suggest();
  preview();
};
const handleEscape = () => {
  const stop = all("[data-stop]", log).pop();
  if (!slash.hidden) closeSuggestions();
  else if (!mode.hidden) leaveMode();
  else if (stop) stop.click();
  else return false;
  return true;
};
say.addEventListener("input", () => { resize(); suggest(); preview(); });
say.addEventListener("blur", closeSuggestions);
say.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const turn = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!slash.hidden && step) { chosen = (chosen + step + options.length) % options.length; markChosen(); event.preventDefault(); return; }
  if (!slash.hidden && event.key === "Tab" && !event.shiftKey) { takeSuggestion(chosen); event.preventDefault(); return; }
  if (!say.value && event.key === "ArrowUp") { event.preventDefault(); all("[data-edit]", log).pop()?.click(); return; }
  if (!say.value && turn) { turnVersion(all("#log > .ours").pop(), turn); return; }
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    closeSuggestions();
    if (say.value.trim()) composer.requestSubmit();
  }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !event.isComposing && handleEscape()) event.preventDefault(); });
all("input[name=author]").forEach((each) => each.addEventListener("change", preview));
const draftKey = `say:${composer.dataset.say}`;  // unsent text survives leaving the page
addEventListener("pagehide", () => { sessionStorage[draftKey] = isEditing() ? draft || "" : say.value; });
if (!say.value) say.value = sessionStorage[draftKey] || "";

// --- tabs by the ARIA pattern; on a phone one part of the page at a time -----------------------
const tabs = all("[role=tab]");
const openTab = (tab) => {
  for (const each of tabs) {
    const isOpen = each === tab;
    each.setAttribute("aria-selected", String(isOpen));
    each.tabIndex = isOpen ? 0 : -1;
    document.getElementById(each.getAttribute("aria-controls")).hidden = !isOpen;
  }
  loadLast();
};
tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => openTab(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(index + step + tabs.length) % tabs.length];
    openTab(next);
    next.focus();
  });
});
all("[data-view-to]").forEach((button) => button.addEventListener("click", () => {
  for (const each of all("[data-view-to]")) each.setAttribute("aria-pressed", String(each === button));
  play.dataset.view = button.dataset.viewTo;
  if (button.dataset.viewTo !== "log") openTab(one(`#tab-${button.dataset.viewTo}`));
}));

scrollToEnd();
resize();
preview();
