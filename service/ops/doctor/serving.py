"""Whether this machine reaches the servers of loaded models, as the API must."""

from collections.abc import Iterator

import httpx
from sqlalchemy.exc import SQLAlchemyError

from service.ops.doctor.findings import Finding, ok, warning
from service.platform.db import connect
from service.serving import repository
from service.settings import Settings

CONNECT_SECONDS = 3.0
ADVICE = (
    "Set GRPO_SERVE_HOST on that worker to a name or address that the API reaches, and allow the API to "
    "connect to its ports."
)


def model_servers(settings: Settings) -> Iterator[Finding]:
    """Connects to each registered server with its secret; no finding if no model is loaded."""
    opened = connect(settings)
    try:
        with opened.reading() as session:
            servers = repository.served(session)
    except SQLAlchemyError:
        return  # the check of the database reports it
    finally:
        opened.engine.dispose()
    problems = [problem for server in servers if (problem := _problem(*server))]
    yield from problems
    if servers and not problems:
        yield ok("model servers", f"reached: {', '.join(sorted(model for model, *_ in servers))}")


def _problem(model: str, worker: str, address: str, secret: str) -> Finding | None:
    headers = {"authorization": f"Bearer {secret}"}
    try:
        httpx.get(
            f"{address}/health", headers=headers, trust_env=False, timeout=CONNECT_SECONDS
        ).raise_for_status()
    except httpx.HTTPError as error:
        found = f"{model} on {worker} at {address}: {type(error).__name__}"
        return warning("model servers", found, ADVICE)
    return None
