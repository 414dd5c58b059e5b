// Talking to a model: one request, its answer as it grows. Boundary: HTTP and server-sent events; no elements.

import { ApiError, request } from "./api.js";

const CHAT = "/v1/chat/completions";
const TEXT = "/v1/completions";

// Asks, and calls `onText(piece)` with each piece of the answer. → {reason: "stop"|"length", usage}
// asked: {model, prompt, system, isPlain, temperature, maxTokens, seed}. Throws ApiError, in the midst of an
// answer too, or AbortError when `signal` fires.
export async function talk(asked, { signal, onText }) {
  const settings = {
    model: asked.model, temperature: asked.temperature, max_tokens: asked.maxTokens, seed: asked.seed,
    stream: true, stream_options: { include_usage: true },
  };
  const body = asked.isPlain
    ? { ...settings, prompt: asked.prompt }
    : { ...settings, messages: messagesOf(asked) };
  const response = await request(asked.isPlain ? TEXT : CHAT, { method: "POST", body, signal });
  const answer = { reason: null, usage: null };
  for await (const chunk of chunksOf(response.body)) {
    if (chunk.error) throw new ApiError({ status: 503, ...chunk.error });
    const [choice] = chunk.choices;
    const piece = choice?.delta?.content ?? choice?.text;
    if (piece) onText(piece);
    answer.reason = choice?.finish_reason ?? answer.reason;
    answer.usage = chunk.usage ?? answer.usage;
  }
  return answer;
}

function messagesOf({ system, prompt }) {
  const first = system ? [{ role: "system", content: system }] : [];
  return [...first, { role: "user", content: prompt }];
}

// The stream's documents up to its `[DONE]`. One that ends without it was cut off.
async function* chunksOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw cutOff();
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines.filter((one) => one.startsWith("data:"))) {
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  } catch (error) {
    throw error instanceof TypeError ? cutOff() : error; // what fetch throws when the connection is lost
  } finally {
    reader.cancel().catch(() => {}); // it may have failed already, and that is what is being told
  }
}

function cutOff() {
  return new ApiError({ status: 0, code: "unanswered", message: "The response was interrupted. Try again." });
}
