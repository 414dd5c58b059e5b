"""`python -m grpo_engine --config job.json --run-dir DIR`: one job, or one rank of it.

`python -m grpo_engine --warm` imports everything first and reads its job from standard input (`prestart.py`).
With `--sampler DESCRIPTOR` it only samples, for another process that trains the job.
Writes `events.jsonl` and `checkpoints/` into the run directory and resumes from their content.
A job with several ranks needs a process for each, with the variables that torchrun sets (RANK, WORLD_SIZE,
MASTER_ADDR, …). Each may have its own run directory; all ranks but the first write only their failures.
SIGTERM: finish the step, write a checkpoint, stop. Exit status: 0 finished or stopped, 1 failed (the
`failed` event says why; without it, a crash), 2 the configuration cannot be read; anything else is a crash.
"""

import argparse
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import PhaseChanged
from grpo_engine.process.setup import set_library_defaults, without_garbage_collector
from grpo_engine.run.engine_errors import failure_of
from grpo_engine.run.prestart import await_job, leave_out_bitsandbytes, load_ahead
from grpo_engine.run.rank_log import open_log

set_library_defaults()


class StopRequest:
    """Set by SIGTERM and SIGINT; checked at every step boundary."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

    def __call__(self) -> bool:
        return self.requested


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grpo_engine", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="config.json of the run")
    parser.add_argument("--sampler", type=int, help="only sample, for requests from this file descriptor")
    parser.add_argument("--run-dir", type=Path, required=True, help="where events and checkpoints go")
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--warm"]:
        load_ahead()
        arguments = await_job()
    options = parser.parse_args(arguments)
    try:
        config = RunConfig.model_validate_json(options.config.read_bytes())
    except (OSError, ValidationError) as error:
        print(f"{options.config}: {error}", file=sys.stderr)
        return 2
    options.run_dir.mkdir(parents=True, exist_ok=True)
    if options.sampler is not None:
        from grpo_engine.run.sampler_process import serve_samples

        serve_samples(config, options.run_dir, options.sampler)
        return 0
    return run(config, options.run_dir, StopRequest())


def run(config: RunConfig, run_dir: Path, should_stop: Callable[[], bool]) -> int:
    """Run the job to its end, writing every event as it happens."""
    journal = open_log(config, run_dir)
    journal.write(PhaseChanged(phase="loading"))
    leave_out_bitsandbytes(config)
    try:
        with without_garbage_collector():
            from grpo_engine.run.build import build_run
            from grpo_engine.run.rank_setup import agreed_by_ranks, joined_ranks

        with joined_ranks(config) as config:
            for event in build_run(config, run_dir).run(agreed_by_ranks(should_stop)):
                journal.write(event)
    except Exception as error:
        failed = failure_of(error)
        if failed is None:
            raise
        traceback.print_exception(error)
        journal.write(failed)
        return 1
    finally:
        journal.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
