"""`python -m worker.healthcheck [--seconds N]`: exit status 0 while the main loop of this host's worker runs.

It checks only the file that the main loop touches, because an unavailable database or broker is no reason to
restart the worker.
"""

import argparse
import sys
import time

from service.settings import settings_or_exit


def main() -> None:
    """Print the age of the file. Exit status 1 if it is too old or missing."""
    parser = argparse.ArgumentParser(prog="worker.healthcheck", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="maximum age (default: 60)")
    limit_seconds = parser.parse_args().seconds
    try:
        touched_at = settings_or_exit().alive_file.stat().st_mtime
    except FileNotFoundError:
        sys.exit("no worker has started here yet")
    age_seconds = time.time() - touched_at
    message = f"the worker's main loop last ran {age_seconds:.0f} s ago"
    if age_seconds > limit_seconds:
        sys.exit(message)
    print(message)


if __name__ == "__main__":
    main()
