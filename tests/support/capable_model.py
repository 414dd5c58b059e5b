"""A scripted capable model behind a chat endpoint, and a task that requires a lesson.

The task is `zorb(a, b)` = a·b + 1. Without the lesson in its prompt the model answers with the product,
except for one lucky attempt per group; with the lesson it is always right. In reflections it derives the
lesson from the best attempts. Used by tests of the engine and the service, and end to end.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_engine.training_free.prompts import COMPARE, CONSOLIDATE, SUMMARISE

LESSON = "zorb(a, b) is a*b + 1: multiply, then add one."
KEY = "sk-very-secret-1234567890"
MODEL = "capable"
GRADER = {"type": "numeric", "reference": "{{item.answer}}"}
_TASK = re.compile(r"zorb\((\d+), (\d+)\)")


def zorb_rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    """`{"messages": [user "What is zorb(2, 3)?"], "answer": "7"}`, all different."""
    pairs = [(2 + number % 7, 2 + number // 7) for number in range(first, first + count)]
    return [
        {"messages": [{"role": "user", "content": f"What is zorb({a}, {b})?"}], "answer": str(a * b + 1)}
        for a, b in pairs
    ]


def write_endpoints(path: Path, url: str, **more: Any) -> Path:
    """Write the operator's list with one endpoint, `helper`. GRPO_ENDPOINTS must name its path."""
    path.write_text(json.dumps({"helper": {"url": url, "api_key": KEY, "models": [MODEL], **more}}))
    return path


def on_endpoint(**hyperparameters: Any) -> dict[str, Any]:
    """Hyperparameters of a job that uses the endpoint as model and for reflection."""
    asked = {"endpoint": "helper", "model": MODEL}
    small = {"n_epochs": 2, "prompts_per_step": 4, "group_size": 4, "max_completion_tokens": 64}
    return {"rollouts": asked, "reflection": asked, **small, **hyperparameters}


class CapableModel:
    """The `answer` of a `ChatServer`. Every `lucky_every`-th attempt is right without the lesson."""

    def __init__(self, lucky_every: int = 4) -> None:
        self.lucky_every = lucky_every
        self.asked: Counter[str] = Counter()
        """Requests by kind: `attempt`, `summarise`, `compare`, `consolidate`."""
        self._tries: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, request: Mapping[str, Any]) -> str:
        roles = {SUMMARISE: self.summarise, COMPARE: self.compare, CONSOLIDATE: self.consolidate}
        messages = request["messages"]
        speak = roles.get(messages[0]["content"])
        with self._lock:
            self.asked["attempt" if speak is None else speak.__name__] += 1
            if speak is None:
                return self.attempt(request)
        return speak(messages[1]["content"])

    def attempt(self, request: Mapping[str, Any]) -> str:
        text = "\n".join(message["content"] for message in request["messages"])
        task = _TASK.findall(text)[-1]
        a, b = map(int, task)
        is_lucky = False
        if request["temperature"] > 0:
            self._tries[str(task)] += 1
            is_lucky = self._tries[str(task)] % self.lucky_every == 0
        if LESSON in text or is_lucky:
            return f"I multiply and add one: {a * b + 1}"
        return f"I multiply: {a * b}"

    def summarise(self, text: str) -> str:
        return "It multiplied and added one." if "add one" in text else "It only multiplied."

    def compare(self, text: str) -> dict[str, Any] | str:
        winners = re.findall(
            r"advantage \+[\d.]+\.\n(?:<grader>.*?</grader>\n)?<attempt>\n(.*?)\n", text, re.DOTALL
        )
        known = re.findall(rf"\[(G\d+)\] {re.escape(LESSON)}", text)
        if known:
            return json.dumps({"operations": [{"operation": "keep", "id": known[0]}]})
        if any("added one" in winner for winner in winners):
            return json.dumps({"operations": [{"operation": "add", "text": LESSON}]})
        return json.dumps({"operations": []})

    def consolidate(self, text: str) -> str:
        lines = re.search(r"<proposals>\n(.*?)\n</proposals>", text, re.DOTALL)
        assert lines is not None
        merged: list[dict[str, Any]] = []
        for line in lines[1].splitlines():
            merged += [each for each in json.loads(line) if each not in merged]
        return "Here it is:\n```json\n" + json.dumps({"operations": merged}) + "\n```"
