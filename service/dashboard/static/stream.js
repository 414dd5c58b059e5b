// A job's live stream: fetch and its body instead of EventSource, which could not send the key in a header.
// Boundary: server-sent events in, objects out; what they mean is the page's.

import { errorOf, jobPath, key, pause, refuseKey, url } from "./api.js";

const LONGEST_WAIT = 15;

// Calls `onEvent({type: "metrics"|"event"|"status", id, data})` for each event after number `after`, until
// the job is over (then it returns) or `signal` fires (then it throws AbortError).
// A lost connection is made again from the last number; `onConnection(isUp)` hears of both.
export async function follow(jobId, { after, signal, onEvent, onConnection }) {
  let last = after;
  for (let failures = 0; ; failures += 1) {
    try {
      const response = await open(jobId, last, signal);
      if (response === null) return;
      onConnection?.(true);
      for await (const event of eventsOf(response.body)) {
        last = event.id;
        failures = 0;
        onEvent(event);
      }
    } catch (error) {
      if (signal?.aborted || error.status === 401 || error.status === 404) throw error;
      onConnection?.(false);
      await pause(error.retryAfter ?? Math.min(LONGEST_WAIT, 2 ** failures), signal);
      continue;
    }
    await pause(0.5, signal);
  }
}

// The response; null: all was told and the job is over.
async function open(jobId, last, signal) {
  const headers = { Authorization: `Bearer ${key.get() ?? ""}`, Accept: "text/event-stream" };
  if (last !== undefined) headers["Last-Event-ID"] = String(last);
  const response = await fetch(url(jobPath(jobId, "/stream")), { headers, signal, cache: "no-store" });
  if (response.status === 204) return null;
  if (response.ok) return response;
  const error = await errorOf(response);
  throw error.status === 401 ? refuseKey(error) : error;
}

async function* eventsOf(body) {
  let buffer = "";
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
      const blocks = (buffer + value).split(/\r?\n\r?\n/);
      buffer = blocks.pop();
      yield* blocks.map(parse).filter(Boolean);
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have failed already, and that is what is being told
  }
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
