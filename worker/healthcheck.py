"""`python -m worker.healthcheck [--seconds N]`: exit status 0 while the worker of this home lives.

It checks only the file that the worker's main loop touches: a worker must not be restarted because the
database or the broker is down.
"""

from __future__ import annotations

import argparse
import sys
import time

from service.settings import Settings


def main() -> None:
    """Print the age of the file. Exit status 1: too old, or missing."""
    parser = argparse.ArgumentParser(prog="worker.healthcheck", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="maximum age (default: 60)")
    limit_seconds = parser.parse_args().seconds
    try:
        age_seconds = time.time() - Settings().alive_file.stat().st_mtime
    except FileNotFoundError:
        sys.exit("no worker has run here yet")
    message = f"the worker's main loop was seen {age_seconds:.0f} s ago"
    if age_seconds > limit_seconds:
        sys.exit(message)
    print(message)


if __name__ == "__main__":
    main()
