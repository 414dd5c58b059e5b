"""`python -m service [--host HOST] [--port PORT]`: the API process, uvicorn with `service.app`."""

import argparse

import uvicorn

from grpo_engine.process.setup import without_garbage_collector

STREAM_GRACE_SECONDS = 5
"""Time from SIGTERM until open streams are cut; their clients resume with Last-Event-ID."""


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on")
    given = parser.parse_args()
    with without_garbage_collector():  # a collection would pause requests for 250 ms
        from service.app import create_app
    uvicorn.run(
        create_app,
        factory=True,  # called after uvicorn has configured its logging, which the application replaces
        **vars(given),
        http="h11",  # strict, with bounded headers; by default uvicorn uses httptools if it is installed
        access_log=False,
        timeout_graceful_shutdown=STREAM_GRACE_SECONDS,
    )


if __name__ == "__main__":
    main()
