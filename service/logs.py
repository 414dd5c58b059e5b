"""One JSON object a line on standard error, without secrets.

Boundary: configuration of structlog; `structlog.get_logger()` is used as it is everywhere else.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_SECRET_NAMES = re.compile(r"authorization|cookie|secret|password|api_?key|(^|_)token$", re.IGNORECASE)
_API_KEY = re.compile(r"\b(grpo_[0-9A-Za-z]+)_[0-9A-Za-z]+")
_URL_PASSWORD = re.compile(r"(://[^:/@\s]*):[^@/\s]+@")


def configure(level: str = "INFO") -> None:
    """Set structlog up for this process, and silence uvicorn's access log: its lines hold query strings."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            drop_secrets,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_names: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.getLogger("uvicorn.access").disabled = True


def drop_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Fields with a secret's name lose their value; keys and passwords inside texts are masked."""
    for name, value in event.items():
        if _SECRET_NAMES.search(name):
            event[name] = "[dropped]"
        elif isinstance(value, str):
            event[name] = _URL_PASSWORD.sub(r"\1:***@", _API_KEY.sub(r"\1_***", value))
    return event
