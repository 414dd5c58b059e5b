"""Sessions when sampling fails."""

import asyncio
import json
from collections.abc import Callable

import pytest
from websockets.asyncio.server import ServerConnection

from grpo_engine.config.environments import OpenEnvEnvironment
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.environments.sampler import EnvironmentSampler
from grpo_engine.rollout.environments.servers import OpenEnvServers
from grpo_engine.rollout.sampler.base import Sampling
from tests.engine.outbound.test_openenv import OBSERVATION, against
from tests.engine.rollout.tools.scripted_sampler import ScriptedSampler, Stream


@pytest.mark.usefixtures("allowed")
def test_no_session_stays_open_after_sampling_has_failed(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    opened: list[ServerConnection] = []

    async def handler(connection: ServerConnection) -> None:
        opened.append(connection)
        await connection.recv()
        await connection.send(json.dumps(OBSERVATION))
        await connection.wait_closed()

    def says(stream: Stream) -> str:
        raise ZeroDivisionError

    def generate(url: str) -> None:
        environments = {"game": OpenEnvEnvironment(type="openenv", url=url)}
        reader = RowReader(policy.tokenizer)
        servers = OpenEnvServers(policy, environments, reader, schemas={"game": {"required": []}})
        sampler = EnvironmentSampler(ScriptedSampler(policy, says), servers)
        row = {"messages": [{"role": "user", "content": "go"}], "environment": "game"}
        sampler.generate(reader.prompts([row]), 2, Sampling(max_tokens=100, seed=1, step=1))

    async def play(url: str) -> None:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(generate, url)
        async with asyncio.timeout(60):
            assert opened
            for connection in opened:
                await connection.wait_closed()

    against(handler, play)
