"""Between two frames of a stream, the loop can handle the loss of the connection."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from service.jobs.api.endpoints_series import _framed
from service.platform.tables.core import JobEvent
from service.serving.endpoints import _frames

FRAMES = 4


async def handled_before_each(frames: AsyncIterator[bytes]) -> list[int]:
    """How many callbacks the loop has handled before each frame; one is scheduled with each."""
    handled: list[int] = []
    found = []
    async for _ in frames:
        found.append(len(handled))
        asyncio.get_running_loop().call_soon(handled.append, 1)
    return found


async def rows() -> AsyncGenerator[JobEvent | None]:
    for number in range(FRAMES):
        yield JobEvent(job_id="ftjob-a", sequence=number, type="status", data={})


async def pieces() -> AsyncGenerator[bytes | None]:
    for _ in range(FRAMES):
        yield b"data: a\n\n"


def test_a_job_s_stream_lets_the_loop_run_after_each_event() -> None:
    assert asyncio.run(handled_before_each(_framed(rows(), lambda data: data))) == [0, 0, 2, 3, 4]


def test_a_streamed_answer_lets_the_loop_run_after_each_piece() -> None:
    assert asyncio.run(handled_before_each(_frames(None, pieces()))) == [0, 0, 2, 3, 4]
