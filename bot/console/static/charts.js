// Draw the numbers of a page by day with uPlot.
const place = document.querySelector("[data-chart]");
const given = JSON.parse(document.getElementById("chart-data").textContent);

const labelOf = (seconds) => new Date(seconds * 1000).toISOString().slice(5, 10);
// A custom property is not resolved before something is drawn in it.
const colorOf = (name) => {
  const probe = document.createElement("span");
  probe.className = name;
  place.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
};

const draw = () => {
  const axis = { stroke: colorOf("c-dim"), grid: { stroke: colorOf("c-line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const shape = { paths: uPlot.paths.bars({ size: [0.6, 40] }), points: { show: false } };
  const chart = new uPlot(
    {
      width: place.clientWidth,
      height: 190,
      ms: 1,
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
      axes: [
        { ...axis, values: (_, splits) => splits.map(labelOf), incrs: [86400, 172800, 604800, 1209600, 2592000] },
        { ...axis, size: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7], values: (_, splits) => splits.map((one) => one.toLocaleString()) },
      ],
      series: [
        { label: given.title, value: (_, one) => (one == null ? "–" : labelOf(one)) },
        ...given.series.map(({ label, color }) => ({
          label,
          stroke: colorOf(color),
          fill: colorOf(color),
          width: 2,
          value: (_, one) => (one == null ? "–" : one.toLocaleString()),
          ...shape,
        })),
      ],
    },
    [given.times, ...given.series.map(({ values }) => values)],
    place,
  );
  new ResizeObserver(() => chart.setSize({ width: place.clientWidth, height: 190 })).observe(place);
};

place.closest("section").hidden = false;
draw();
