"""The process of one sink of one job: `python -m worker.sinks JOB TYPE CLAIM`.

If it hangs, crashes or is killed, the next process writes the missing steps. The keeper ends a process that
no longer renews its claim.
"""

import argparse
import os
import sys

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.jobs.store.machines import SINK_PACKAGES, install_hint
from service.platform import logs
from service.platform.db import Database, connect, reason_of
from service.settings import Settings
from service.sinks import outbox
from worker.masking import mask_secrets
from worker.sinks.base import Sink, SinkJob
from worker.supervision import Flag, stop_flag

logger = structlog.get_logger()

POLL_SECONDS = 1.0
"""Time between two queries for new steps."""
RENEW_POLLS = 20
"""A claim is renewed at least once in this many queries."""
MLFLOW = {
    "MLFLOW_CONFIGURE_LOGGING": "false",  # its lines of the log are not JSON
    # its defaults wait for an unreachable server longer than a claim lasts
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
"""Environment variables that MLflow reads, unless the operator has set them."""
DATABASE_UNAVAILABLE = os.EX_TEMPFAIL
"""Exit code if the sink itself did not fail; its claim expires, and the next process continues."""


def opened(kind: str, job: SinkJob) -> Sink:
    """Open the sink. Its package is imported only here and may raise anything."""
    if kind == "tensorboard":
        from worker.sinks.tensorboard_files import TensorboardFiles

        return TensorboardFiles(job)
    if kind == "mlflow":
        from worker.sinks.mlflow_runs import MlflowRun

        return MlflowRun(job)
    from worker.sinks.wandb_runs import WandbRun

    return WandbRun(job)


def write_all(database: Database, settings: Settings, claim: outbox.Claim, stopping: Flag) -> None:
    """Write all steps until the job pauses or ends, or another process takes over the claim."""
    with database.reading() as session:
        rows = outbox.claimed_rows(session, claim)
    if rows is None:
        return
    sink = opened(claim.type, SinkJob.of(*rows, settings))
    state = follow(database, claim, sink, stopping)
    if state is None:
        return
    sink.close(state.state)
    with database.transaction() as session:
        (outbox.finish if state.is_over else outbox.release)(session, claim)


def follow(database: Database, claim: outbox.Claim, sink: Sink, stopping: Flag) -> outbox.NewMetrics | None:
    """Write new steps until the job pauses or ends, or `stopping` is set.

    Returns the newest state; None if the claim was lost.
    """
    step, num_idle = sink.last_step, 0
    while True:
        with database.reading() as session:
            if not outbox.is_held(session, claim):  # this process was frozen, or the job is deleted
                return None
            found = outbox.new_metrics(session, claim.job_id, step)
        for row in found.rows:
            step = row["step"]
            sink.write(step, {name: value for name, value in row.items() if name != "step"})
        num_idle = 0 if found.rows else num_idle + 1
        if found.rows or num_idle >= RENEW_POLLS:
            sink.flush()
            num_idle = 0
            with database.transaction() as session:
                if not outbox.advance(session, claim, step):
                    return None
        if found.is_over or found.is_at_rest or stopping.is_set():
            return found
        if not found.has_more:
            stopping.wait(POLL_SECONDS)


def public_reason(kind: str, error: Exception) -> str:
    """Text of the error for users, without secrets."""
    if isinstance(error, ModuleNotFoundError) and error.name == SINK_PACKAGES[kind]:
        return f"{kind} is not installed on the worker; {install_hint(kind)}."
    text = mask_secrets(" ".join(str(error).split())) or type(error).__name__
    return f"{type(error).__name__}: {text}" if text[-1:] in ".!?" else f"{type(error).__name__}: {text}."


def run(database: Database, settings: Settings, claim: outbox.Claim, stopping: Flag) -> int:
    """Write the sink's steps. Returns the exit code, which is 0 even if a failure was recorded."""
    try:
        write_all(database, settings, claim, stopping)
    except SQLAlchemyError as error:
        logger.warning("database unavailable", error=reason_of(error))
        return DATABASE_UNAVAILABLE
    except Exception as error:  # noqa: BLE001 - the sink's package may raise anything; the job's history shows it
        reason = public_reason(claim.type, error)
        logger.warning("sink failed", job=claim.job_id, sink=claim.type, reason=reason)
        with database.transaction() as session:
            outbox.fail(session, claim, reason)
    return 0


def main() -> None:
    """Run until everything is written or SIGTERM arrives."""
    parser = argparse.ArgumentParser(prog="worker.sinks", description=__doc__)
    parser.add_argument("job_id")
    parser.add_argument("type", choices=sorted(SINK_PACKAGES))
    parser.add_argument("claim", type=int)
    given = parser.parse_args()
    for name, value in MLFLOW.items():
        os.environ.setdefault(name, value)
    settings = Settings()
    logs.own_process(settings.log_level)
    stopping = stop_flag()
    database = connect(settings)
    code = run(database, settings, outbox.Claim(given.job_id, given.type, given.claim), stopping)
    database.engine.dispose()
    sys.exit(code)


if __name__ == "__main__":
    main()
