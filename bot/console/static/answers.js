// The list of answers: filters apply immediately, and searches are saved in this browser.
const filters = one("#filters");
for (const each of all("select, [type=checkbox], [type=datetime-local]", filters)) each.addEventListener("change", () => filters.requestSubmit());
filters.addEventListener("submit", () => { for (const each of filters.elements) each.disabled ||= !each.value; });  // keep the URL short
addEventListener("pageshow", () => { for (const each of filters.elements) each.disabled = false; });

const saved = one("#saved");
const searches = () => JSON.parse(localStorage.searches || "{}");
const saveSearch = (name, query) => {
  localStorage.searches = JSON.stringify({ ...searches(), [name]: query });
  showSaved();
};
const showSaved = () => {
  for (const each of all(".chip", saved)) each.remove();
  for (const [name, query] of Object.entries(searches())) {
    const chip = document.createElement("span");
    const link = document.createElement("a");
    const remove = document.createElement("button");
    chip.className = "chip";
    link.href = `/answers${query}`;
    link.textContent = name;
    if (query === location.search) link.setAttribute("aria-current", "true");
    remove.type = "button";
    remove.textContent = "×";
    remove.setAttribute("aria-label", saved.dataset.remove.replace("%name%", () => name));
    remove.addEventListener("click", () => saveSearch(name, undefined));
    chip.append(link, remove);
    saved.prepend(chip);
  }
};
one(".btn", saved).addEventListener("click", () => {
  const name = prompt(saved.dataset.name)?.trim();
  if (name) saveSearch(name, location.search);
});
saved.hidden = false;
showSaved();
