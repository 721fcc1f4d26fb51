// The prediction for a picture as bars: a click on one, or a name that is entered, teaches the picture as that class.
import { all, colourOf } from "./classes.js";
import { fromTemplate, make, percent } from "./dom.js";

const MAX_BARS = 6;
const NONE = "No prediction before two classes have learned images.";

export class Bars {
  /** `sorted`: the most probable class first; otherwise the bars keep the order of the classes, and only move. */
  constructor(picture, teach, sorted = true) {
    Object.assign(this, { teach, sorted, rows: new Map(), label: null, before: "", wasTaught: false, prediction: null, answers: [] });
    this.element = fromTemplate("image-template");
    this.element.prepend(picture);
    this.part = (name) => this.element.querySelector(name);
    this.part("form").onsubmit = (event) => {
      event.preventDefault();
      this.teach(this.part("input").value.trim());
      this.part("input").value = "";
    };
  }

  say(text, kind = "") {
    const summary = this.part(".summary");
    if (summary.textContent !== text) summary.textContent = text;
    summary.classList.toggle("error", kind === "error");
    summary.classList.toggle("new", kind === "new");
  }

  /** The name of the most probable class. */
  best = () => this.answers[0]?.name ?? "";

  /** Show a prediction of the service, or the present one for classes that have changed. */
  show(prediction = this.prediction) {
    if (prediction === null) return;
    const names = new Map(all().map((one) => [one.name, one]));
    const known = prediction.classes.filter(({ name }) => names.get(name)?.learned > 0);
    const total = known.reduce((sum, { probability }) => sum + probability, 0); // less than 1 while a removal can be undone
    Object.assign(this, { prediction, answers: known.length >= 2 ? known : [] });
    const shown = this.answers.slice(0, MAX_BARS).map(({ name, probability }) => ({ name, probability: total > 0 ? probability / total : 0 }));
    const others = [...names.keys()].filter((name) => !known.some((one) => one.name === name));
    const rows = [...shown, ...others.map((name) => ({ name, probability: 0 })).slice(0, MAX_BARS - shown.length)];
    for (const [name, row] of this.rows) if (!rows.some((one) => one.name === name)) this.removeRow(name, row);
    if (!this.sorted) rows.sort((one, other) => names.get(one.name).number - names.get(other.name).number);
    for (const { name, probability } of rows) {
      const row = this.rows.get(name) ?? this.addRow(name);
      const text = names.get(name).learned === 0 ? "not learned yet" : shown.length > 0 ? percent(probability) : "";
      row.style.setProperty("--share", probability);
      row.querySelector("b").textContent = text;
    }
    // Sort the rows, unless the user may be about to click one.
    if (!this.element.matches(":hover, :focus-within")) this.sort(rows);
    this.summarize();
  }

  sort(rows) {
    const items = rows.map(({ name }) => this.rows.get(name).parentElement);
    const list = this.part(".predictions");
    if (items.some((item, index) => list.children[index] !== item)) list.replaceChildren(...items);
  }

  addRow(name) {
    const row = make("button", { type: "button", onclick: () => this.teach(name) }, make("span", {}, name), make("b"));
    row.style.setProperty("--colour", colourOf(name));
    this.part(".predictions").append(make("li", {}, row));
    this.rows.set(name, row);
    return row;
  }

  removeRow(name, row) {
    row.parentElement.remove();
    this.rows.delete(name);
  }

  summarize() {
    const best = this.best();
    const isNew = this.label === null && best !== "" && this.prediction.unknown;
    const before = this.before && this.before !== this.label ? `; it ${this.wasTaught ? "was" : "looked like"} ${this.before}` : "";
    if (this.label !== null) this.say(`Taught as ${this.label}${before}`);
    else if (isNew) this.say("Unlike all classes: a new one? If it is one of these:", "new");
    else this.say(best ? `Looks like ${best}` : NONE);
    this.part("input").placeholder = isNew ? "new class" : "another class";
    this.element.dataset.prediction = best;
    for (const [name, row] of this.rows) row.setAttribute("aria-pressed", name === this.label);
  }
}
