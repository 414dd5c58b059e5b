"""Checks each file of a job, row by row: readable, of the right shape, gradable, short enough, not repeated.

Problems and warnings go to the request's report.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_engine.config.job import Method, Supervised
from grpo_engine.config.tools import function_schemas
from grpo_engine.config.validation_split import held_out_rows, prompt_digest
from grpo_engine.graders import Grader, template
from service.jobs.intake.checks.duplicates import DuplicateCheck
from service.jobs.intake.checks.environments import Resets, watch_environments
from service.jobs.intake.checks.grader_trial import try_grader
from service.jobs.intake.lengths import LengthCheck
from service.jobs.intake.report import Report
from service.jobs.intake.subject import RowTokens
from service.jobs.model.dataset import Kind, Problems, Row, read_rows
from service.jobs.model.methods import DatasetUse, environments_of, leaves, sampling_of
from service.platform.storage import ObjectMissing, Storage
from service.platform.tables.core import File
from service.platform.token_counting import ModelText
from service.settings import Settings

TRIAL_ROWS = 3
SHOWN_FIELDS, SHOWN_LETTERS = 8, 40
UNUSED_BY_ROWS = {"learning_rate", "learning_rate_multiplier", "beta", "group_size", "n_steps", "n_epochs"}
"""Hyperparameters that no check of a row reads."""


@dataclass(frozen=True)
class CheckedRows:
    """The result of reading the rows of a request's files. The content of a file id never changes."""

    num_rows: Mapping[str, int]
    """Number of rows of each file, keyed by the field that names the file."""
    row_tokens: Mapping[str, RowTokens]
    """Lengths of each file's rows, with the same keys; empty if they were not counted."""
    resets: Resets
    warnings: Sequence[dict[str, str]]
    text: ModelText | None
    """Counted the tokens. Kept here because the cache key contains its `id()`, which could be reused."""


@dataclass(frozen=True)
class FileCheck:
    """The checks of one request's files."""

    storage: Storage
    settings: Settings
    report: Report
    text: ModelText | None
    """Tokenizer and template; None if lengths are not checked."""
    context_tokens: int | None
    duplicates: DuplicateCheck
    validation_split: float | None
    seed: int
    """Seed that draws the held-out rows. If it is not the request's, their number may differ slightly."""
    held_out_lines: set[int] = field(default_factory=set)
    """Lines of the training file that `validation_split` holds out, once that file is read."""
    resets: Resets = field(default_factory=dict)
    row_tokens: dict[str, RowTokens] = field(default_factory=dict)
    """Lengths of each file's rows, keyed by the field that names the file, if they were counted."""

    def key(self, uses: Sequence[DatasetUse]) -> tuple[Hashable, ...]:
        """A cache key, which is equal for checks with equal results."""
        unused: dict[str, Any] = {self.method.type: {"hyperparameters": UNUSED_BY_ROWS}}
        files = tuple((use.name, use.file_id) for use in uses)
        tools = repr(function_schemas(self.report.tools))
        split = self.validation_split and (self.validation_split, self.seed)
        method = self.method.model_dump_json(exclude=unused)
        return files, split, method, tools, self.context_tokens, id(self.text)

    @property
    def method(self) -> Method:
        return self.report.method

    @property
    def problems(self) -> Problems:
        return self.report.problems

    def num_rows(self, use: DatasetUse, file: File | None) -> int:
        """Number of usable rows; faults of the file go to the problems."""
        if file is None:
            self.problems.add(use.param, f"there is no file {use.file_id}", code="file_not_found")
            return 0
        if file.purpose != "fine-tune":
            reason = f"{file.id} has the purpose {file.purpose!r}, not 'fine-tune'"
            self.problems.add(use.param, reason, code="invalid_file_purpose")
            return 0
        try:
            if use.part == "training":
                self._divide(use, self.storage.lines(file.storage_key))
            return self._count_checked(use, self.storage.lines(file.storage_key))
        except ObjectMissing:
            reason = f"the content of {file.id} is no longer stored: upload the file again"
            self.problems.add(use.param, reason, code="file_not_found")
            return 0

    def _rows(self, use: DatasetUse, lines: Iterable[bytes], problems: Problems) -> Iterator[Row]:
        """The rows of this use. Lines that cannot be read count as training rows."""
        kind: Kind = "supervised" if isinstance(self.method, Supervised) else "reinforcement"
        return read_rows(
            lines,
            file=use.param,
            kind=kind,
            max_rows=self.settings.max_rows,
            problems=problems,
            is_wanted=lambda line: (
                use.part == "all" or (line in self.held_out_lines) == (use.part == "held_out")
            ),
        )

    def _divide(self, use: DatasetUse, lines: Iterable[bytes]) -> None:
        """Choose the held-out lines. Adds a problem if no row is left for training or for evaluation."""
        assert self.validation_split is not None
        faults = Problems()
        found = [(row.line, prompt_digest(vars(row))) for row in self._rows(use, lines, faults)]
        chosen = held_out_rows([prompt for _, prompt in found], self.validation_split, self.seed)
        if 0 < len(chosen) < len(found):
            self.held_out_lines.update(found[index][0] for index in chosen)
        elif not faults.found:
            sides = "leaves no row to train on" if chosen else "holds out no row"
            num_prompts = len({prompt for _, prompt in found})
            reason = f"{sides}; rows in {use.file_id}: {len(found)}, different prompts: {num_prompts}"
            self.problems.add("validation_split", reason, code="invalid_validation_split")

    def _count_checked(self, use: DatasetUse, lines: Iterable[bytes]) -> int:
        method, problems = self.method, self.problems
        rows: Iterable[Row] = watch_environments(
            self.report,
            self._rows(use, lines, problems),
            use.param,
            self.resets,
            is_training=use.name == "training_file",
        )
        if not environments_of(method):  # with environments, equal rows are different tasks
            rows = self.duplicates.watch(rows, use.param, is_held_out_part=use.part == "held_out")
        if isinstance(method, Supervised) and use.name == "training_file":
            rows = self._watch_turns(rows)
        if self.text is None:
            return sum(1 for _ in self._graded(rows, use))
        tools = tuple(function_schemas(self.report.tools))
        lengths = LengthCheck(self.text, method, self.context_tokens, use.param, problems, tools)
        num_rows = sum(1 for _ in self._graded(lengths.watch(rows), use))
        self.row_tokens[use.name] = lengths.counted
        hint = "Write them in the content of those turns."
        calls = "the tool_calls of earlier turns"
        self._warn_of_rows("tool_calls_not_shown", use, lengths.rows_without_calls, calls, hint)
        hint = "Describe them in the row's messages."
        self._warn_of_rows("tools_not_shown", use, lengths.rows_without_tools, "the row's tools", hint)
        return num_rows

    def _warn_of_rows(self, code: str, use: DatasetUse, lines: Sequence[int], what: str, hint: str) -> None:
        """Warns of the rows of which the model's chat template leaves out something."""
        if lines:
            more = f" (and {len(lines) - 1:,} more like it)" if len(lines) > 1 else ""
            text = f"{use.param}[{lines[0]}].messages: the model's chat template leaves out {what}{more}."
            self.report.warn(code, f"{text} {hint}")

    def _watch_turns(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows unchanged. Warns of assistant turns that are not learned; weight 0 permits it."""
        num_rows = num_found = 0
        for row in rows:
            num_rows += 1
            earlier = (row.messages or ())[:-1]
            num_found += any(each["role"] == "assistant" and each.get("weight") != 0 for each in earlier)
            yield row
        if num_found:
            text = (
                f"training_file: {num_found:,} of {num_rows:,} rows have assistant turns before the last one."
            )
            hint = "Only the last one is learned; add a row that ends with each turn to learn it as well"
            self.report.warn("earlier_turns_not_learned", f"{text} {hint}, or give it the weight 0.")

    def _check_level(self, row: Row, use: DatasetUse) -> None:
        """Adds a problem if the curriculum is by levels and the row has none."""
        if use.name == "training_file" and getattr(sampling_of(self.method), "curriculum", "") == "levels":
            level = row.item.get("level")
            if not isinstance(level, int) or isinstance(level, bool):
                reason = "must be an integer: the job's curriculum is levels"
                self.problems.add(f"{use.param}[{row.line}].level", reason)

    def _graded(self, rows: Iterable[Row], use: DatasetUse) -> Iterator[Row]:
        """Yields the rows unchanged. Resolves the grader's templates for each, and tries the grader on a
        few."""
        if use.grader is None:
            yield from rows
            return
        trial: list[Row] = []
        alone, nulls = _alone(use.grader), Counter[str]()
        for row in rows:
            self._check_level(row, use)
            nulls.update(name for name in alone if row.item.get(name, "") is None)
            if self._is_gradable(row, f"{use.param}[{row.line}]", use.grader) and len(trial) < TRIAL_ROWS:
                trial.append(row)
            yield row
        is_new = use.name == "training_file" or not use.grader_param.endswith(f"{self.method.type}.grader")
        for name, count in nulls.items():
            rows_with = "1 row" if count == 1 else f"{count} rows"
            text = f'{{{{{alone[name]}}}}} is null in {rows_with}; the grader reads it as the text "null".'
            self.report.warn("null_reference", f"{use.param}: {text}")
        if is_new:
            try_grader(self.report, use.grader, trial, use.grader_param)

    def _is_gradable(self, row: Row, place: str, grader: Grader) -> bool:
        """Whether the grader can score completions of this row; if not, the reasons go to the problems."""
        paths = grader.unresolved(row.item)
        for path in paths:
            where = f"{place}.{path.removeprefix('item.')}"
            self.problems.add(where, f"the grader's {{{{{path}}}}} is not in this row, {_fields(row.item)}")
        sentences = [] if paths else grader.problems(row.item)
        for sentence in sentences:
            self.problems.add(place, f"the grader cannot score this row: {sentence}")
        return not paths and not sentences


def _alone(grader: Grader) -> dict[str, str]:
    """Row fields that a template consists of → their paths, as in `{{item.answer}}`."""
    texts = [text for _, rule in leaves("", grader) for text in rule.templates().values()]
    paths = (parts[0] for text in texts if len(parts := template.parse(text)) == 1)
    found = (path for path in paths if isinstance(path, template.Path) and path.namespace == "item")
    return {str(path.steps[0]): path.text for path in found if len(path.steps) == 1}


def _fields(item: Mapping[str, Any]) -> str:
    """The row's fields, for the message about a missing one."""
    shown = ", ".join(name[:SHOWN_LETTERS] for name in sorted(item)[:SHOWN_FIELDS])
    more = ", …" if len(item) > SHOWN_FIELDS else ""
    return f"which has {shown}{more}" if item else "which has no field beside its messages"
