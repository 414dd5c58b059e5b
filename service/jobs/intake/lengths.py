"""Whether every row fits the model: rendered with its chat template, counted with its tokenizer.

Boundary: adds to a request's problems; rows come from `dataset.py`, tokens from `token_counting.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_engine.config.job import Method, Supervised
from service.jobs.intake.estimate import RowTokens
from service.jobs.model.dataset import MAX_PROBLEMS, Problems, Row
from service.jobs.model.methods import sampling_of
from service.platform.token_counting import ModelText, RenderError, joined

BATCH_ROWS = 256
BATCH_CHARACTERS = 2**21
"""Rows of that many characters wait to be counted together, or one that is longer."""


@dataclass(frozen=True)
class _Texts:
    """A row as the engine will tokenize it."""

    row: Row
    prompt: str
    target: str | None
    """What supervised training learns; None if the model answers."""

    @property
    def is_rendered(self) -> bool:
        return self.row.messages is not None


@dataclass
class LengthCheck:
    """Looks at rows as they stream by; counts tokens a batch at a time."""

    text: ModelText
    method: Method
    context_tokens: int | None
    """Positions of the model, or the operator's lower limit."""
    file: str
    problems: Problems
    tools: tuple[dict[str, Any], ...] = ()
    """The job's own, as function schemas."""
    _waiting: list[_Texts] = field(default_factory=list)
    _num_characters: int = 0
    """Of those that wait."""
    _lacks_template: bool = False
    _some_prompt_fits: bool = False
    _shortest_prompt: int = 0
    _over: list[tuple[str, str]] = field(default_factory=list)
    """Prompts that leave no room to write, place and reason each, as long as no prompt leaves any."""
    counted: RowTokens = field(default_factory=RowTokens)
    """All rows so far."""

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The same rows; those that do not fit have become problems when the last one has passed."""
        for row in rows:
            self._add(row)
            yield row
        self._count()
        self._blame()

    def _add(self, row: Row) -> None:
        if row.messages is not None and self.text.template is None:
            if not self._lacks_template:
                reason = 'the model has no chat template: send {"prompt": …} rows'
                self.problems.add(f"{self.file}[{row.line}].messages", reason)
            self._lacks_template = True
            return
        try:
            texts = self._texts(row)
            self._waiting.append(texts)
            self._num_characters += len(texts.prompt) + len(texts.target or "")
        except RenderError as error:
            self.problems.add(f"{self.file}[{row.line}].messages", str(error))
        if len(self._waiting) >= BATCH_ROWS or self._num_characters >= BATCH_CHARACTERS:
            self._count()

    def _texts(self, row: Row) -> _Texts:
        if row.messages is None:
            return _Texts(row, row.prompt or "", row.completion)
        if self._model_answers:
            tools = shown_tools(self.tools, row.tools)
            return _Texts(row, self.text.render(row.messages, tools, for_completion=True), None)
        prompt = self.text.render(row.messages[:-1], row.tools, for_completion=True)
        whole = self.text.render(row.messages, row.tools, for_completion=False)
        target = whole.removeprefix(prompt) if whole.startswith(prompt) else joined(row.messages[-1])
        return _Texts(row, prompt, target)

    def _count(self) -> None:
        for rendered in (True, False):
            batch = [texts for texts in self._waiting if texts.is_rendered is rendered]
            if not batch:
                continue
            lengths = self.text.lengths([texts.prompt for texts in batch], rendered=rendered)
            targets = self.text.target_lengths([texts.target or "" for texts in batch])
            for texts, num_prompt, num_target in zip(batch, lengths, targets, strict=True):
                num_tokens = num_prompt if texts.target is None else num_prompt + num_target
                self.counted = self.counted.with_row(num_tokens, 0 if texts.target is None else num_target)
                part = "messages" if rendered else "prompt"
                self._judge(f"{self.file}[{texts.row.line}].{part}", num_tokens)
        self._waiting.clear()
        self._num_characters = 0

    def _judge(self, place: str, num_tokens: int) -> None:
        reason = self._too_long(num_tokens)
        if reason is None:
            self._some_prompt_fits = True
            self._tell_over()
        elif self._some_prompt_fits or num_tokens == 0 or not self._model_answers:
            self.problems.add(place, reason)
        else:
            self._shortest_prompt = min(num_tokens, self._shortest_prompt or num_tokens)
            self._over.append((place, reason))
            del self._over[MAX_PROBLEMS:]

    def _tell_over(self) -> None:
        for place, reason in self._over:
            self.problems.add(place, reason)
        self._over.clear()

    def _blame(self) -> None:
        """If only max_completion_tokens keeps every prompt from fitting, report that field alone."""
        if not self._over or self.context_tokens is None or self._shortest_prompt >= self.context_tokens:
            self._tell_over()
            return
        where = f"method.{self.method.type}.hyperparameters.max_completion_tokens"
        most = self.context_tokens - self._shortest_prompt
        reason = (
            f"leaves no room for any prompt of {self.file}: the shortest has {self._shortest_prompt} tokens, "
            f"the model's context has {self.context_tokens}; use at most {most}"
        )
        if all(problem.param != where for problem in self.problems.found):
            self.problems.add(where, reason, code="invalid_value")

    def _too_long(self, num_tokens: int) -> str | None:
        if (sampling := sampling_of(self.method)) is not None:
            return self._prompt_too_long(num_tokens, sampling.max_completion_tokens)
        assert isinstance(self.method, Supervised)
        limit = self.method.supervised.hyperparameters.max_tokens
        if num_tokens > limit:
            return f"has {num_tokens} tokens, more than max_tokens = {limit}"
        if self.context_tokens is not None and num_tokens > self.context_tokens:
            return f"has {num_tokens} tokens, more than the model's context of {self.context_tokens}"
        return None

    @property
    def _model_answers(self) -> bool:
        return not isinstance(self.method, Supervised)

    def _prompt_too_long(self, num_tokens: int, max_completion_tokens: int) -> str | None:
        if num_tokens == 0:
            return "has no tokens"
        if self.context_tokens is None or num_tokens + max_completion_tokens <= self.context_tokens:
            return None
        return (
            f"has {num_tokens} tokens; with max_completion_tokens = {max_completion_tokens} "
            f"that is more than the model's context of {self.context_tokens}"
        )


def shown_tools(own: Sequence[dict[str, Any]], of_row: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a prompt shows: the job's tools, then the row's but those with the name of one of the job's."""
    names = {_function_name(tool) for tool in own}
    return [*own, *(tool for tool in of_row if _function_name(tool) not in names)]


def _function_name(tool: dict[str, Any]) -> Any:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")
