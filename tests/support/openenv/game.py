"""An OpenEnv server for tests, run by the environment of the package `openenv` (`.venv-openenv`).

    python game.py PORT word|grid [MAX_SESSIONS]

word: each turn must end in the next letter of a word that follows from the seed; the reward is 1 or 0.
grid: an action of two numbers; the reward is their sum. `behave` in `reset` makes an episode misbehave, and
the steps of sessions with the same `gate` wait until 64 of them are open.
"""

import os
import random
import sys
import threading
import time
from collections import Counter
from typing import Any
from unittest.mock import MagicMock

sys.modules["gradio"] = MagicMock()  # of the package's page, which no test opens: 3/4 of the server's start

import uvicorn  # noqa: E402
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app  # noqa: E402
from openenv.core.env_server.types import ConcurrencyConfig  # noqa: E402

GATE_SESSIONS, GATE_SECONDS = 64, 100.0
at_gate: Counter[str] = Counter()
arrived = threading.Condition()


def wait_at(gate: str) -> None:
    """Return once 64 sessions have come to this gate."""
    with arrived:
        at_gate[gate] += 1
        arrived.notify_all()
        if not arrived.wait_for(lambda: at_gate[gate] >= GATE_SESSIONS, GATE_SECONDS):
            raise RuntimeError(f"only {at_gate[gate]} sessions are open")


class Letter(Action):
    letter: str


class Move(Action):
    row: int
    column: int = 0


class Shown(Observation):
    text: str = ""


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        word: str = "",
        behave: str = "",
        gate: str = "",
        **_: Any,
    ) -> Shown:
        source = random.Random() if behave == "random" else random.Random(seed)
        self.word = word or "".join(source.choices("abcd", k=2))
        self.behave, self.gate, self.place = behave, gate, 0
        return Shown(text=f"spell {self.word}", done=behave == "over")

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Shown:
        if self.gate and not self.place:
            wait_at(self.gate)
        match self.behave:
            case "huge":
                return Shown(text="x" * 10_000_000)
            case "silent":
                time.sleep(600)
            case "raise":
                raise RuntimeError("the game broke")
            case "kill":
                os._exit(3)
            case "no_reward":
                return Shown(text="nothing", done=True)
            case "nan":
                return Shown(text="nan", reward=float("nan"), done=True)
        return self.move(action) if isinstance(action, Move) else self.spell(action.letter)

    def move(self, action: Move) -> Shown:
        return Shown(text="moved", reward=action.row + action.column, done=True)

    def spell(self, letter: str) -> Shown:
        right = letter.endswith(self.word[self.place])
        self.place += 1
        return Shown(
            text="right" if right else "wrong", reward=float(right), done=self.place == len(self.word)
        )

    @property
    def state(self) -> State:
        return State(step_count=self.place)


if __name__ == "__main__":
    port, game, *rest = sys.argv[1:]
    capacity = ConcurrencyConfig(max_concurrent_envs=int(rest[0]) if rest else 100)
    action = Letter if game == "word" else Move
    app = create_fastapi_app(Game, action, Shown, concurrency_config=capacity)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
