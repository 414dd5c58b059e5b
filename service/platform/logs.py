"""One JSON object per log line on standard error, without secrets, also for uvicorn, Celery and Alembic.

Configures structlog and the standard library. A worker binds the fields of an attempt
(`structlog.contextvars`); `REQUEST` provides those of a request when a line is written.
"""

import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

OUR_LEVEL = ("service", "worker", "uvicorn", "celery")
"""Standard loggers with the configured level. All others log only warnings and errors, because otherwise HTTP
clients would log whole URLs and headers, and Alembic each inspection of the schema."""
REQUEST: ContextVar[Callable[[], Mapping[str, Any]] | None] = ContextVar("request", default=None)
"""Returns the fields of the current request."""

_SECRET_NAMES = re.compile(r"authorization|cookie|secret|password|api_?key|(^|_)token$", re.IGNORECASE)
_MASKS = (
    (re.compile(r"\b(grpo_[0-9A-Za-z]+)_[0-9A-Za-z]+"), r"\1_***"),
    # includes a password with a slash, which makes the URL invalid so that an error message shows it;
    # bounded, because a job's output may be a megabyte of `://a:`
    (re.compile(r"(://[^:/@\s\"]*):[^@\s\"]{1,1024}@"), r"\1:***@"),
    (re.compile(r"\b(bearer)(\s+)[^\s\"',]+", re.IGNORECASE), r"\1\2***"),
    (re.compile(r"(password|secret|api_?key|signature|access_token)=[^&\s\"']+", re.IGNORECASE), r"\1=***"),
    (re.compile(r"\bwhsec_[0-9A-Za-z+/=]+"), "whsec_***"),
)


class _Lines:
    """Writes to the current `sys.stderr`. A line that it refuses is lost: a full disk must end no attempt."""

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


_LINES = cast(TextIO, _Lines())
"""One for all loggers, because structlog keeps a lock for each file."""


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which tests replace."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure(level: str = "INFO") -> None:
    """Configure this process; call it again after a server has configured its own logging."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*_beginning(), *_ending()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # one write per line, so that lines of several processes do not mix
        logger_factory=lambda *_names: structlog.WriteLogger(_LINES),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [each for each in root.handlers if not isinstance(each, _Stderr)] + [_bridge()]
    root.setLevel(logging.WARNING)
    for name in OUR_LEVEL:
        logging.getLogger(name).setLevel(number)
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
        logging.getLogger(name).setLevel(number)
    # its lines contain query strings; the middleware writes its own
    logging.getLogger("uvicorn.access").disabled = True


def own_process(level: str) -> None:
    """Like `configure`, and logs uncaught exceptions and warnings; for the service's own programs."""
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
    return [structlog.processors.format_exc_info, drop_secrets, to_json, lambda _, __, line: mask(str(line))]


def _bridge() -> logging.Handler:
    """Formats lines of the standard library in the same way, with their logger's name."""
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
    """Drop the values of fields with a secret's name."""
    for name in event:
        if _SECRET_NAMES.search(name):
            event[name] = "[dropped]"
    return event


def mask(text: str) -> str:
    """The text without keys and passwords of a recognisable form."""
    for shape, shown in _MASKS:
        text = shape.sub(shown, text)
    return text
