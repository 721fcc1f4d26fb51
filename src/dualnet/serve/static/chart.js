// Line charts in SVG. The points are evenly spaced whatever the time between them.
import { clock, make } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, TOP, BOTTOM] = [360, 106, 54, 8, 88];

/** Draw lines {name, colour, values}, where a value may be missing. `times` belong to the points. */
export function draw(figure, lines, times, maximum) {
  figure.querySelector("svg")?.remove();
  figure.querySelector("ul")?.remove();
  const shown = lines.filter((line) => line.values.some(isPresent));
  figure.hidden = shown.length === 0;
  if (figure.hidden) return;
  const highest = maximum ?? roundUp(Math.max(...shown.flatMap((line) => line.values).filter(isPresent), 0.01));
  const x = (index) => LEFT + ((WIDTH - LEFT - 4) * index) / Math.max(1, times.length - 1);
  const y = (value) => BOTTOM - ((BOTTOM - TOP) * Math.min(value, highest)) / highest;
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  for (const value of [0, highest / 2, highest]) {
    chart.append(svg("path", { class: "grid", d: `M${LEFT} ${y(value)}H${WIDTH}` }));
    chart.append(svg("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, text(value)));
  }
  chart.append(svg("text", { x: LEFT, y: HEIGHT - 3 }, clock(times[0])));
  chart.append(svg("text", { x: WIDTH - 4, y: HEIGHT - 3, "text-anchor": "end" }, clock(times.at(-1))));
  for (const { colour, values } of shown) {
    const points = values.flatMap((value, index) => (isPresent(value) ? [`${x(index)} ${y(value)}`] : []));
    chart.append(svg("path", { class: "line", stroke: colour, d: `M${points.join("L")}h0.1` })); // so that a single point is visible
  }
  const latest = shown.map(({ name, values }) => `${name} ${text(values.findLast(isPresent))}`);
  chart.setAttribute("aria-label", `${figure.querySelector("figcaption").textContent}, now: ${latest.join(", ")}`);
  figure.append(chart, make("ul", { className: "legend" }, ...shown.map((line, index) => legendItem(line, latest[index]))));
}

function legendItem({ colour }, text) {
  const item = make("li", {}, text);
  item.style.setProperty("--colour", colour);
  return item;
}

function svg(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

const isPresent = (value) => value !== null && value !== undefined;
const text = (value) => `${value < 100 ? +value.toPrecision(2) : Math.round(value)}`;

/** The next 1, 2 or 5 times a power of ten. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => step * power >= value);
}
