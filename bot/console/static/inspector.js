// The page of an answer: search its prompt, fold sections, copy texts.
const prompt = one(".prompt.foldable");
for (const button of all("[data-copy]")) {
  button.hidden = !one(button.dataset.copy);
  button.addEventListener("click", async () => {
    const range = document.createRange();
    range.selectNodeContents(one(button.dataset.copy));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    const text = one(button.dataset.copy).innerText;
    if (navigator.clipboard) await navigator.clipboard.writeText(text).catch(() => {});
    else document.execCommand("copy");  // without HTTPS
    getSelection().removeAllRanges();
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1500);
  });
}

// All matches are highlighted, even in folded sections; Enter and Shift-Enter move between them.
const find = one("#find");
const field = one("input", find);
let matches = [];
let at = -1;
const search = () => {
  const wanted = field.value.toLowerCase();
  matches = [];
  const walker = document.createTreeWalker(prompt, NodeFilter.SHOW_TEXT);
  while (wanted && walker.nextNode()) {
    const text = walker.currentNode.data.toLowerCase();
    for (let begin = text.indexOf(wanted); begin >= 0; begin = text.indexOf(wanted, begin + wanted.length)) {
      const range = new Range();
      range.setStart(walker.currentNode, begin);
      range.setEnd(walker.currentNode, begin + wanted.length);
      matches.push(range);
    }
  }
  CSS.highlights?.set("found", new Highlight(...matches));
  at = -1;
  goToMatch(1);
};
const goToMatch = (step) => {
  at = matches.length ? (at + step + matches.length) % matches.length : -1;
  one("span", find).textContent = field.value ? `${at + 1}/${matches.length}` : "";
  CSS.highlights?.set("current", new Highlight(...(matches[at] ? [matches[at]] : [])));
  const place = matches[at]?.startContainer.parentElement;
  if (place?.closest("details")) place.closest("details").open = true;
  place?.scrollIntoView({ block: "center" });
};
find.hidden = !prompt;
field.addEventListener("input", search);
find.addEventListener("submit", (event) => event.preventDefault());
field.addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  goToMatch(event.shiftKey ? -1 : 1);
});
prompt?.addEventListener("click", (event) => {  // with Alt, all sections fold or open
  const section = event.target.closest("summary")?.parentElement;
  if (section && event.altKey) for (const each of all("details", prompt)) if (each !== section) each.open = !section.open;
});
