"""An OpenEnv server for tests, run by the environment of the package `openenv` (`.venv-openenv`).

    python game.py PORT word|grid [MAX_SESSIONS]

word: each turn must end in the next letter of a word that follows from the seed; the reward is 1 or 0.
grid: an action of two numbers; the reward is their sum. `behave` in `reset` makes an episode misbehave.
"""

import os
import random
import sys
import time
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.types import ConcurrencyConfig


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
        **_: Any,
    ) -> Shown:
        source = random.Random() if behave == "random" else random.Random(seed)
        self.word = word or "".join(source.choices("abcd", k=2))
        self.behave, self.place = behave, 0
        return Shown(text=f"spell {self.word}", done=behave == "over")

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Shown:
        match self.behave:
            case "huge":
                return Shown(text="x" * 10_000_000)
            case "silent":
                time.sleep(20)
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
