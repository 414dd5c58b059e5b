"""Reads dataset rows and tokenises them as prompts or demonstrations.

The service checks every row at submit; this module rejects only what requires the tokenizer.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from grpo_engine.config.job import RunConfig
from grpo_engine.config.messages import TEMPLATE_ERRORS, learned_text, rendered, shown_tools, text_of
from grpo_engine.config.validation_split import held_out_rows, prompt_digest
from grpo_engine.contract.errors import DatasetError
from grpo_engine.objective.types import Prompt

OBSERVATION = "observationqzxxzq"
"""Marks the place of an observation in a rendered prompt."""


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Rows of a JSONL file. Raises DatasetError naming the line."""
    rows = []
    with Path(path).open(encoding="utf-8-sig", newline="\n") as lines:  # as the service splits them
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise DatasetError(f"{Path(path).name} line {number} is not JSON: {error}") from error
    if not rows:
        raise DatasetError(f"{Path(path).name} has no rows")
    return rows


def held_out_numbers(config: RunConfig) -> frozenset[int]:
    """Numbers (from 0) of the rows of the training file that `validation_split` holds out.

    Raises DatasetError if no row is left to train or to evaluate on.
    """
    if config.validation_split is None:
        return frozenset()
    prompts = [prompt_digest(row) for row in read_rows(config.training_file)]
    numbers = held_out_rows(prompts, config.validation_split, config.seed)
    if not 0 < len(numbers) < len(prompts):
        message = (
            f"validation_split {config.validation_split} holds out {len(numbers)} of {len(prompts)} rows"
        )
        raise DatasetError(message, hint="Leave rows for training and for evaluation.")
    return numbers


def parted(prompts: Sequence[Prompt], held_out: Collection[int]) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts to train on, and those whose rows are held out; both in order."""
    training = [prompt for prompt in prompts if prompt.row not in held_out]
    return training, [prompt for prompt in prompts if prompt.row in held_out]


def item_of(row: dict[str, Any]) -> dict[str, Any]:
    """The `item` of graders: the row without its conversation."""
    return {key: value for key, value in row.items() if key not in ("messages", "tools")}


class RowReader:
    """Tokenises rows for one model; chat templates print the job's creation date."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        created_at: float = 0.0,
        tools: Sequence[dict[str, Any]] = (),
    ) -> None:
        """`tools`: function schemas of the job's tools, listed before the row's own and preferred over those
        of the same name. A row without a conversation describes its tools in its prompt."""
        self.tokenizer = tokenizer
        self.created = datetime.fromtimestamp(created_at, UTC)
        self.tools = tuple(tools)

    def prompts(self, rows: Sequence[dict[str, Any]]) -> list[Prompt]:
        """Prompts in the file's order. Raises DatasetError."""
        return [self._prompt(index, row) for index, row in enumerate(rows)]

    def demonstrations(self, rows: Sequence[dict[str, Any]], max_tokens: int) -> list[Prompt]:
        """Prompts with the assistant's last turn as target tokens, end-of-sequence included.

        Raises DatasetError if a row has no prompt or is longer than `max_tokens`.
        """
        made = [self._demonstration(index, row) for index, row in enumerate(rows)]
        for prompt in made:
            if not prompt.token_ids:
                raise DatasetError(f"row {prompt.row + 1} has an empty prompt")
            if (length := len(prompt.token_ids) + len(prompt.target_ids)) > max_tokens:
                raise DatasetError(
                    f"row {prompt.row + 1} has {length} tokens, max_tokens is {max_tokens}",
                    hint="Shorten the row or raise max_tokens.",
                )
        return made

    def _prompt(self, index: int, row: dict[str, Any]) -> Prompt:
        if "messages" not in row:
            return Prompt(index, row["prompt"], self._opened(row["prompt"]), item_of(row))
        text = self._render(index, row, generate=True)
        conversation = {"messages": row["messages"], "tools": row.get("tools")}
        return Prompt(index, text, self._encode(text), item_of(row), conversation=conversation)

    def rewritten(self, prompt: Prompt, rewrite: Callable[[str], str]) -> tuple[int, ...]:
        """Token ids of the prompt with its last user turn (or its whole text) replaced by `rewrite(text)`."""
        if not prompt.conversation:
            return self._opened(rewrite(prompt.text))
        messages = list(prompt.conversation["messages"])
        user_turns = [place for place, message in enumerate(messages) if message["role"] == "user"]
        place = user_turns[-1] if user_turns else len(messages) - 1
        messages[place] = {**messages[place], "content": rewrite(text_of(messages[place]))}
        row = {**prompt.conversation, "messages": messages}
        return self._encode(self._render(prompt.row, row, generate=True))

    def with_observation(self, prompt: Prompt, text: str, plain: Callable[[str], Sequence[int]]) -> Prompt:
        """The prompt with an observation at the end of its last user turn; `plain` tokenises the observation.

        If the last turn is not a user's, the observation becomes one. Without a conversation it follows the
        prompt.
        """
        if not prompt.conversation:
            ids = (*prompt.token_ids, *plain(f"\n{text}\n"))
            return replace(prompt, text=f"{prompt.text}\n{text}\n", token_ids=ids)
        messages = list(prompt.conversation["messages"])
        own = f"{text_of(messages.pop())}\n\n" if messages[-1]["role"] == "user" else ""
        messages.append({"role": "user", "content": own + OBSERVATION})
        row = {**prompt.conversation, "messages": messages}
        before, _, after = self._render(prompt.row, row, generate=True).rpartition(OBSERVATION)
        messages[-1] = {"role": "user", "content": own + text}
        return replace(
            prompt,
            text=before + text + after,
            token_ids=(*self._encode(before), *plain(text), *self._encode(after)),
            conversation={**prompt.conversation, "messages": messages},
        )

    def _demonstration(self, index: int, row: dict[str, Any]) -> Prompt:
        if "messages" not in row:
            prompt, answer = self._prompt(index, row), row["completion"]
        else:
            *turns, last = row["messages"]
            prompt = self._prompt(index, {**row, "messages": turns})
            whole = self._render(index, row, generate=False)
            answer = learned_text(prompt.text, whole, last)
        target = self._ended(self._following(prompt, answer))
        return Prompt(index, prompt.text, prompt.token_ids, prompt.item, target)

    def _following(self, prompt: Prompt, text: str) -> tuple[int, ...]:
        """A text's tokens after the prompt; some tokenizers (Llama 2) put a space before a text alone."""
        encode = self._encode if prompt.conversation else self._opened
        own, whole = prompt.token_ids, encode(prompt.text + text)
        return whole[len(own) :] if whole[: len(own)] == own else self._encode(text)

    def _ended(self, target: tuple[int, ...]) -> tuple[int, ...]:
        """The target with exactly one end-of-sequence token, at its end, whatever the chat template wrote."""
        end = cast(int, self.tokenizer.eos_token_id)
        return (*target[: target.index(end)], end) if end in target else (*target, end)

    def _render(self, index: int, row: dict[str, Any], *, generate: bool) -> str:
        tools = shown_tools(self.tools, row.get("tools") or ()) or None
        options = {"add_generation_prompt": generate, "strftime_now": self.created.strftime}

        def render(messages: list[dict[str, Any]]) -> str:
            text = self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **options)
            return cast(str, text)

        try:
            return rendered(render, row["messages"])
        except TEMPLATE_ERRORS as error:
            raise DatasetError(f"row {index + 1}: the model's chat template refuses it: {error}") from error

    def _opened(self, text: str) -> tuple[int, ...]:
        """A text with the special tokens that the tokenizer adds, but without an end of sequence after it,
        because a completion follows."""
        ids, own = self.tokenizer(text).input_ids, self._encode(text)
        ended = (*own, self.tokenizer.eos_token_id)
        return tuple(ids[:-1] if own and tuple(ids[-len(ended) :]) == ended else ids)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)
