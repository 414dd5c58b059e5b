"""One file of a job, row by row: readable, of the right shape, gradable, short enough, and not seen twice.

Boundary: reads storage; what is found goes to the request's problems and warnings. The checks themselves
are `dataset.py`'s, `lengths.py`'s, `duplicates.py`'s and `grader_trial.py`'s.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_engine.config.job import Method, Supervised
from grpo_engine.config.tools import function_schemas
from grpo_engine.graders import Grader
from service.jobs.intake.checks.duplicates import DuplicateCheck
from service.jobs.intake.checks.grader_trial import try_grader
from service.jobs.intake.checks.method import Warn
from service.jobs.intake.estimate import RowTokens
from service.jobs.intake.lengths import LengthCheck
from service.jobs.model.dataset import Problems, Row, read_rows
from service.jobs.model.methods import DatasetUse, leaves, tools_of
from service.platform.storage import ObjectMissing, Storage, split_lines
from service.platform.tables.core import File
from service.platform.token_counting import ModelText
from service.settings import Settings

TRIAL_ROWS = 3
SHOWN_FIELDS, SHOWN_LETTERS = 8, 40
_ALONE = re.compile(r"\{\{\s*item\.([A-Za-z_]\w*)\s*\}\}")


@dataclass(frozen=True)
class FileCheck:
    """The checks of one request's files."""

    storage: Storage
    settings: Settings
    method: Method
    text: ModelText | None
    """None: lengths are not checked."""
    context_tokens: int | None
    problems: Problems
    warn: Warn
    duplicates: DuplicateCheck
    row_tokens: dict[str, RowTokens] = field(default_factory=dict)
    """By the field that names the file: how long its rows are, if they were counted."""

    def num_rows(self, use: DatasetUse, file: File | None) -> int:
        """Number of usable rows; what is wrong with the file goes to the problems."""
        if file is None:
            self.problems.add(use.param, f"there is no file {use.file_id}", code="file_not_found")
            return 0
        if file.purpose != "fine-tune":
            reason = f"{file.id} has the purpose {file.purpose!r}, not 'fine-tune'"
            self.problems.add(use.param, reason, code="invalid_file_purpose")
            return 0
        try:
            return self._count_checked(use, split_lines(self.storage.stream(file.storage_key)))
        except ObjectMissing:
            reason = f"the content of {file.id} is no longer stored: upload the file again"
            self.problems.add(use.param, reason, code="file_not_found")
        return 0

    def _count_checked(self, use: DatasetUse, lines: Iterable[bytes]) -> int:
        lengths: LengthCheck | None = None
        rows: Iterable[Row] = read_rows(
            lines,
            file=use.param,
            kind="supervised" if isinstance(self.method, Supervised) else "reinforcement",
            max_rows=self.settings.max_rows,
            problems=self.problems,
        )
        if self.text is not None:
            tools = tuple(function_schemas(tools_of(self.method)))
            lengths = LengthCheck(
                self.text, self.method, self.context_tokens, use.param, self.problems, tools
            )
            rows = lengths.watch(rows)
        rows = self.duplicates.watch(rows, use.param)
        num_rows = sum(1 for _ in self._graded(rows, use))
        if lengths is not None:
            self.row_tokens[use.param] = lengths.counted
        return num_rows

    def _graded(self, rows: Iterable[Row], use: DatasetUse) -> Iterator[Row]:
        """The same rows, after the grader's templates were resolved and its trial was run on them."""
        if use.grader is None:
            yield from rows
            return
        trial: list[Row] = []
        alone, nulls = _alone(use.grader), Counter[str]()
        for row in rows:
            nulls.update(name for name in alone if row.item.get(name, "") is None)
            if self._is_gradable(row, f"{use.param}[{row.line}]", use.grader) and len(trial) < TRIAL_ROWS:
                trial.append(row)
            yield row
        is_new = use.param == "training_file" or not use.grader_param.endswith(f"{self.method.type}.grader")
        for name, count in nulls.items():
            rows_with = "1 row" if count == 1 else f"{count} rows"
            text = f'{{{{item.{name}}}}} is null in {rows_with}; the grader reads it as the text "null".'
            self.warn("null_reference", f"{use.param}: {text}")
        if is_new:
            try_grader(use.grader, trial, self.problems, self.warn, use.grader_param)

    def _is_gradable(self, row: Row, place: str, grader: Grader) -> bool:
        """Whether the grader can score some completion of this row; if not, why goes to the problems."""
        paths = grader.unresolved(row.item)
        for path in paths:
            where = f"{place}.{path.removeprefix('item.')}"
            reason = f"the grader's {{{{{path}}}}} is not in this row, {_fields(row.item)}"
            self.problems.add(where, reason)
        sentences = [] if paths else grader.problems(row.item)
        for sentence in sentences:
            self.problems.add(place, f"the grader cannot score this row: {sentence}")
        return not paths and not sentences


def _alone(grader: Grader) -> set[str]:
    """Fields of the row that are the whole of some template."""
    texts = [text for _, rule in leaves("", grader) for text in rule.templates().values()]
    return {found[1] for text in texts if (found := _ALONE.fullmatch(text))}


def _fields(item: Mapping[str, Any]) -> str:
    """The fields that a grader can name, for the message about one that is missing."""
    shown = ", ".join(name[:SHOWN_LETTERS] for name in sorted(item)[:SHOWN_FIELDS])
    more = ", …" if len(item) > SHOWN_FIELDS else ""
    return f"which has {shown}{more}" if item else "which has no field beside its messages"
