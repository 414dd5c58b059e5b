"""Checks that every row fits the model: rendered with its chat template, counted with its tokenizer."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from grpo_engine.config.job import Method, Supervised
from grpo_engine.config.messages import learned_text, shown_tools, text_of
from service.jobs.intake.subject import RowTokens
from service.jobs.model.dataset import Problems, Row
from service.jobs.model.methods import sampling_of
from service.platform.token_counting import ModelText, RenderError

BATCH_ROWS = 256
BATCH_CHARACTERS = 2**21
"""Rows up to this many characters are counted together; a longer row is counted alone."""
LEARNED_FIELDS = (("reasoning_content", "reasoning", "thinking"), ("tool_calls",))
"""Fields of a last message, besides its content, that supervised training learns; a model reads one of each
group."""


@dataclass(frozen=True)
class _Texts:
    """A row as the engine will tokenise it."""

    row: Row
    prompt: str
    target: str | None
    """The text that supervised training learns; None in a reinforcement row, whose text is sampled."""


@dataclass
class LengthCheck:
    """Counts the tokens of rows in batches while the rows are read."""

    text: ModelText
    method: Method
    context_tokens: int | None
    """Context length of the model, or the operator's lower limit."""
    file: str
    problems: Problems
    tools: tuple[dict[str, Any], ...] = ()
    """Tools of the job, as function schemas."""
    counted: RowTokens = field(default_factory=RowTokens)
    """Counts of all rows so far."""
    rows_without_calls: list[int] = field(default_factory=list)
    """Lines of the rows whose prompts lack the tool calls of earlier turns."""
    rows_without_tools: list[int] = field(default_factory=list)
    """Lines of the rows whose prompts lack their own tools, in a job without tools."""
    _waiting: list[_Texts] = field(default_factory=list)
    _num_characters: int = 0
    """Number of characters in the waiting rows."""
    _lacks_template: bool = False
    _num_fitting: int = 0
    _shortest_long: int = 0
    """Tokens of the shortest row that does not fit."""
    _too_long: Problems = field(default_factory=Problems)
    """The rows that do not fit."""

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows unchanged; rows that do not fit become problems after the last one."""
        for row in rows:
            self._add(row)
            yield row
        self._count()
        self._report_long_rows()

    def _add(self, row: Row) -> None:
        if row.messages is not None and isinstance(self.text.template, str):
            if not self._lacks_template:
                reason = f'{self.text.template}. Send {{"prompt": …}} rows'
                self.problems.add(f"{self.file}[{row.line}].messages", reason)
            self._lacks_template = True
            return
        try:
            texts = self._texts(row)
            self._waiting.append(texts)
            self._num_characters += len(texts.prompt) + len(texts.target or "")
        except RenderError as error:
            part = "completion" if row.messages is None else "messages"
            self.problems.add(f"{self.file}[{row.line}].{part}", str(error))
        if len(self._waiting) >= BATCH_ROWS or self._num_characters >= BATCH_CHARACTERS:
            self._count()

    def _texts(self, row: Row) -> _Texts:
        if row.messages is None:
            self._check_end(row.completion or "")
            return _Texts(row, row.prompt or "", row.completion)
        if not isinstance(self.method, Supervised):
            tools = shown_tools(self.tools, row.tools)
            return _Texts(row, self._prompt(row, row.messages, tools), None)
        prompt = self._prompt(row, row.messages[:-1], row.tools)
        last = row.messages[-1]
        target = self._learned(row, prompt, last)
        for names in LEARNED_FIELDS:
            given = [name for name in names if last.get(name)]
            if given and self._leaves_out(names, row, prompt, target):
                reason = f"the model's chat template leaves out the last message's {given[0]}"
                raise RenderError(f"{reason}. Write it in its content, or remove it")
        self._check_end(text_of(last))
        return _Texts(row, prompt, target)

    def _check_end(self, learned: str) -> None:
        """Raises RenderError for a text that ends, for the model, before its last character."""
        end = self.text.special_tokens.get("eos_token")
        if end and end in learned.rstrip().removesuffix(end):
            reason = f"has the model's end of sequence, {end}, inside the text that is learned"
            raise RenderError(f"{reason}, and the rest would not be learned: remove it")

    def _prompt(
        self, row: Row, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> str:
        """The rendered messages; remembers a row whose tools or tool calls the template leaves out."""
        prompt = self.text.render(messages, tools, for_completion=True)
        if any(each.get("tool_calls") for each in messages):
            with suppress(RenderError):
                without = [_without(("tool_calls",), message) for message in messages]
                silent = self.text.render(without, tools, for_completion=True)
                if silent == prompt:
                    self.rows_without_calls.append(row.line)
        if row.tools and not self.tools:
            with suppress(RenderError):
                if self.text.render(messages, None, for_completion=True) == prompt:
                    self.rows_without_tools.append(row.line)
        return prompt

    def _learned(self, row: Row, prompt: str, last: Mapping[str, Any]) -> str:
        """What supervised training learns of a row if its last message is `last`."""
        assert row.messages is not None
        whole = self.text.render([*row.messages[:-1], last], row.tools, for_completion=False)
        return learned_text(prompt, whole, last)

    def _leaves_out(self, names: Collection[str], row: Row, prompt: str, target: str) -> bool:
        """Whether the target lacks these fields of the row's last message; it may lack the turn's end too."""
        assert row.messages is not None
        with suppress(RenderError):
            return self._learned(row, prompt, _without(names, row.messages[-1])).startswith(target)
        return False

    def _count(self) -> None:
        for rendered, part in ((True, "messages"), (False, "prompt")):
            batch = [texts for texts in self._waiting if (texts.row.messages is not None) is rendered]
            if not batch:
                continue
            lengths = self.text.lengths([texts.prompt for texts in batch], rendered=rendered)
            targets = self.text.target_lengths([texts.target or "" for texts in batch])
            for texts, num_prompt, num_target in zip(batch, lengths, targets, strict=True):
                if texts.target is None:
                    num_target = 0
                self.counted = self.counted.with_row(num_prompt + num_target, num_target)
                place = f"{self.file}[{texts.row.line}].{part}"
                self._judge(place, num_prompt, num_target)
                if self.text.has_unknown_tokens:
                    self._refuse_unknown_token(place, texts)
        self._waiting.clear()
        self._num_characters = 0

    def _refuse_unknown_token(self, place: str, texts: _Texts) -> None:
        end = self.text.special_tokens.get("eos_token", "")
        learned = "" if texts.target is None else texts.target + end
        if token := self.text.unknown_token(texts.prompt + learned):
            reason = f"has the token {token}, but the model embeds only {self.text.num_embeddings}"
            self.problems.add(place, f"{reason}: remove it from the text, or add its embedding to the model")

    def _judge(self, place: str, num_prompt: int, num_target: int) -> None:
        if num_prompt == 0:
            self.problems.add(place, "has no tokens before the completion")
            return
        num_tokens = num_prompt + num_target
        if (sampling := sampling_of(self.method)) is not None:
            reason = self._prompt_problem(num_tokens, sampling.max_completion_tokens)
        else:
            reason = self._row_problem(num_tokens)
        if reason is None:
            self._num_fitting += 1
        else:
            self._shortest_long = min(num_tokens, self._shortest_long or num_tokens)
            self._too_long.add(place, reason)

    def _row_problem(self, num_tokens: int) -> str | None:
        assert isinstance(self.method, Supervised)
        limit = self.method.supervised.hyperparameters.max_tokens
        if num_tokens > limit:
            return f"has {num_tokens} tokens, more than max_tokens = {limit}"
        if self.context_tokens is not None and num_tokens > self.context_tokens:
            return f"has {num_tokens} tokens, more than the model's context of {self.context_tokens}"
        return None

    def _prompt_problem(self, num_tokens: int, max_completion_tokens: int) -> str | None:
        if self.context_tokens is None or num_tokens + max_completion_tokens <= self.context_tokens:
            return None
        return (
            f"has {num_tokens} tokens; with max_completion_tokens = {max_completion_tokens} "
            f"that is more than the model's context of {self.context_tokens}"
        )

    def _report_long_rows(self) -> None:
        """Adds the problems, or one for max_completion_tokens if it alone leaves no room for any prompt."""
        room = (self.context_tokens or 0) - self._shortest_long
        if not self._too_long.found or self._num_fitting or isinstance(self.method, Supervised) or room <= 0:
            self.problems.extend(self._too_long)
            return
        where = f"method.{self.method.type}.hyperparameters.max_completion_tokens"
        reason = (
            f"leaves no room for any prompt of {self.file}: the shortest has {self._shortest_long} tokens, "
            f"the model's context has {self.context_tokens}; use at most {room}"
        )
        if all(problem.param != where for problem in self.problems.found):
            self.problems.add(where, reason)


def _without(names: Collection[str], message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in names}
