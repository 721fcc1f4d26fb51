// Helpers for the DOM. User input is only ever inserted as text, never as HTML.

export const byId = (id) => document.getElementById(id);

/** An element with properties and children, which may be strings. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export const fromTemplate = (id) => byId(id).content.firstElementChild.cloneNode(true);

/** Show a message at the bottom of the page for some seconds; screen readers announce it. */
export function showMessage(text) {
  byId("error").hidden = true;
  byId("message").textContent = text;
  clearTimeout(showMessage.timer);
  showMessage.timer = setTimeout(() => (byId("message").textContent = ""), 6000);
}

/** Show an error at the bottom of the page until it is closed or something else has succeeded. */
export function showError(text) {
  byId("message").textContent = "";
  byId("error").querySelector("span").textContent = text;
  byId("error").hidden = false;
}

byId("error").querySelector("button").onclick = () => (byId("error").hidden = true);

/** An event handler that runs an action and shows an error if it fails. */
export const handler = (action) => async (event) => {
  event?.preventDefault();
  try {
    await action(event);
  } catch (error) {
    showError(`Error: ${error.message}.`);
  }
};

/** The action, called at most once per interval; the last call is never dropped. */
export function throttle(ms, action) {
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
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { timeStyle: "short" });
