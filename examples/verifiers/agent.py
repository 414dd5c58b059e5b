"""Serves tasks of the package `verifiers` (0.4, `verifiers.v1`) as an agent that a job can train.

    python examples/verifiers/agent.py TASKSET --rows rows.jsonl          # a dataset of its tasks
    python examples/verifiers/agent.py TASKSET --port 8900                # the agent

TASKSET and `--harness` are names of modules, as `vf-eval` takes them. Each rollout is one episode, whose
model is the job's policy; the reward is the sum of the taskset's own rewards. Programs of a harness run on
this machine, in the subprocess runtime.
"""

import argparse
import asyncio
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_environment


class EpisodeFailed(Exception):
    """An episode has no reward, because it ended in an error."""


class Episodes:
    """Runs episodes in its own event loop."""

    def __init__(self, taskset: str, harness: str) -> None:
        agent = {"harness": {"id": harness}, "runtime": {"type": "subprocess"}}
        self.env = load_environment(vf.SingleAgentEnvConfig(taskset={"id": taskset}, agent=agent))
        self.loop = asyncio.new_event_loop()

    def write_rows(self, path: Path, name: str) -> None:
        """One row for each task: `data` is the task, `prompt` only shows it to people."""
        with path.open("w") as rows:
            for task in self.env.taskset:
                data = task.data.model_dump(mode="json")
                rows.write(
                    json.dumps({"prompt": str(task.data.prompt), "environment": name, "data": data}) + "\n"
                )

    async def serve(self) -> None:
        async with self.env.serving():
            await asyncio.Event().wait()

    async def reward(self, rollout: dict[str, Any]) -> float:
        """Raises EpisodeFailed."""
        kind = type(self.env.taskset).task_type()
        task = kind(kind.data_type().model_validate(rollout["task"]["data"]), self.env.config.taskset.task)
        variable = f"ROLLOUT_{uuid4().hex}"  # a client reads its key from the environment
        os.environ[variable] = rollout["api_key"]
        try:
            client = vf.EvalClientConfig(base_url=rollout["base_url"], api_key_var=variable)
            (slot,) = self.env.slots(task)
            episode = await self.env.run_slot(slot, vf.ModelContext(model=rollout["model"], client=client))
        finally:
            del os.environ[variable]
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors or not episode.traces:
            raise EpisodeFailed("; ".join(f"{each.type}: {each.message}" for each in errors) or "no trace")
        return sum(trace.reward for trace in episode.traces)


def handler_of(episodes: Episodes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            rollout = json.loads(self.rfile.read(int(self.headers["content-length"])))
            try:
                work = asyncio.run_coroutine_threadsafe(episodes.reward(rollout), episodes.loop)
                status, answer = 200, dict[str, Any](reward=work.result())
            except (EpisodeFailed, ValueError, KeyError) as error:
                status, answer = 422, {"error": str(error)}
                print(error, flush=True)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("taskset")
    parser.add_argument("--harness", default="null", help="null asks the model once, and runs its tool calls")
    parser.add_argument("--rows", type=Path, help="write a dataset, and end")
    parser.add_argument("--name", default="verifiers", help="the environment's name in the job")
    parser.add_argument("--port", type=int, default=8900)
    given = parser.parse_args()
    episodes = Episodes(given.taskset, given.harness)
    if given.rows is not None:
        episodes.write_rows(given.rows, given.name)
        return
    server = ThreadingHTTPServer(("127.0.0.1", given.port), handler_of(episodes))
    Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    episodes.loop.run_until_complete(episodes.serve())


if __name__ == "__main__":
    main()
