// A chat request and its streamed response. Boundary: HTTP; no elements.

import { ApiError, request } from "./api.js";
import { eventsOf } from "./stream.js";

const CHAT = "/v1/chat/completions";
const TEXT = "/v1/completions";

// Sends the request and calls `onText(piece)` for each piece of the response. → {reason: "stop"|"length", usage}
// wanted: {model, prompt, system, turns, isPlain, temperature, maxTokens, seed}; `turns`: the earlier {prompt, text}.
// Throws ApiError, possibly after some pieces, or AbortError when `signal` fires.
export async function streamChat(wanted, { signal, onText }) {
  const settings = {
    model: wanted.model, temperature: wanted.temperature, max_tokens: wanted.maxTokens, seed: wanted.seed,
    stream: true, stream_options: { include_usage: true },
  };
  const body = wanted.isPlain
    ? { ...settings, prompt: wanted.prompt }
    : { ...settings, messages: messagesOf(wanted) };
  const response = await request(wanted.isPlain ? TEXT : CHAT, { method: "POST", body, signal });
  const answer = { reason: null, usage: null };
  for await (const chunk of chunksOf(response.body, signal)) {
    if (chunk.error) throw new ApiError({ status: 503, ...chunk.error });
    const [choice] = chunk.choices;
    const piece = choice?.delta?.content ?? choice?.text;
    if (piece) onText(piece);
    answer.reason = choice?.finish_reason ?? answer.reason;
    answer.usage = chunk.usage ?? answer.usage;
  }
  return answer;
}

function messagesOf({ system, turns, prompt }) {
  const first = system ? [{ role: "system", content: system }] : [];
  const earlier = turns.flatMap((turn) =>
    [{ role: "user", content: turn.prompt }, { role: "assistant", content: turn.text }]);
  return [...first, ...earlier, { role: "user", content: prompt }];
}

// The stream's documents up to `[DONE]`; without it the stream was cut off.
async function* chunksOf(body, signal) {
  for await (const { data } of eventsOf(body, (error) => (signal.aborted ? error : cutOff()))) {
    if (data === "[DONE]") return;
    yield JSON.parse(data);
  }
  throw cutOff();
}

function cutOff() {
  return new ApiError({ status: 0, code: "unanswered", message: "The response was interrupted. Try again." });
}
