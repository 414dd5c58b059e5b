"""Uploads a dataset with progress, converted to JSONL if it is in another format."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.cli.http.client import Client
from service.cli.terminal.errors import CommandError, explained
from service.cli.terminal.progress import transfer


@contextmanager
def prepared(
    source: str, *, split: str | None = None, columns: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """The dataset as a JSONL file, converted if it is in another format. Raises CommandError."""
    from service.importing.dataset_formats import Unreadable, as_jsonl

    try:
        with as_jsonl(source, split=split, columns=columns) as path:
            yield path
    except Unreadable as error:
        raise CommandError(str(error), code="dataset_unreadable") from error
    except OSError as error:
        raise CommandError(f"{source}: {error.strerror or error}") from error


def uploaded(
    client: Client, source: str, *, split: str | None = None, columns: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Uploads the dataset and returns the stored file. Raises CommandError, Interrupted."""
    is_sent = False

    def meaning() -> str:
        if is_sent:
            return (
                "The whole file was sent and may be stored: `grpo files list` shows it. No job was created."
            )
        return "Upload interrupted: nothing was stored or created."

    with prepared(source, split=split, columns=columns) as path, transfer(f"upload {path.name}") as advance:

        def sent(num_bytes: int, total: int) -> None:
            nonlocal is_sent
            is_sent = num_bytes == total
            advance(num_bytes, total)

        with explained(meaning):
            return client.upload(path, sent)
