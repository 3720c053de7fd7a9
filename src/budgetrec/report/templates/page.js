// Tables sort by the key of each cell; numbers before what has none.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const numeric = head.classList.contains("number");
    const key = (row) => {
      const cell = row.cells[place];
      return numeric ? parseFloat(cell.dataset.key ?? "NaN") : cell.dataset.key ?? cell.textContent;
    };
    const compare = (a, b) => {
      if (!numeric) return a.localeCompare(b, undefined, { numeric: true });
      return Number.isNaN(a) || Number.isNaN(b) ? 0 : a - b;
    };
    const empty = (value) => (numeric ? Number.isNaN(value) : value === "") ? 1 : 0;
    const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
    rows.sort(([a], [b]) => empty(a) - empty(b) || (down ? -1 : 1) * compare(a, b));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }));
}

// Charts: drawn once, and again when their axis is switched. Colours are CSS variables, so themes need nothing.
const held = document.getElementById("charts");
const charts = held ? JSON.parse(held.textContent) : [];
const views = [];
let axis = null;
const font = getComputedStyle(document.body).fontFamily;
const config = {
  background: null, font, view: { stroke: null },
  axis: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500, domain: false, ticks: false, labelPadding: 6, titlePadding: 8, gridDash: [] },
  legend: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500 },
  header: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500 },
  axisX: { grid: false, domain: true, ticks: true, tickSize: 4 },
};

function withAxis(spec) {
  const copy = structuredClone(spec);
  if (axis) for (const layer of copy.layer ?? []) Object.assign(layer.encoding.x, axis);
  return copy;
}

function shown() {
  const buttons = [...document.querySelectorAll("[data-curve]")];
  return buttons.filter((each) => each.getAttribute("aria-pressed") === "true").map((each) => each.dataset.curve);
}

async function draw(place) {
  const box = document.querySelector(`[data-chart="${place}"]`);
  const { spec, fluid } = charts[place];
  try {
    const result = await vegaEmbed(box, fluid ? withAxis(spec) : spec, { renderer: "svg", actions: false, config });
    views[place]?.finalize();
    views[place] = result;
    if (fluid) await result.view.signal("shown", shown()).runAsync();
  } catch (error) {
    console.error(error);
    box.textContent = `This chart cannot be drawn: ${error.message}`;
  }
}

function press(button, pressed) {
  button.setAttribute("aria-pressed", String(pressed));
}

for (const button of document.querySelectorAll("[data-axis]")) {
  button.addEventListener("click", async () => {
    for (const other of document.querySelectorAll("[data-axis]")) press(other, other === button);
    axis = { field: button.dataset.axis, title: button.dataset.title };
    for (const place of charts.keys()) if (charts[place].fluid) await draw(place);
  });
}

for (const button of document.querySelectorAll("[data-curve]")) {
  button.addEventListener("click", () => {
    press(button, button.getAttribute("aria-pressed") !== "true");
    for (const place of charts.keys()) if (charts[place].fluid) views[place]?.view.signal("shown", shown()).runAsync();
  });
}

// Paper shows what the screen folds.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const each of folded) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of folded) each.open = false;
});

for (const place of charts.keys()) await draw(place);
document.documentElement.dataset.drawn = String(charts.length);
