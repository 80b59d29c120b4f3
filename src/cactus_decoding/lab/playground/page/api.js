// Requests to the server that this page came from.

/** An error whose message is a sentence for the reader. */
export class Mistake extends Error {}

async function post(path, body, signal) {
  let answer;
  try {
    answer = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Mistake("The server does not answer: is cactus play still running?");
  }
  if (!answer.ok) throw new Mistake(await messageOf(answer));
  return answer;
}

async function messageOf(answer) {
  try {
    return (await answer.json()).message;
  } catch {
    return `The server answered ${answer.status}.`;
  }
}

/** Return what the form offers. */
export async function fetchForm() {
  const answer = await fetch("/api/form");
  if (!answer.ok) throw new Mistake(await messageOf(answer));
  return answer.json();
}

/** Begin a run and call `take` with each of its events. */
export async function generate(request, take, signal) {
  const answer = await post("/api/runs", request, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) take(JSON.parse(line));
  }
}

/** Have a request checked, without running it; throw a Mistake where it is one. */
export const check = (request) => post("/api/check", request);

export const stop = (run) => post(`/api/runs/${run}/stop`, {});

/** Return what each of some rules would have done at a position. */
export async function whatIf(run, session, place, rules, signal) {
  const answer = await post(`/api/runs/${run}/what-if`, { session, place, rules }, signal);
  return (await answer.json()).rules;
}

export const traceAddress = (run, session, kind) => `/api/runs/${run}/${session}/trace.${kind}`;
