"""A trainer with samplers on other devices: the same weights as one that samples itself, or a clear error.

Boundary: trainer and samplers are real, each sampler in a thread; `Launched` passes their messages on as the
worker does.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import pytest

from examples.tiny_model import make_model
from grpo_engine.config.job import RunConfig
from grpo_engine.contract.errors import ConfigError, MachineError
from grpo_engine.contract.sampling import (
    CONNECTION,
    ENGINE_MESSAGE,
    PolicyWritten,
    SamplingAnswer,
    policy_file,
)
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.sampler.base import Continuation, Sampling
from grpo_engine.rollout.sampler.remote.sampler import SamplerError, samplers_of
from grpo_engine.run.build import build_loop
from grpo_engine.run.sampler_process import serve_samples
from grpo_engine.training.trainer import Trainer
from tests.engine.conftest import cut, largest_difference, parameters_of, trained

MakeConfig = Callable[..., RunConfig]
TOLERANCE = 1e-6


class Launched:
    """The launcher's part: starts samplers, and passes policies, orders and answers on."""

    def __init__(self, config: RunConfig, folder: Path, count: int) -> None:
        self.run_dir = folder / "trainer"
        self.engine_end, self.own_end = Pipe()
        self.orders: list[int] = []
        """The sampler of each order."""
        self.problem = ""
        self.is_ending = False
        self._samplers = [self._started(config, folder / f"sampler-{number}") for number in range(count)]
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.engine_end.close()
        self.is_ending = True
        self._thread.join()
        for connection, _ in self._samplers:
            connection.close()

    def _started(self, config: RunConfig, folder: Path) -> tuple[Connection, Path]:
        folder.mkdir()
        mine, other = Pipe()
        with other:
            arguments = config, folder, os.dup(other.fileno())
        threading.Thread(target=serve_samples, args=arguments, daemon=True).start()
        return mine, folder

    def _relay(self) -> None:
        with self.own_end, suppress(EOFError, ConnectionError):
            while not self.is_ending:
                if self.own_end.poll(0.02):
                    self._pass_on(ENGINE_MESSAGE.validate_json(self.own_end.recv_bytes()))

    def _pass_on(self, message: Any) -> None:
        if isinstance(message, PolicyWritten):
            written = self.run_dir / policy_file(message.version)
            for _, folder in self._samplers:
                shutil.copy(written, folder)
            written.unlink()
            return
        self.orders.append(message.sampler)
        connection, _ = self._samplers[message.sampler]
        connection.send_bytes(message.request.encode())
        reply = connection.recv_bytes().decode()
        answer = SamplingAnswer(number=message.number, reply=reply, problem=self.problem)
        self.own_end.send_bytes(answer.model_dump_json().encode())


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Launched]]:
    """Start this many samplers of a job, for a trainer in `trainer/`."""
    started: list[Launched] = []
    (tmp_path / "trainer").mkdir()

    def launch(config: RunConfig, count: int) -> Launched:
        started.append(Launched(config, tmp_path, count))
        inherited = os.dup(started[-1].engine_end.fileno())
        monkeypatch.setenv(CONNECTION, str(inherited))
        return started[-1]

    yield launch
    for each in started:
        each.close()


@pytest.mark.parametrize(
    "options", [{}, {"lora": "full"}, {"max_staleness": 1}], ids=["lora", "full", "ahead"]
)
def test_the_weights_are_those_of_a_trainer_that_samples_itself(
    make_config: MakeConfig, launched: Callable[..., Launched], tmp_path: Path, options: dict[str, Any]
) -> None:
    config = make_config(**options)
    alone = parameters_of(trained(config, tmp_path / "alone"))
    samplers = launched(config, 2)
    apart = parameters_of(trained(cut(config, samplers=2), samplers.run_dir))
    assert largest_difference(alone, apart) <= TOLERANCE
    assert set(samplers.orders) == {0, 1}


def test_turns_that_continue_keep_their_random_numbers_and_limits(
    make_config: MakeConfig, launched: Callable[..., Launched], tmp_path: Path
) -> None:
    config = make_config()
    samplers = launched(config, 2)
    configs = ((config, tmp_path / "alone"), (cut(config, samplers=2), samplers.run_dir))
    turns = tuple(Continuation(prompt=n, sample=1, turn=2, max_tokens=3 + n) for n in range(3))
    sampling = Sampling(max_tokens=8, seed=3, step=2, continuing=turns)
    found = []
    for each, folder in configs:
        trainer = build_loop(each, folder).method
        assert isinstance(trainer, Trainer)
        trainer.sampler.load_policy(0)
        groups = trainer.sampler.generate(trainer.prompts[:3], 1, sampling)
        found.append([group.completions for group in groups])
    alone, apart = found
    assert alone == apart
    assert [completion.num_tokens <= 3 + n for n, (completion,) in enumerate(apart)] == [True] * 3


def test_an_error_of_a_sampler_keeps_its_code(
    make_config: MakeConfig, launched: Callable[..., Launched]
) -> None:
    config = make_config()
    missing = config.model_copy(
        update={"model": config.model.model_copy(update={"path": str(Path(config.model.path) / "none")})}
    )
    samplers = launched(missing, 1)
    loop = build_loop(cut(config, samplers=1), samplers.run_dir)
    with pytest.raises(SamplerError, match="a sampler: ") as raised:
        list(loop.run(lambda: False))
    assert raised.value.code == "model_not_found"


def test_a_sampler_with_another_base_model_is_refused(
    make_config: MakeConfig, launched: Callable[..., Launched], tmp_path: Path
) -> None:
    config = make_config()
    make_model(tmp_path / "other", hidden=64, layers=2, seed=4)
    source = config.model.model_copy(update={"path": str(tmp_path / "other")})
    samplers = launched(config.model_copy(update={"model": source}), 1)
    loop = build_loop(cut(config, samplers=1), samplers.run_dir)
    with pytest.raises(SamplerError, match=r"a sampler: the weights of qwen3 on \S+ are not those") as raised:
        list(loop.run(lambda: False))
    assert raised.value.code == "policy_mismatch"
    assert "Give every host the same files" in raised.value.hint


def test_samplers_that_are_lost_are_the_machine_s_fault(
    make_config: MakeConfig, launched: Callable[..., Launched]
) -> None:
    config = make_config()
    samplers = launched(config, 1)
    samplers.problem = "none responds"
    loop = build_loop(cut(config, samplers=1), samplers.run_dir)
    with pytest.raises(MachineError, match="no sampler replied: none responds"):
        list(loop.run(lambda: False))


def test_a_launcher_that_ends_is_the_machine_s_fault(
    make_config: MakeConfig, launched: Callable[..., Launched]
) -> None:
    config = make_config()
    samplers = launched(config, 1)
    loop = build_loop(cut(config, samplers=1), samplers.run_dir)
    samplers.close()
    with pytest.raises(MachineError, match="samplers was lost"):
        list(loop.run(lambda: False))


def test_a_trainer_without_samplers_to_ask_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was started without samplers"):
        build_loop(cut(make_config(), samplers=1), tmp_path)


@pytest.mark.parametrize(
    ("world", "count", "expected"),
    [
        (1, 3, [[0, 1, 2]]),
        (2, 4, [[0, 1], [2, 3]]),
        (4, 2, [[0], [0], [1], [1]]),
        (3, 2, [[0], [0], [1]]),
        (2, 3, [[0], [1, 2]]),
    ],
)
def test_every_rank_has_a_sampler_and_every_sampler_a_rank(
    world: int, count: int, expected: list[list[int]]
) -> None:
    assert [list(samplers_of(Ranks(rank, world), count)) for rank in range(world)] == expected
