// Draw the charts of the home page with uPlot; a click or drag opens the answers from that time.
const { activity, by, names, texts, language } = JSON.parse(one("#chart-data").textContent);
const { since, step_seconds: step } = activity;
const times = activity.errors.map((_, at) => since + at * step);
const titles = activity.answers.map((_, at) => one(`[data-group="${at}"]`)?.textContent.trim());
if (activity.answers.length === 7) titles[6] = texts.others;
const colors = ["accent", "s-lore", "s-system", "s-stories", "s-history", "s-newest", "dim"];
const groups = (lists) => lists.map((values, at) => ({ label: titles[at], color: colors[at], values, group: names[at] }));
const CHARTS = {
  answers: () => [...groups(activity.answers), { label: texts.errors, color: "bad", values: activity.errors, isError: true }],
  first_words: () => [
    { label: texts.half, color: "accent", values: activity.first_words.map((each) => each?.[0]) },
    { label: texts.most, color: "s-lore", values: activity.first_words.map((each) => each?.[1]) },
  ],
  tokens: () => groups(activity.tokens),
  cost: () => groups(activity.cost),
  cached: () => [{ label: texts.cached, color: "accent", values: activity.cached }],
};
const LINE_CHARTS = ["first_words", "cached"];

// A custom property has no color until an element uses it.
const colorOf = (name) => {
  const probe = document.createElement("span");
  probe.className = name;
  probe.style.color = `var(--${name}, var(--c))`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
};
const timeOf = (seconds) => new Date(seconds * 1000).toISOString().slice(...(step < 86400 ? [5, 16] : [5, 10])).replace("T", " ");
const tickOf = (seconds) => (seconds % 86400 ? new Date(seconds * 1000).toISOString().slice(11, 16) : new Date(seconds * 1000).toISOString().slice(5, 10));
const compact = new Intl.NumberFormat(language, { notation: "compact", maximumSignificantDigits: 3 });

const openAnswers = (from, until, series) => {
  const query = new URLSearchParams({ since: from, until });
  if (series?.isError) query.set("state", "errors");
  else if (series?.group) query.set(by === "provider" ? "model" : by, by === "model" ? series.group.split("/").slice(1).join("/") : series.group);
  location.assign(`/answers?${query}`);
};

const draw = (place) => {
  const isLine = LINE_CHARTS.includes(place.dataset.chart);
  const series = CHARTS[place.dataset.chart]().filter(({ values, group }) => group !== undefined || values.some((value) => value));
  // Stacked bars: each is drawn with the height of its sum with the previous ones, highest first.
  const stacked = series.map(({ values }, at) => (isLine ? values
    : values.map((_, time) => series.slice(0, at + 1).reduce((sum, each) => sum + each.values[time], 0))));
  const order = series.map((_, at) => at).reverse();
  const axis = { stroke: colorOf("dim"), grid: { stroke: colorOf("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const bars = { paths: uPlot.paths.bars({ size: [0.7, 40] }), points: { show: false } };
  const chart = new uPlot({
    width: place.clientWidth,
    height: 190,
    ms: 1,
    padding: [6, 8, 0, 0],
    cursor: { drag: { x: true, y: false, setScale: false }, sync: { key: "home" }, focus: { prox: 1000 } },
    focus: { alpha: 1 },
    scales: { x: { time: false, range: [since - step / 2, since + (times.length - 0.5) * step] }, y: { range: (_, low, high) => [0, Math.max(high * 1.05, 1e-4)] } },
    axes: [
      { ...axis, size: 30, values: (_, splits) => splits.map(tickOf), incrs: [3600, 10800, 21600, 43200, 86400, 172800, 432000, 604800] },
      { ...axis, size: 52, values: (_, splits) => splits.map((each) => compact.format(each)) },
    ],
    series: [
      { label: texts.time, value: (_, each) => (each == null ? "–" : timeOf(each)) },
      ...order.map((at) => ({
        label: series[at].label,
        stroke: colorOf(series[at].color),
        fill: isLine ? undefined : colorOf(series[at].color),
        width: isLine ? 2 : 0,
        spanGaps: true,
        value: (_, __, ___, time) => (time == null ? "–" : compact.format(series[at].values[time] ?? 0)),
        ...(isLine ? { points: { size: 5 } } : bars),
      })),
    ],
    hooks: {
      setSelect: [(self) => {
        const { left, width } = self.select;
        if (width < 4) return;
        const [from, until] = [left, left + width].map((pixels) => Math.floor(self.posToVal(pixels, "x") + step / 2));
        openAnswers(from, until);
      }],
    },
  }, [times, ...order.map((at) => stacked[at])], place);
  let pressedAt = 0;
  chart.over.addEventListener("mousedown", (event) => { pressedAt = event.clientX; });
  chart.over.addEventListener("click", (event) => {
    if (Math.abs(event.clientX - pressedAt) > 3) return;
    const { idx, top } = chart.cursor;
    if (idx == null) return;
    const value = chart.posToVal(top, "y");  // the part of the bar that was clicked
    const at = isLine ? -1 : stacked.findIndex((values) => value <= values[idx]);
    openAnswers(times[idx], times[idx] + step, series[at]);
  });
  new ResizeObserver(() => chart.setSize({ width: place.clientWidth, height: 190 })).observe(place);
};

for (const place of all("[data-chart]")) {
  place.closest("section").hidden = false;
  draw(place);
}
