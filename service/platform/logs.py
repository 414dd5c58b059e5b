"""One JSON object a line on standard error, without secrets; lines of uvicorn, Celery and Alembic too.

`structlog.get_logger()` and `logging.getLogger()` are used as everywhere else. A worker binds what an attempt
is (`structlog.contextvars`); what a request is, its middleware knows and says when a line is written.
Boundary: the configuration of both; what is worth a line is decided where it happens.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

TOLD = ("service", "worker", "uvicorn", "celery")
"""Loggers of the standard library that speak at our level. All others only warn: below that, HTTP clients
print whole URLs and headers, and Alembic a line with every look at the schema."""
REQUEST: ContextVar[Callable[[], Mapping[str, Any]] | None] = ContextVar("request", default=None)
"""What is known by now of the request that is being answered."""

_SECRET_NAMES = re.compile(r"authorization|cookie|secret|password|api_?key|(^|_)token$", re.IGNORECASE)
_MASKS = (
    (re.compile(r"\b(grpo_[0-9A-Za-z]+)_[0-9A-Za-z]+"), r"\1_***"),
    # also a password with a slash in it, which breaks the URL, so that it is shown in an error
    (re.compile(r"(://[^:/@\s\"]*):[^@\s\"]+@"), r"\1:***@"),
    (re.compile(r"\b(bearer)(\s+)[^\s\"',]+", re.IGNORECASE), r"\1\2***"),
    (re.compile(r"(password|secret|api_?key|signature|access_token)=[^&\s\"']+", re.IGNORECASE), r"\1=***"),
    (re.compile(r"\bwhsec_[0-9A-Za-z+/=]+"), "whsec_***"),
)


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what is standard error at the time of the line."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure(level: str = "INFO") -> None:
    """Set both up for this process; once more takes back what a server has set up for itself meanwhile."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*_beginning(), *_ending()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # one write a line: lines of several processes must not run into each other
        logger_factory=lambda *_names: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [each for each in root.handlers if not isinstance(each, _Stderr)] + [_bridge()]
    root.setLevel(logging.WARNING)
    for name in TOLD:
        logging.getLogger(name).setLevel(number)
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
        logging.getLogger(name).setLevel(number)
    # its lines hold query strings; the middleware writes its own
    logging.getLogger("uvicorn.access").disabled = True


def own_process(level: str) -> None:
    """`configure`, and what nobody catches becomes a line too. For programs that are ours from the start."""
    configure(level)
    logging.captureWarnings(True)
    sys.excepthook = lambda *error: _log_uncaught(error)
    threading.excepthook = lambda given: _log_uncaught(
        (given.exc_type, given.exc_value or given.exc_type(), given.exc_traceback), thread=given.thread
    )


def _log_uncaught(error: Any, thread: threading.Thread | None = None) -> None:
    if issubclass(error[0], KeyboardInterrupt | SystemExit):
        return
    name = {"thread": thread.name} if thread else {}
    structlog.get_logger().critical("uncaught exception", exc_info=error, **name)


def _beginning() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        _add_request,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _ending() -> list[Processor]:
    to_json = structlog.processors.JSONRenderer(default=str)
    return [structlog.processors.format_exc_info, drop_secrets, to_json, _mask_line]


def _bridge() -> logging.Handler:
    """Lines of the standard library in the same shape, with their logger's name."""
    foreign = [*_beginning(), structlog.stdlib.add_logger_name]
    processors = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_ending()]
    handler = _Stderr()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=foreign, processors=processors)
    )
    return handler


def _add_request(_logger: Any, _method: str, event: EventDict) -> EventDict:
    facts = REQUEST.get()
    return event if facts is None else {**facts(), **event}


def drop_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Fields with a secret's name lose their value."""
    for name in event:
        if _SECRET_NAMES.search(name):
            event[name] = "[dropped]"
    return event


def mask(text: str) -> str:
    """The text without the keys and passwords that can be told by their shape."""
    for shape, shown in _MASKS:
        text = shape.sub(shown, text)
    return text


def _mask_line(_logger: Any, _method: str, line: Any) -> str:
    return mask(line)
