"""`python -m examples.openenv_game.server PORT`: the game as an OpenEnv server, one game for each session.

Needs the package `openenv`, which `make setup-openenv` installs in an environment of its own.
"""

import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.types import ConcurrencyConfig

from examples.openenv_game.game import FIRST, Game

MAX_SESSIONS = 256


class Guess(Action):
    digit: str


class Hint(Observation):
    text: str = ""


class GuessEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Hint:
        self.game = Game.drawn(seed)
        return Hint(text=FIRST)

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Hint:
        hint = self.game.guess(action.digit)
        reward = float(self.game.found) if self.game.is_over else None
        return Hint(text=hint, reward=reward, done=self.game.is_over)

    @property
    def state(self) -> State:
        return State(step_count=self.game.guesses)


def main() -> None:
    capacity = ConcurrencyConfig(max_concurrent_envs=MAX_SESSIONS)
    app = create_fastapi_app(GuessEnvironment, Guess, Hint, concurrency_config=capacity)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
