"""`python -m worker [--pool NAME] [--once]`: a polling worker."""

import argparse

from service.platform import logs
from service.settings import settings_or_exit
from worker.attempt.worker import Worker, worker_name
from worker.loop import try_job, work
from worker.supervision import stop_flag


def main() -> None:
    """Run until SIGTERM, which releases running jobs after a checkpoint; with --once, run at most one job."""
    parser = argparse.ArgumentParser(prog="worker", description=__doc__)
    parser.add_argument("--pool", help="claim jobs of this pool only (default: GRPO_POOL)")
    parser.add_argument("--once", action="store_true", help="run at most one job, then exit")
    given = parser.parse_args()
    settings = settings_or_exit(**({} if given.pool is None else {"pool": given.pool}))
    logs.own_process(settings.log_level)
    worker = Worker.open(settings, worker_name(), stop_flag())
    (try_job if given.once else work)(worker)
    worker.close()


if __name__ == "__main__":
    main()
