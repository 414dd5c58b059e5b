// A job's live stream, read with fetch because EventSource cannot send the key in a header; and any stream's events.
// Boundary: server-sent events in, objects out; pages interpret them.

import { errorOf, key, pause, refuseKey, serviceBack, unanswered, url } from "./http.js";
import { jobPath } from "./paths.js";

const LONGEST_WAIT = 15;
const NEXT_LOOK = 0.5;

// Calls `onEvent({type: "metrics"|"event"|"status", id, data})` for each event after number `after` (default:
// all events) until the job has finished (then it returns) or `signal` fires (then it throws AbortError).
// Reconnects after the last number; `onConnection(isUp)` is called for every loss and reconnection.
export async function follow(jobId, { after, signal, onEvent, onConnection }) {
  const lost = (error) => (signal?.aborted ? error : unanswered());
  let last = after;
  for (let failures = 0; ; failures += 1) {
    try {
      const response = await open(jobId, last, signal, lost);
      if (response === null) return;
      onConnection?.(true);
      for await (const { event, id, data } of eventsOf(response.body, lost)) {
        last = Number(id);
        failures = 0;
        onEvent({ type: event, id: last, data: JSON.parse(data) });
      }
      await pause(NEXT_LOOK, signal);
    } catch (error) {
      if (!isPassing(error)) throw error;
      onConnection?.(false);
      const longest = pause(error.retryAfter ?? Math.min(LONGEST_WAIT, 2 ** failures), signal);
      await Promise.race([longest, serviceBack(signal)]);
    }
  }
}

// Retries help after no response, an overload or a server error, but not after a refusal, an abort or a bug.
function isPassing(error) {
  return error.status === 0 || error.status === 408 || error.status === 429 || error.status >= 500;
}

// The response; null: the job has finished and all events were received.
async function open(jobId, last, signal, lost) {
  const headers = { Authorization: `Bearer ${key.get() ?? ""}`, Accept: "text/event-stream" };
  if (Number.isInteger(last)) headers["Last-Event-ID"] = String(last);
  const pending = fetch(url(jobPath(jobId, "/stream")), { headers, signal, cache: "no-store" });
  const response = await pending.catch((error) => { throw lost(error); });
  if (response.status === 204) return null;
  if (response.ok) return response;
  const error = await errorOf(response);
  throw error.status === 401 ? refuseKey(error) : error;
}

// The server-sent events of a response's body that have data, each as {event, id, data}: text, or undefined.
// `lost(error)`: the error to throw if the connection is lost.
export async function* eventsOf(body, lost) {
  let buffer = "";
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const read = () => reader.read().catch((error) => { throw lost(error); });
  try {
    for (let { done, value } = await read(); !done; { done, value } = await read()) {
      const blocks = (buffer + value).split(/\r?\n\r?\n/);
      buffer = blocks.pop();
      yield* blocks.map(fieldsOf).filter(({ data }) => data !== undefined);
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have failed already, and that error is being thrown
  }
}

function fieldsOf(block) {
  const lines = block.split(/\r?\n/).map((line) => /^([^:]+): ?(.*)$/.exec(line)).filter(Boolean);
  return Object.fromEntries(lines.map(([, name, value]) => [name, value]));
}
