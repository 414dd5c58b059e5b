"""An agent that a job can train: it solves sums with a tool, and has no code for training.

    python -m examples.agent.agent --port 8900

It uses OpenAI's client as any agent does. Only `Handler` is for the job: it takes a rollout, and answers with
the reward when the work is done.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from openai import OpenAI

NUMBER = {"type": "number"}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": NUMBER, "b": NUMBER},
            "required": ["a", "b"],
        },
    },
}
MAX_TURNS = 4


def solve(client: OpenAI, model: str, messages: list[Any]) -> str:
    """The agent: sends requests to the model until it calls no tool. Returns its last answer."""
    messages = list(messages)
    for _ in range(MAX_TURNS):
        reply = client.chat.completions.create(model=model, messages=messages, tools=[ADD])
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            content = add(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return ""


def add(arguments: str) -> str:
    try:
        given = json.loads(arguments)
        return str(given["a"] + given["b"])
    except (ValueError, KeyError, TypeError) as error:
        return f"Error: {error}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        rollout = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with OpenAI(base_url=rollout["base_url"], api_key=rollout["api_key"]) as client:
            answer = solve(client, rollout["model"], rollout["task"]["messages"])
        reward = float(answer.strip() == rollout["task"]["answer"])
        body = json.dumps({"reward": reward}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8900)
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
