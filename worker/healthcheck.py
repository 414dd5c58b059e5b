"""`python -m worker.healthcheck [--seconds N]`: exit status 0 while the worker of this home lives.

It looks at the file that the worker's main loop touches, and at nothing else: a worker is not to be restarted
because the database or the broker is away.
"""

from __future__ import annotations

import argparse
import sys
import time

from service.settings import Settings


def main() -> None:
    """Prints how old the file is. Exit status 1: too old, or there is none."""
    parser = argparse.ArgumentParser(prog="worker.healthcheck", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="older than this is dead (default: 60)")
    limit_seconds = parser.parse_args().seconds
    try:
        age_seconds = time.time() - Settings().alive_file.stat().st_mtime
    except FileNotFoundError:
        sys.exit("no worker has run here yet")
    said = f"the worker's main loop was seen {age_seconds:.0f} s ago"
    if age_seconds > limit_seconds:
        sys.exit(said)
    print(said)


if __name__ == "__main__":
    main()
