"""Answers with the job's own model: its tokenizer's chat template and a sampler.

Boundary: no network. Without a chat template, a conversation is joined into one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo_engine.contract.records import FinishReason
from grpo_engine.objective.types import Completion, Prompt
from grpo_engine.rollout.dataset import RowReader, joined
from grpo_engine.rollout.sampler.base import Sampler, Sampling
from grpo_engine.training_free.model_client import AnswerSettings, OnRow, Reply
from grpo_engine.training_free.prompts import Row

ROUND = 1_000_000
"""Distance between the prompt numbers of two rounds, so that each draws different tokens."""


class LocalModelClient:
    def __init__(
        self,
        reader: RowReader,
        sampler: Sampler,
        *,
        max_length: int | None,
        seed: int,
        has_template: bool,
    ) -> None:
        self.label = type(sampler).__name__
        self.reader = reader
        self.sampler = sampler
        self.max_length = max_length
        self.seed = seed
        self.has_template = has_template

    def answer(
        self, rows: Sequence[Row], count: int, settings: AnswerSettings, on_row: OnRow | None = None
    ) -> list[tuple[Completion, ...]]:
        """Completions; a row without room for an answer gets a failure."""
        prompts = self._prompts(rows)
        places = [
            place for place, prompt in enumerate(prompts) if self._has_room(prompt, settings.max_tokens)
        ]
        self.sampler.load_policy(settings.version)
        groups = self.sampler.generate(
            [prompts[place] for place in places],
            count,
            self._sampling(settings),
            None if on_row is None else lambda position, group: on_row(places[position], group.completions),
        )
        answers: list[tuple[Completion, ...]] = [(_too_long(settings.version),) * count for _ in rows]
        for place, group in zip(places, groups, strict=True):
            answers[place] = group.completions
        if on_row is not None:
            for place in sorted({*range(len(rows))} - {*places}):
                on_row(place, answers[place])
        return answers

    def fits(self, row: Row, max_tokens: int) -> bool:
        return self._has_room(self._prompts([row])[0], max_tokens)

    def _prompts(self, rows: Sequence[Row]) -> list[Prompt]:
        found = self.reader.prompts(rows if self.has_template else [_flat(row) for row in rows])
        return [replace(prompt, row=place) for place, prompt in enumerate(found)]

    def _has_room(self, prompt: Prompt, max_tokens: int) -> bool:
        return self.max_length is None or len(prompt.token_ids) + max_tokens <= self.max_length

    def _sampling(self, settings: AnswerSettings) -> Sampling:
        return Sampling(
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            seed=self.seed,
            step=settings.step,
            first_prompt=settings.round * ROUND,
        )


def _too_long(version: int) -> Reply:
    reason = "the prompt leaves no room for an answer"
    return Reply("", (), (), FinishReason.LENGTH, version, failure=reason)


def _flat(row: Row) -> dict[str, Any]:
    """A conversation for a model without a chat template."""
    if "messages" not in row:
        return row
    texts = [str(joined(message.get("content")) or "") for message in row["messages"]]
    return {**{name: row[name] for name in row if name != "messages"}, "prompt": "\n\n".join(texts)}
