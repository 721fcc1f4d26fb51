// Columns are sorted, lines hidden and read, experiments filtered. The page is complete without this script.
function valueOf(row, column) {
  const cell = row.cells[column];
  if (!cell.classList.contains("number")) return cell.textContent;
  return "value" in cell.dataset ? Number(cell.dataset.value) : null; // a dash is not a number
}

function sort(table, column, direction) {
  const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, column), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // dashes last
    return direction * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = head.classList.contains("number") ? "descending" : "ascending";
      const second = first === "ascending" ? "descending" : "ascending";
      const order = head.ariaSort === first ? second : first;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.ariaSort = order;
      sort(table, column, order === "ascending" ? 1 : -1);
    });
  });
}

// A click on an entry of a legend hides its line in all plots of the card or section, with band and error bars.
const around = (element) => element.closest("figure:has(.legend)") ?? element.closest("details");
for (const entry of document.querySelectorAll(".legend [data-line]")) {
  const { line } = entry.dataset;
  const parts = around(entry).querySelectorAll(`svg [data-line="${line}"], svg [data-spread="${line}"]`);
  if (!parts.length) continue;
  entry.role = "button";
  entry.tabIndex = 0;
  entry.ariaPressed = "true";
  const toggle = () => {
    entry.ariaPressed = String(entry.ariaPressed === "false");
    for (const part of parts) part.toggleAttribute("hidden", entry.ariaPressed === "false");
  };
  entry.addEventListener("click", toggle);
  entry.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    toggle();
  });
}

// The pointer names the value of the nearest point of a plot.
const REACH = 30; // pixels
const tip = document.createElement("output");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);

function pointsOf(line) {
  const path = [...line.children].find((child) => child.tagName === "path");
  const corners = path ? [...path.getAttribute("d").matchAll(/[ML] (\S+) (\S+)/g)].map(([, x, y]) => [+x, +y]) : [];
  const markers = [...line.querySelectorAll("use")].map((use) => [+use.getAttribute("x"), +use.getAttribute("y")]);
  return corners.length ? corners : markers;
}

for (const plot of document.querySelectorAll("svg.plot")) {
  const lines = [...plot.querySelectorAll("[data-line]")];
  if (!lines.length) continue;
  const [bottom, low, top, high] = plot.dataset.scale.split(" ").map(Number);
  const points = lines.flatMap((line) => pointsOf(line).map(([x, y]) => ({ line, x, y })));
  const show = (event) => {
    const matrix = plot.getScreenCTM();
    const place = ({ x, y }) => [matrix.a * x + matrix.e, matrix.d * y + matrix.f];
    const distance = (point) => Math.hypot(place(point)[0] - event.clientX, place(point)[1] - event.clientY);
    const shown = points.filter(({ line }) => !line.hasAttribute("hidden"));
    const near = shown.sort((a, b) => distance(a) - distance(b))[0];
    tip.hidden = !near || distance(near) > REACH;
    if (tip.hidden) return;
    const entry = around(plot).querySelector(`.legend [data-line="${near.line.dataset.line}"]`);
    const value = low + ((near.y - bottom) / (top - bottom)) * (high - low);
    tip.textContent = [entry?.textContent.trim(), value.toPrecision(4)].filter(Boolean).join(": ");
    const [x, y] = place(near);
    tip.style.left = `${x + scrollX}px`;
    tip.style.top = `${y + scrollY}px`;
  };
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show); // of a finger
  plot.addEventListener("pointerleave", () => { tip.hidden = true; });
}

// A link of the contents opens its section.
function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (!target) return;
  target.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => setTimeout(openTarget));
openTarget();

// The filter keeps the lines of tables that contain the text, and opens the sections that have any.
const filter = document.querySelector("nav input");
if (filter) {
  filter.parentElement.hidden = false;
  const sections = [...document.querySelectorAll("main > details")];
  const wasOpen = sections.map((section) => section.open);
  filter.addEventListener("input", () => {
    const words = filter.value.trim().toLowerCase();
    sections.forEach((section, number) => {
      const whole = section.querySelector("summary").textContent.toLowerCase().includes(words);
      const rows = [...section.querySelectorAll("tbody tr")];
      for (const row of rows) row.hidden = !whole && !row.textContent.toLowerCase().includes(words);
      section.hidden = !whole && rows.every((row) => row.hidden);
      section.open = words ? !section.hidden : wasOpen[number];
    });
  });
}
