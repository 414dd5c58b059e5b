// A job's live stream, read with fetch because EventSource cannot send the key in a header.
// Boundary: server-sent events in, objects out; pages interpret them.

import { errorOf, key, pause, refuseKey, serviceBack, unanswered, url } from "./http.js";
import { jobPath } from "./paths.js";

const LONGEST_WAIT = 15;
const NEXT_LOOK = 0.5;

// Calls `onEvent({type: "metrics"|"event"|"status", id, data})` for each event after number `after` (default:
// all events) until the job has finished (then it returns) or `signal` fires (then it throws AbortError).
// Reconnects after the last number; `onConnection(isUp)` is called for every loss and reconnection.
export async function follow(jobId, { after, signal, onEvent, onConnection }) {
  let last = after;
  for (let failures = 0; ; failures += 1) {
    try {
      const response = await open(jobId, last, signal);
      if (response === null) return;
      onConnection?.(true);
      for await (const event of eventsOf(response.body, signal)) {
        last = event.id;
        failures = 0;
        onEvent(event);
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
async function open(jobId, last, signal) {
  const headers = { Authorization: `Bearer ${key.get() ?? ""}`, Accept: "text/event-stream" };
  if (Number.isInteger(last)) headers["Last-Event-ID"] = String(last);
  const pending = fetch(url(jobPath(jobId, "/stream")), { headers, signal, cache: "no-store" });
  const response = await pending.catch((error) => lost(error, signal));
  if (response.status === 204) return null;
  if (response.ok) return response;
  const error = await errorOf(response);
  throw error.status === 401 ? refuseKey(error) : error;
}

async function* eventsOf(body, signal) {
  let buffer = "";
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const read = () => reader.read().catch((error) => lost(error, signal));
  try {
    for (let { done, value } = await read(); !done; { done, value } = await read()) {
      const blocks = (buffer + value).split(/\r?\n\r?\n/);
      buffer = blocks.pop();
      yield* blocks.map(parse).filter(Boolean);
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have failed already, and that error is being thrown
  }
}

function lost(error, signal) {
  throw signal?.aborted ? error : unanswered();
}

function parse(block) {
  const fields = {};
  for (const line of block.split(/\r?\n/)) {
    const [, name, value] = /^([^:]+): ?(.*)$/.exec(line) ?? [];
    if (name) fields[name] = value;
  }
  if (fields.data === undefined) return null;
  return { type: fields.event, id: Number(fields.id), data: JSON.parse(fields.data) };
}
