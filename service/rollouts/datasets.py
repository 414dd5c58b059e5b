"""The dataset rows of rollouts: their messages for exports, their fields for graders.

Rollouts contain only the rendered prompt and the row's number. A file's content never changes, so it has the
row until its owner deletes it.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from service.files import repository as files
from service.jobs.model.dataset import parse_line
from service.platform.db import Database
from service.platform.errors import InvalidRequest
from service.platform.storage import Storage
from service.platform.tables.core import Job

TrainedSplit = Literal["train", "validation"]


@dataclass(frozen=True)
class Dataset:
    """A job's file that still exists."""

    file_id: str
    key: str
    storage: Storage

    def rows(
        self, wanted: Iterable[int], *, max_bytes: float = math.inf
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """(Number, row) of the wanted rows, whose numbers ascend.

        The rows are first copied to a temporary file, so that a slow reader does not block the store.
        Raises InvalidRequest if they have more than `max_bytes` together.
        """
        numbers = list(wanted)
        with tempfile.TemporaryFile() as copy:
            for line in self._lines(numbers):
                copy.write(line.rstrip(b"\r\n") + b"\n")
                if copy.tell() > max_bytes:
                    message = f"limit: the rows exceed {max_bytes:g} bytes. Request fewer completions."
                    raise InvalidRequest(message, param="limit", code="rows_too_large")
            copy.seek(0)
            for number, line in zip(numbers, copy, strict=True):
                yield number, parse_line(line)

    def _lines(self, numbers: list[int]) -> Iterator[bytes]:
        """The lines of these rows. Raises LookupError if the file has no such row."""
        rows = enumerate(line for line in self.storage.lines(self.key) if line.strip())
        for number in numbers:
            line = next((line for at, line in rows if at == number), None)
            if line is None:
                raise LookupError(f"{self.file_id} has no row {number}")
            yield line


def find_dataset(database: Database, storage: Storage, job: Job, split: TrainedSplit) -> Dataset:
    """The file that the split's rows came from. Raises InvalidRequest if it was deleted or has expired."""
    is_held_out = split == "validation" and job.validation_split is None
    param = "validation_file" if is_held_out else "training_file"  # a split's rows keep their numbers
    file_id = getattr(job, param)
    if file_id is None:
        raise InvalidRequest("split: this job has no validation file.", param="split")
    with database.reading() as session:
        file = files.find(session, job.tenant, file_id)
    if file is None or not storage.exists(file.storage_key):
        message = (
            f"The {param} {file_id} was deleted or has expired, so the rows of the rollouts are gone. "
            "The rollouts still have each prompt as the model read it."
        )
        raise InvalidRequest(message, param=param, code="file_not_found")
    return Dataset(file_id, file.storage_key, storage)
