"""One sink of one job, in a process of its own: `python -m worker.sinks JOB TYPE CLAIM`.

It may hang, crash or be killed: what it has not told, the next one tells. Its keeper ends it when it no
longer renews its claim.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.jobs.store.sink_packages import PACKAGES, advice
from service.platform import logs
from service.platform.db import Database, connect
from service.settings import Settings
from service.sinks import outbox
from worker.masking import mask_secrets
from worker.sinks.base import About, Sink

logger = structlog.get_logger()

LOOK_SECONDS = 1.0
"""Between two looks for steps."""
RENEW_LOOKS = 20
"""A claim is renewed at least once in so many looks."""
AWAY = os.EX_TEMPFAIL
"""Exit code where nothing is wrong with the sink: its claim ends by itself, and the next one goes on."""


def opened(kind: str, about: About) -> Sink:
    """The sink; its package is imported only here. Raises whatever that package raises."""
    if kind == "tensorboard":
        from worker.sinks.tensorboard_files import TensorboardFiles

        return TensorboardFiles(about)
    if kind == "mlflow":
        from worker.sinks.mlflow_runs import MlflowRun

        return MlflowRun(about)
    from worker.sinks.wandb_runs import WandbRun

    return WandbRun(about)


def tell(database: Database, settings: Settings, claim: outbox.Claim, stopping: threading.Event) -> None:
    """Everything there is, and what comes, until the job rests, ends, or somebody else tells it."""
    with database.reading() as session:
        target = outbox.target(session, claim)
    if target is None:
        return
    sink = opened(claim.type, About.of(target, settings))
    state = follow(database, claim, sink, stopping)
    if state is None:
        return
    sink.close(state.state)
    with database.transaction() as session:
        (outbox.finish if state.is_over else outbox.release)(session, claim)


def follow(
    database: Database, claim: outbox.Claim, sink: Sink, stopping: threading.Event
) -> outbox.News | None:
    """The last look; None where the claim is not ours any more."""
    step, looks = sink.last_step, 0
    while True:
        with database.reading() as session:
            found = outbox.news(session, claim.job_id, step)
        for row in found.rows:
            step = row["step"]
            sink.write(step, {name: value for name, value in row.items() if name != "step"})
        looks = 0 if found.rows else looks + 1
        if found.rows or looks >= RENEW_LOOKS:
            sink.flush()
            looks = 0
            with database.transaction() as session:
                if not outbox.advance(session, claim, step):
                    return None
        if found.is_over or found.is_at_rest or stopping.is_set():
            return found
        if not found.has_more:
            stopping.wait(LOOK_SECONDS)


def public_reason(kind: str, error: Exception) -> str:
    """What a user may read of it: nothing that the environment keeps secret."""
    if isinstance(error, ModuleNotFoundError) and error.name == PACKAGES[kind]:
        return f"{kind} is not there on the worker; {advice(kind)}."
    text = mask_secrets(" ".join(str(error).split())) or type(error).__name__
    return f"{type(error).__name__}: {text}" if text[-1:] in ".!?" else f"{type(error).__name__}: {text}."


def run(database: Database, settings: Settings, claim: outbox.Claim, stopping: threading.Event) -> int:
    """The exit code: 0 also where a failure is on record."""
    try:
        tell(database, settings, claim, stopping)
    except SQLAlchemyError as error:
        logger.warning("database away", error=type(error).__name__)
        return AWAY
    except Exception as error:  # noqa: BLE001 - a foreign package raises what it likes; the job is told
        reason = public_reason(claim.type, error)
        logger.warning("sink failed", job=claim.job_id, sink=claim.type, reason=reason)
        with database.transaction() as session:
            outbox.fail(session, claim, reason)
    return 0


def main() -> None:
    """Until all is told, or SIGTERM."""
    parser = argparse.ArgumentParser(prog="worker.sinks", description=__doc__)
    parser.add_argument("job_id")
    parser.add_argument("type", choices=sorted(PACKAGES))
    parser.add_argument("claim", type=int)
    given = parser.parse_args()
    os.environ.setdefault("MLFLOW_CONFIGURE_LOGGING", "false")  # its lines would not be ours
    settings = Settings()
    logs.own_process(settings.log_level)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_signal: stopping.set())
    database = connect(settings)
    code = run(database, settings, outbox.Claim(given.job_id, given.type, given.claim), stopping)
    database.engine.dispose()
    sys.exit(code)


if __name__ == "__main__":
    main()
