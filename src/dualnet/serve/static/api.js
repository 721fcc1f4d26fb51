// Requests to the service, with a token if it requires one, and its event stream.

const MAX_TRIES = 5;
const RESPONSE_TIMEOUT = 90_000; // ms; the service itself waits up to 60 s for the learner
const STREAM_TIMEOUT = 45_000; // ms; the service sends something every 15 s

let token = sessionStorage.getItem("token");
let tokenDialog = null; // a promise of the token while the dialog is open

export const hasToken = () => token !== null;
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The response if it is successful; otherwise throws an Error with the message of the service; `mayPass`: try again. */
export async function request(method, path, body, options = {}, tries = MAX_TRIES) {
  const sentToken = token;
  const headers = sentToken ? { Authorization: `Bearer ${sentToken}` } : {};
  const isForm = body === undefined || body instanceof FormData;
  if (!isForm) headers["Content-Type"] = "application/json";
  const content = { method, headers, body: isForm ? body : JSON.stringify(body) };
  const signal = AbortSignal.timeout(RESPONSE_TIMEOUT);
  const response = await fetch(path, { signal, ...content, ...options }).catch(() => {
    throw Object.assign(new Error("the server does not respond"), { mayPass: true });
  });
  if (response.ok) return response;
  if (response.status === 401) await askForToken(sentToken);
  else if (response.status === 429 && tries > 1) await sleep(1000 * (response.headers.get("Retry-After") ?? 1));
  else throw Object.assign(new Error(await errorMessage(response)), { mayPass: response.status >= 429 });
  return request(method, path, body, options, tries - 1);
}

export const json = async (...parameters) => (await request(...parameters)).json();

async function errorMessage(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the service responded with status ${response.status}`;
  }
}

/** Ask for the token, only once for all requests that wait for it. */
async function askForToken(rejected) {
  if (token !== rejected) return;
  tokenDialog ??= new Promise((resolve) => {
    const dialog = document.getElementById("token");
    dialog.querySelector("h2").textContent = rejected ? "Wrong token" : "Token";
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => resolve(dialog.querySelector("input").value);
    dialog.showModal();
  });
  token = await tokenDialog;
  sessionStorage.setItem("token", token);
  tokenDialog = null;
}

/** Call the handlers `status` and `notice` for events, `connected` and `disconnected`; reconnect forever. */
export async function listen(on) {
  let last = 0;
  for (;;) {
    try {
      on.connected(await json("GET", "v1/status"));
      for await (const event of events(last)) {
        last = event.id;
        on[event.kind]?.(event.content);
      }
    } catch (error) {
      on.disconnected(error.message);
    }
    await sleep(1000);
  }
}

/** With fetch, because EventSource cannot send a token. */
async function* events(after) {
  const controller = new AbortController();
  const startTimer = () => setTimeout(() => controller.abort(), STREAM_TIMEOUT);
  let timer = startTimer();
  try {
    const response = await request("GET", `v1/events?after=${after}`, undefined, { signal: controller.signal });
    let text = "";
    for (const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
      const { done, value } = await reader.read().catch(() => ({ done: true }));
      if (done) return;
      clearTimeout(timer);
      timer = startTimer();
      const blocks = (text + value).split("\n\n");
      text = blocks.pop();
      for (const { id, event, data } of blocks.map(fieldsOf)) {
        if (data) yield { id: +id, kind: event, content: JSON.parse(data) };
      }
    }
  } finally {
    clearTimeout(timer);
    controller.abort();
  }
}

const fieldsOf = (block) => Object.fromEntries(block.split("\n").map((line) => /^(\w*): ?(.*)$/.exec(line).slice(1)));
