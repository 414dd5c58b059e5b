"""Answers with the job's own model: its tokenizer's chat template and a sampler.

Without a chat template, a conversation is joined into one text. For a template that refuses system messages
(Gemma 2), they become the beginning of the user's turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from grpo_engine.config.job import RunConfig
from grpo_engine.config.messages import text_of
from grpo_engine.models.chat_template import rendered
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.training_free.model_client import OnRow, failed_reply
from grpo_engine.training_free.prompts import Row, with_text

SYSTEM, QUESTION = {"role": "system", "content": "a"}, {"role": "user", "content": "b"}


class LocalModelClient:
    label = "torch"

    def __init__(self, config: RunConfig, policy: Policy) -> None:
        self.policy = policy
        self.reader = RowReader(policy.tokenizer, config.created_at)
        self.max_length = policy.max_length
        if self.max_length is not None:  # the library may grow until it fills the model's context
            policy.fix_positions(self.max_length)
        self.sampler = TorchSampler(policy, config.runtime.sample_budget)
        self._supported = _supported_form(policy.tokenizer)

    def answer(
        self,
        rows: Sequence[Row],
        count: int,
        sampling: Sampling,
        *,
        version: int = 0,
        on_row: OnRow | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Completions of each row; a row that leaves no room for an answer gets a failed one."""
        prompts = self._prompts(rows)
        places = [
            place for place, prompt in enumerate(prompts) if self._has_room(prompt, sampling.max_tokens)
        ]
        too_long = failed_reply("the prompt leaves no room for an answer", version)
        answers: list[tuple[Completion, ...]] = [(too_long,) * count for _ in rows]

        def on_group(position: int, group: Group) -> None:
            answers[places[position]] = group.completions
            if on_row is not None:
                on_row(places[position], group.completions)

        self.sampler.load_policy(version)
        self.sampler.generate([prompts[place] for place in places], count, sampling, on_group)
        if on_row is not None:
            for place in sorted({*range(len(rows))} - {*places}):
                on_row(place, answers[place])
        return answers

    def fits(self, row: Row, max_tokens: int) -> bool:
        return self._has_room(self._prompts([row])[0], max_tokens)

    def _prompts(self, rows: Sequence[Row]) -> list[Prompt]:
        found = self.reader.prompts([self._supported(row) for row in rows])
        return [
            replace(prompt, row=place, token_ids=self.policy.known(prompt.token_ids))
            for place, prompt in enumerate(found)
        ]

    def _has_room(self, prompt: Prompt, max_tokens: int) -> bool:
        return self.max_length is None or len(prompt.token_ids) + max_tokens <= self.max_length


def _supported_form(tokenizer: PreTrainedTokenizerBase) -> Callable[[Row], Row]:
    """Changes a row to a form that the tokenizer's chat template supports."""
    if not tokenizer.chat_template:
        return _flat
    has_system = rendered(tokenizer, [SYSTEM, QUESTION], for_completion=True) is not None
    return (lambda row: row) if has_system else _without_system


def _without_system(row: Row) -> Row:
    """The row with its system message at the beginning of the user's turn."""
    first, *others = row.get("messages", [QUESTION])
    if first["role"] != "system" or not others:
        return row
    return with_text({**row, "messages": others}, text_of(first))


def _flat(row: Row) -> Row:
    """A conversation as one text, for a model without a chat template."""
    if "messages" not in row:
        return row
    text = "\n\n".join(map(text_of, row["messages"]))
    return {**{name: row[name] for name in row if name != "messages"}, "prompt": text}
