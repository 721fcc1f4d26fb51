// Line charts, in SVG. Each point is a publication of the model, so that time in which nothing happened takes no room.
import { clock, make } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, TOP, BOTTOM] = [340, 106, 34, 8, 88];

/** Draw lines {name, colour, values}, with none where there is no value; `times` are those of the points. */
export function draw(figure, lines, times, top) {
  figure.querySelector("svg")?.remove();
  figure.querySelector("ul")?.remove();
  const known = lines.filter((line) => line.values.some(isThere));
  figure.hidden = known.length === 0;
  if (figure.hidden) return;
  const highest = top ?? rounded(Math.max(...known.flatMap((line) => line.values).filter(isThere), 0.01));
  const x = (index) => LEFT + ((WIDTH - LEFT - 4) * index) / Math.max(1, times.length - 1);
  const y = (value) => BOTTOM - ((BOTTOM - TOP) * Math.min(value, highest)) / highest;
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  for (const value of [0, highest / 2, highest]) {
    chart.append(svg("path", { class: "grid", d: `M${LEFT} ${y(value)}H${WIDTH}` }));
    chart.append(svg("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, text(value)));
  }
  chart.append(svg("text", { x: LEFT, y: HEIGHT - 3 }, clock(times[0])));
  chart.append(svg("text", { x: WIDTH - 4, y: HEIGHT - 3, "text-anchor": "end" }, clock(times.at(-1))));
  for (const { colour, values } of known) {
    const points = values.flatMap((value, index) => (isThere(value) ? [`${x(index)} ${y(value)}`] : []));
    chart.append(svg("path", { class: "line", stroke: colour, d: `M${points.join("L")}h0.1` })); // a single one is seen
  }
  const now = known.map(({ name, values }) => `${name} ${text(values.findLast(isThere))}`);
  chart.setAttribute("aria-label", `${figure.querySelector("figcaption").textContent}, now: ${now.join(", ")}`);
  figure.append(chart, make("ul", { className: "legend" }, ...known.map((line, index) => key(line, now[index]))));
}

function key({ colour }, text) {
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

const isThere = (value) => value !== null && value !== undefined;
const text = (value) => `${value < 100 ? +value.toPrecision(2) : Math.round(value)}`;

/** 1, 2 or 5 times a power of ten, at or above the value. */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => step * power >= value);
}
