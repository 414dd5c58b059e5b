"""Measures many open live streams on one API process, each of a different job with regular events.

Boundary: opens the streams, writes events to the database as workers do, and measures the delay of events
and whether each stream receives every event once and in order.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import text
from starlette.concurrency import run_in_threadpool

from bench.service.client import Call, Client, percentile
from bench.service.deployment import PATH, Api, Deployment

EVENT_SECONDS = 2.0
"""Seconds between two events of a job."""
ROUNDS_PER_INTERVAL = 20
OPENING = 50
"""Maximum streams to open at the same time."""
GRACE_SECONDS = 15.0

APPEND = text(
    "WITH numbered AS (UPDATE jobs SET event_sequence = event_sequence + 1 WHERE id = ANY(:ids) "
    "RETURNING id, event_sequence) "
    "INSERT INTO job_events (job_id, sequence, created_at, level, type, message, data, fence) "
    "SELECT id, event_sequence, extract(epoch FROM clock_timestamp()), 'info', 'metrics', 'Step', "
    "jsonb_build_object('step', event_sequence, 'reward', 0.5, 'at', extract(epoch FROM clock_timestamp())), "
    "1 FROM numbered"
)


@dataclass
class Watched:
    """Events that one stream has received."""

    job_id: str
    numbers: list[int] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    """Seconds from the event's writing to its arrival."""


async def measure_streams(
    deployment: Deployment, api: Api, job_ids: Sequence[str], seconds: float
) -> dict[str, float]:
    """Stream all these jobs. Raises AssertionError if a stream missed or repeated an event."""
    client = Client(api.ports, deployment.headers)
    watched = [Watched(job_id) for job_id in job_ids]
    before = api.memory_bytes
    opened, limit = time.monotonic(), asyncio.Semaphore(OPENING)
    ready = [asyncio.Event() for _ in watched]
    tasks = [
        asyncio.create_task(_watch(client, one, event, limit))
        for one, event in zip(watched, ready, strict=True)
    ]
    await asyncio.gather(*(event.wait() for event in ready))
    opening_seconds = time.monotonic() - opened
    started, cpu = time.monotonic(), api.cpu_seconds
    num_events = await _write_events(deployment, job_ids, seconds)
    elapsed, cpu = time.monotonic() - started, api.cpu_seconds - cpu
    memory = api.memory_bytes - before
    num_missing = await _wait_for_all(watched, num_events)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert num_missing == 0, f"{num_missing} of {num_events} events did not arrive"
    for one in watched:
        expected = list(range(one.numbers[0], one.numbers[0] + len(one.numbers)))
        assert one.numbers == expected, f"{one.job_id} received {one.numbers}"
    lags = sorted(lag for one in watched for lag in one.lags)
    return {
        "streams": len(watched),
        "events": num_events,
        "events_per_second": round(num_events / elapsed, 1),
        "opened_per_second": round(len(watched) / opening_seconds, 1),
        "lag_p50_ms": round(1000 * percentile(lags, 0.5), 1),
        "lag_p99_ms": round(1000 * percentile(lags, 0.99), 1),
        "api_cpu_percent": round(100 * cpu / elapsed, 1),
        "api_memory_growth_mib": round(memory / 2**20, 1),
    }


async def _watch(client: Client, watched: Watched, ready: asyncio.Event, limit: asyncio.Semaphore) -> None:
    """Read one stream, starting at the current end of its job's events."""
    async with limit:
        reader, writer = await client.open()
        writer.write(client.request(Call("GET", f"{PATH}/{watched.job_id}/stream?from=now")))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await reader.readuntil(b"retry:")  # the first frame: the stream is listening
    ready.set()
    try:
        while True:
            line = await reader.readline()
            if line.startswith(b"data: "):
                watched.lags.append(time.time() - json.loads(line[6:])["at"])
            elif line.startswith(b"id: "):
                watched.numbers.append(int(line[4:]))
            elif not line:
                return
    finally:
        writer.close()


async def _write_events(deployment: Deployment, job_ids: Sequence[str], seconds: float) -> int:
    """Write one event per job and interval, spread over the interval."""
    num_events, round_seconds = 0, EVENT_SECONDS / ROUNDS_PER_INTERVAL
    start = time.monotonic()
    for number in range(max(ROUNDS_PER_INTERVAL, round(seconds / round_seconds))):
        await asyncio.sleep(max(0.0, start + number * round_seconds - time.monotonic()))
        turn = list(job_ids[number % ROUNDS_PER_INTERVAL :: ROUNDS_PER_INTERVAL])
        await run_in_threadpool(_append, deployment, turn)
        num_events += len(turn)
    return num_events


def _append(deployment: Deployment, job_ids: list[str]) -> None:
    with deployment.database.engine.begin() as connection:
        connection.execute(APPEND, {"ids": job_ids})


async def _wait_for_all(watched: Sequence[Watched], num_events: int) -> int:
    """Number of events that have not arrived after the grace period."""
    end = time.monotonic() + GRACE_SECONDS
    while True:
        missing = num_events - sum(len(one.numbers) for one in watched)
        if missing <= 0 or time.monotonic() > end:
            return missing
        await asyncio.sleep(0.1)
