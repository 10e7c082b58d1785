// The preset editor. Without this script, a preset can be read and published, but not edited.
const form = one("#field-form, #json-form");
const statusLine = one("#kept");  // absent in the list
const api = statusLine?.dataset.api;
const publish = one("#publish");
const SAVE_AFTER_MS = 2000;
const CHECK_AFTER_MS = 250;

const json = (value) => new Blob([JSON.stringify(value)], { type: "application/json" });
const showStatus = (text) => { if (statusLine.textContent !== text) statusLine.textContent = text; };

// --- the edited values: form fields, or one JSON text ------------------------------------------
const fieldsOf = (each) => Object.fromEntries([...new FormData(each)]
  .map(([name, value]) => [name, value.replace(/\r\n/g, "\n")]));
const isText = form?.id === "json-form";
const readValues = () => (form ? fieldsOf(form) : {});
let savedJson = JSON.stringify(readValues());
const isSaved = () => JSON.stringify(readValues()) === savedJson;

// --- problems, by line --------------------------------------------------------------------------
const problems = one("#problems");
const showProblems = (found) => {
  problems?.replaceChildren(...found.map(({ line, text }) => {
    const item = document.createElement("li");
    item.className = "hint bad";
    item.textContent = statusLine.dataset.line.replace("%line%", line).replace("%problem%", () => text);
    return item;
  }));
  const count = one("#problem-count");
  count.textContent = found.length;
  count.hidden = !found.length;
  document.dispatchEvent(new CustomEvent("problems", { detail: found }));
};
let checkNumber = 0;
const check = async () => {
  const number = ++checkNumber;
  const response = await send(form.dataset.check, json({ content: one("#json-text").value }));
  if (response.ok && number === checkNumber) showProblems((await response.json()).problems);
};

// --- drafts: saved every two seconds while typing -------------------------------------------------
let revision = Number(publish ? one("input[name=revision]", publish).value : 0);
let saving = Promise.resolve();
const saveNow = async () => {
  const now = readValues();
  if (isSaved()) return;
  const [method, body] = isText ? ["PUT", { content: now.content }] : ["PATCH", { fields: now }];
  try {
    const response = await send(`${api}/draft`, json({ ...body, revision }), { method });
    const answer = await response.json();
    if (!response.ok) { showStatus(answer.error); return; }
    savedJson = JSON.stringify(now);
    revision = answer.revision;
    for (const input of all("input[name=revision]")) input.value = revision;
    showProblems(answer.problems);
    showStatus(isSaved() ? statusLine.dataset.kept : statusLine.dataset.waiting);
    refresh();
  } catch (error) {
    showStatus(String(error));  // unreachable; the next key press tries again
  }
};
const save = () => { saving = saving.then(saveNow); return saving; };
let saveTimer = 0;
const saveSoon = () => { saveTimer ||= setTimeout(saveAtOnce, SAVE_AFTER_MS); };  // even while typing continues
const saveAtOnce = () => { clearTimeout(saveTimer); saveTimer = 0; return save(); };
let checkTimer = 0;
if (form) {
  form.addEventListener("input", () => {
    showStatus(statusLine.dataset.waiting);
    saveSoon();
    if (isText) { clearTimeout(checkTimer); checkTimer = setTimeout(check, CHECK_AFTER_MS); }
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); saveAtOnce(); });
  const saveFirst = async (event, goOn) => {
    if (isSaved()) return;
    event.preventDefault();
    await saveAtOnce();
    if (isSaved()) goOn();
  };
  for (const other of all("form.saved-first, #publish")) other.addEventListener("submit", (event) => saveFirst(event, () => other.submit()));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href*='tab=']");
    if (link) saveFirst(event, () => location.assign(link.href));
  });
  addEventListener("beforeunload", (event) => { if (!isSaved()) event.preventDefault(); });
}

// --- the text editor: loaded only where JSON is shown; if that fails, the text area stays ---------
const place = one("#code-editor");
const openEditor = async () => {
  const area = one("#json-text");
  const published = one("#published-text");
  const cm = await import(form.dataset.codemirror);
  const theme = cm.EditorView.theme({
    "&": { backgroundColor: "var(--sunk)", color: "var(--ink)", fontSize: "12.5px" },
    ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6", fontVariantLigatures: "none" },
    ".cm-content": { caretColor: "var(--ink)" },
    ".cm-cursor": { borderLeftColor: "var(--ink)" },
    ".cm-gutters": { backgroundColor: "var(--sunk)", color: "var(--dim)", borderRight: "1px solid var(--line)" },
    ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--hover)" },
    "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--soft)" },
    ".cm-panels, .cm-tooltip": { backgroundColor: "var(--panel)", color: "var(--ink)", border: "1px solid var(--line-strong)" },
    ".cm-deletedChunk .cm-chunkButtons": { position: "static", float: "right" },
    ".cm-deletedChunk .cm-chunkButtons button": { color: "var(--ink)", backgroundColor: "var(--panel)", border: "1px solid var(--line-strong)", padding: "3px 9px" },
    ".cm-changedLine": { backgroundColor: "var(--added-bg)" },
    ".cm-deletedChunk": { backgroundColor: "var(--removed-bg)" },
    ".cm-collapsedLines": { background: "var(--hover)", color: "var(--dim)" },
  });
  const makeRevertButton = (type, action) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "btn sm";
    button.textContent = form.dataset.takeBack;
    button.hidden = type === "accept";  // publishing accepts all changes
    button.addEventListener("mousedown", action);
    button.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") action(event); });
    return button;
  };
  const view = new cm.EditorView({
    doc: area.value,
    parent: place,
    extensions: [
      cm.EditorView.cspNonce.of(form.dataset.nonce),
      cm.basicSetup,
      cm.json(),
      cm.syntaxHighlighting(cm.classHighlighter),
      cm.lintGutter(),
      cm.EditorView.lineWrapping,
      cm.EditorView.contentAttributes.of({ "aria-label": area.getAttribute("aria-label") || one("label[for=json-text]").textContent }),
      theme,
      ...(published ? [cm.unifiedMergeView({ original: published.value, collapseUnchanged: {}, gutter: true, mergeControls: makeRevertButton }), cm.EditorState.phrases.of({ "$ unchanged lines": form.dataset.unchanged })] : []),
      cm.EditorView.updateListener.of((update) => {
        if (!update.docChanged) return;
        area.value = view.state.doc.toString();
        area.dispatchEvent(new Event("input", { bubbles: true }));
      }),
    ],
  });
  const mark = (found) => view.dispatch(cm.setDiagnostics(view.state, found.map(({ line, text }) => {
    const { from, to } = view.state.doc.line(Math.min(Math.max(line, 1), view.state.doc.lines));
    const begin = from + view.state.doc.sliceString(from, to).search(/\S|$/);
    return { from: begin, to, severity: "error", message: text };
  })));
  document.addEventListener("problems", (event) => mark(event.detail));
  place.hidden = false;
  area.hidden = true;
  const diff = one("#server-diff");
  if (diff) diff.hidden = true;
  check().catch(() => {});
};
if (place) openEditor().catch(() => { place.hidden = true; });

// --- what the server renders from the saved draft: header, tokens, prompt, active lore ------------
const preview = one("#preview");
const scene = one("#scene");
const tryText = one("#try-text");
const SHOWN = ["about", "tabs", "discard", "publish", "preview", "tried"];
let refreshed = 0;
const refresh = async () => {
  if (!preview) return;
  const number = ++refreshed;
  const query = new URLSearchParams(location.search);
  query.set("view", "preview");
  query.set("scene", scene.value);
  if (tryText) query.set("text", tryText.value);
  const response = await fetch(`${location.pathname}?${query}`).catch(() => null);  // null: unreachable
  const page = response?.ok && parseHtml(await response.text());
  if (!page || number !== refreshed) return;
  for (const id of SHOWN) if (one(`#${id}`)) morph(one(`#${id}`), one(`#${id}`, page));
  for (const place of all("[data-tokens]")) place.textContent = one(`[data-tokens="${place.dataset.tokens}"]`, page)?.textContent || "";
};
let refreshTimer = 0;
const refreshSoon = () => { clearTimeout(refreshTimer); refreshTimer = setTimeout(refresh, CHECK_AFTER_MS); };
if (preview) {
  one("#show-preview").hidden = true;
  scene.addEventListener("change", refresh);
  refresh();
}
if (tryText) {
  tryText.addEventListener("input", refreshSoon);
  tryText.form.addEventListener("submit", (event) => { event.preventDefault(); refresh(); });
  one("#try-button").hidden = true;
}

// --- asking both versions the same question ---------------------------------------------------------
const differ = one("#answers-differ");
const showAnswers = async (askForm) => {
  const place = one(".answer-place", askForm.closest("li, aside"));
  const button = one("button", askForm);
  if (askForm.id === "ask-form") one("input[name=scene]", askForm).value = scene.value;
  const fields = new URLSearchParams(new FormData(askForm));
  button.disabled = true;
  place.setAttribute("aria-busy", "true");
  try {
    if (form) { await saveAtOnce(); }
    const response = await send(askForm.action, fields);
    const html = await response.text();  // rendered on the server, where every text is escaped
    if (response.ok) place.innerHTML = html;
    else place.textContent = problemIn(html);
  } catch (error) {
    place.textContent = String(error);
  } finally {
    button.disabled = false;
    place.removeAttribute("aria-busy");
  }
  if (differ) differ.textContent = all(".answer-place [data-differ]").length;
};
for (const askForm of all("form.ask")) askForm.addEventListener("submit", (event) => { event.preventDefault(); showAnswers(askForm); });
const askAll = one("#ask-all");
if (askAll) {
  askAll.hidden = !all("form.ask").length;
  askAll.addEventListener("click", async () => {
    askAll.disabled = true;
    for (const askForm of all("form.ask")) await showAnswers(askForm);
    askAll.disabled = false;
  });
}

// --- numbers with a range also have a slider ------------------------------------------------------
for (const slider of all("input[type=range]")) {
  const number = document.getElementById(slider.dataset.of);
  slider.hidden = false;
  slider.addEventListener("input", () => { number.value = slider.value; number.dispatchEvent(new Event("input", { bubbles: true })); });
  number.addEventListener("input", () => { slider.value = number.value || slider.dataset.default; });
}

// --- the list of presets is filtered while typing ---------------------------------------------------
const wanted = one("#find");
wanted?.addEventListener("input", () => {
  for (const each of all("[data-find]")) each.hidden = !each.dataset.find.includes(wanted.value.trim().toLowerCase());
});
