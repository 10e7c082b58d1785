// The editor of presets. Without it, drafts are kept by the button, and problems told then.
const one = (selector, root = document) => root.querySelector(selector);
const form = one("#json-form");
const csrf = one("input[name=csrf]").value;
const SAVE_AFTER = 2000;
const CHECK_AFTER = 250;

const send = (method, address, body) => fetch(address, {
  method,
  body: JSON.stringify(body),
  headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
});

// --- drafts: kept some seconds after the last key ---------------------------------------------
const kept = one("#kept");
const publish = one("#publish");
let revision = Number(one("#publish input[name=revision]").value);
let isSaving = null;
let waiting = 0;
const setRevision = (number) => {
  revision = number;
  for (const input of document.querySelectorAll("input[name=revision]")) input.value = number;
  one("button", publish).disabled = number === 0;
};
const tell = (text) => { if (kept.textContent !== text) kept.textContent = text; };

if (form) {
  const area = one("#content");
  const problems = one("#problems");
  let keptText = area.value;

  const showProblems = (found) => {
    problems.replaceChildren(...found.map(({ line, text }) => {
      const item = document.createElement("li");
      item.className = "hint bad";
      item.textContent = form.dataset.line.replace("%line%", line).replace("%problem%", () => text);
      item.dataset.at = line;
      return item;
    }));
    const count = one("#problem-count");
    if (count) { count.textContent = found.length; count.hidden = !found.length; }
  };
  const save = async () => {
    if (isSaving) await isSaving;
    const text = area.value;
    if (text === keptText) return;
    isSaving = send("PUT", form.dataset.api, { content: text, revision });
    try {
      const response = await isSaving;
      const answer = await response.json();
      if (response.ok) {
        keptText = text;
        setRevision(answer.revision);
        showProblems(answer.problems);
        tell(form.dataset.kept);
      } else tell(answer.error);
    } catch (error) {
      tell(String(error));  // the service is away; the next key tries again
    } finally {
      isSaving = null;
    }
  };
  let checking = 0;
  let asked = 0;
  const check = async () => {
    const number = ++asked;
    const response = await send("POST", form.dataset.check, { content: area.value });
    if (response.ok && number === asked) showProblems((await response.json()).problems);
  };
  area.addEventListener("input", () => {
    tell(form.dataset.waiting);
    clearTimeout(waiting);
    waiting = setTimeout(save, SAVE_AFTER);
    clearTimeout(checking);
    checking = setTimeout(check, CHECK_AFTER);
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(waiting); save(); });
  publish.addEventListener("submit", async (event) => {
    if (area.value === keptText) return;
    event.preventDefault();
    clearTimeout(waiting);
    await save();
    if (area.value === keptText) publish.submit();
  });
  addEventListener("beforeunload", (event) => { if (area.value !== keptText) event.preventDefault(); });
}
