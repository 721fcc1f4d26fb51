// Requests to the service, with its token where it needs one, and the stream of its events.

const TRIES = 5;
const PATIENCE = 90_000; // ms for an answer: the service gives the learner 60 s
const SILENCE = 45_000; // ms: the service sends something every 15 s

let token = sessionStorage.getItem("token");
let asking = null;

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The answer, if it is a good one; otherwise an error with what the service says is wrong. */
export async function request(method, path, body, options = {}, tries = TRIES) {
  const sent = token;
  const headers = sent ? { Authorization: `Bearer ${sent}` } : {};
  const isForm = body === undefined || body instanceof FormData;
  if (!isForm) headers["Content-Type"] = "application/json";
  const content = { method, headers, body: isForm ? body : JSON.stringify(body) };
  const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE), ...content, ...options }).catch(() => {
    throw new Error("the server does not answer");
  });
  if (answer.ok) return answer;
  if (answer.status === 401) await newToken(sent);
  else if (answer.status === 429 && tries > 1) await sleep(1000 * (answer.headers.get("Retry-After") ?? 1));
  else throw new Error(await reason(answer));
  return request(method, path, body, options, tries - 1);
}

export const json = async (...words) => (await request(...words)).json();

async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the service answered ${answer.status}`;
  }
}

/** Asks for the token, once however many requests wait for it. */
async function newToken(refused) {
  if (token !== refused) return;
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token");
    dialog.querySelector("h2").textContent = refused ? "This token is wrong" : "Token";
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => resolve(dialog.querySelector("input").value);
    dialog.showModal();
  });
  token = await asking;
  sessionStorage.setItem("token", token);
  asking = null;
}

/** Calls on.status and on.notice for each event, on.here and on.gone as the service comes and goes. Never ends. */
export async function listen(on) {
  let last = 0;
  for (;;) {
    try {
      on.here(await json("GET", "/v1/status"));
      for await (const event of events(last)) {
        last = event.id;
        on[event.kind]?.(event.content);
      }
    } catch (error) {
      on.gone(error.message);
    }
    await sleep(1000);
  }
}

/** By fetch, because an EventSource cannot send a token. */
async function* events(after) {
  const stop = new AbortController();
  let timer = setTimeout(() => stop.abort(), SILENCE);
  try {
    const answer = await request("GET", `/v1/events?after=${after}`, undefined, { signal: stop.signal });
    let text = "";
    for (const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
      const { done, value } = await reader.read().catch(() => ({ done: true }));
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), SILENCE);
      const blocks = (text + value).split("\n\n");
      text = blocks.pop();
      for (const { id, event, data } of blocks.map(parsed)) {
        if (data) yield { id: +id, kind: event, content: JSON.parse(data) };
      }
    }
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

const parsed = (block) => Object.fromEntries(block.split("\n").map((line) => /^(\w*): ?(.*)$/.exec(line).slice(1)));
