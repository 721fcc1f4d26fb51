// What all parts of the page use. Text from people goes in as text only: nothing here takes HTML.

export const byId = (id) => document.getElementById(id);

/** An element with properties and children; a string becomes text. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export const fromTemplate = (id) => byId(id).content.firstElementChild.cloneNode(true);

/** Tell it at the foot of the page, and to a screen reader. */
export function say(text) {
  byId("message").textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (byId("message").textContent = ""), 6000);
}

/** Do it when a form is sent or a button pressed, and say what went wrong. */
export const tried = (action) => async (event) => {
  event.preventDefault();
  try {
    await action(event);
  } catch (error) {
    say(`Not done: ${error.message}.`);
  }
};

/** The function, at most once in so many ms; the last call is never left out. */
export function atMostEvery(ms, action) {
  let [running, again] = [false, false];
  return async function call() {
    if (running) return void (again = true);
    [running, again] = [true, false];
    await Promise.allSettled([action(), new Promise((resolve) => setTimeout(resolve, ms))]);
    running = false;
    if (again) call();
  };
}

const COLOURS = 8;

export const colour = (number) => `var(--class-${number % COLOURS})`;
export const percent = (share) => `${Math.round(100 * share)} %`;
export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { timeStyle: "short" });
