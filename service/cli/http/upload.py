"""Uploads a dataset with progress, converted to JSONL if it is in another format."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.cli.http.client import Client
from service.cli.terminal.errors import CommandError, interruptible
from service.cli.terminal.progress import transfer


@dataclass(frozen=True)
class Content:
    """Summary of a JSONL file."""

    name: str
    num_rows: int
    columns: tuple[str, ...]
    """Fields of all rows, in the order of their first appearance."""
    first: dict[str, Any]


@contextmanager
def prepared(source: str, **conversion: Any) -> Iterator[Path]:
    """The dataset as a JSONL file, converted if it is in another format; `conversion` as in `as_jsonl`.

    Raises CommandError.
    """
    from service.importing.dataset_formats import Unreadable, as_jsonl

    try:
        with as_jsonl(source, **conversion) as path:
            yield path
    except Unreadable as error:
        raise CommandError(str(error), code="dataset_unreadable") from error
    except OSError as error:
        raise CommandError(f"{source}: {error.strerror or error}") from error


def content_of(path: Path) -> Content:
    """The file's summary, read line by line. Raises Unreadable naming the first broken line."""
    from service.importing.dataset_formats import jsonl_rows

    num_rows, columns, first = 0, dict[str, None](), dict[str, Any]()
    for row in jsonl_rows(path):
        num_rows += 1
        columns |= dict.fromkeys(row)
        first = first or row
    return Content(path.name, num_rows, tuple(columns), first)


def uploaded(
    client: Client,
    source: str,
    *,
    show: Callable[[Content], None] = lambda content: None,
    **conversion: Any,
) -> dict[str, Any]:
    """Uploads the dataset and returns the stored file; `show` receives its content first.

    Raises CommandError, Interrupted.
    """
    is_sent = False

    def interrupt_message() -> str:
        if is_sent:
            return (
                "The whole file was sent and may be stored: `grpo files list` shows it. No job was created."
            )
        return "Upload interrupted: nothing was stored or created."

    with prepared(source, **conversion) as path:
        show(content_of(path))
        with transfer(f"upload {path.name}") as advance, interruptible(interrupt_message):

            def sent(num_bytes: int, total: int) -> None:
                nonlocal is_sent
                is_sent = num_bytes == total
                advance(num_bytes, total)

            return client.upload(path, sent)
