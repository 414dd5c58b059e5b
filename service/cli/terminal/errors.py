"""Errors that end a command: one line for people, JSON with `--json`, and an exit code."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

PAGE = "docs/reference/errors.md"


def place_of(code: str, *, is_failure: bool = False) -> str:
    """The place in the documentation that explains an error code, or the code of a failed job."""
    return f"{PAGE}#{'failed-' if is_failure else ''}{code}"


class CommandError(Exception):
    """The command cannot continue. `code` and `param` are the API's, if the API refused the request.

    is_failure: the code is that of a failed job, probe or export.
    """

    exit_code = 1
    prefix = "Error: "

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        hint: str | None = None,
        is_failure: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.hint = hint
        # a status without a code is from another server
        self.doc = place_of(code, is_failure=is_failure) if code and not code.isdigit() else None

    def document(self) -> dict[str, dict[str, str | None]]:
        """`{"error": {message, code, param, hint, doc}}`."""
        names = ("message", "code", "param", "hint", "doc")
        return {"error": {name: getattr(self, name) for name in names}}

    def line(self) -> str:
        """`message [code=… param=…] Hint: … See PAGE#code` without line breaks."""
        named = (("code", self.code), ("param", self.param))
        details = " ".join(f"{name}={value}" for name, value in named if value)
        parts = [self.message, f"[{details}]" if details else "", f"Hint: {self.hint}" if self.hint else ""]
        parts.append(f"See {self.doc}" if self.doc else "")
        return " ".join(" ".join(part.split()) for part in parts if part)


def failed(found: Mapping[str, Any], log_command: str) -> CommandError:
    """The error of a failed probe or export, with the command that prints its log."""
    failure = found["failure"]
    hint = f"{failure['hint']} `{log_command}` prints its log".strip()
    return CommandError(failure["message"], code=failure["code"], hint=hint, is_failure=True)


class Interrupted(CommandError):
    """The user pressed Ctrl-C; the message says what happened to the work in progress."""

    exit_code = 130  # 128 + SIGINT, as in shells
    prefix = "\n"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="interrupted")

    def line(self) -> str:
        return self.message


@contextmanager
def interruptible(message: Callable[[], str]) -> Iterator[None]:
    """Raises Interrupted on Ctrl-C, with what `message` returns at that moment."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(message()) from error
