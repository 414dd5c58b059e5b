"""A serving engine without a model: repeats the prompt word by word, and fails on request.

`python -m tests.support.fake_serving --reports-to FD`. The first word of the last message (or prompt) can
be a fault: `die` and `hang` after one word, `refuse`, `slowly`. With an adapter the answer ends with `!`. A
model named `broken` cannot be loaded.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from grpo_engine.chat.protocol import Answer, Generate, Piece, Refused, Token, Usage
from grpo_engine.contract.errors import BaseChangedError, ModelError
from grpo_engine.contract.records import FinishReason
from grpo_engine.serve.process import serve
from grpo_engine.serve.protocol import ServedModel


@dataclass(frozen=True)
class FakeModel:
    served: ServedModel

    def ready(self) -> AbstractContextManager[None]:
        return nullcontext()

    def answer(self, command: Generate) -> Iterator[Answer]:
        words = self._words(command)
        fault = words[1].rstrip("!")
        if fault == "refuse":
            raise Refused("context_length_exceeded", "too long", "messages")
        shown = words[: command.max_tokens]
        reason = FinishReason.STOP if len(shown) == len(words) else FinishReason.LENGTH
        for place, word in enumerate(shown):
            text = word if place == 0 else f" {word}"
            tokens = (Token(text=text, logprob=-0.5),) if command.logprobs else ()
            is_last = place == len(shown) - 1
            pieces = [
                Piece(index=index, text=text, tokens=tokens, finish_reason=reason if is_last else None)
                for index in range(command.n)
            ]
            usage = Usage(prompt_tokens=7, completion_tokens=command.n * len(shown)) if is_last else None
            yield Answer(pieces=tuple(pieces), usage=usage)
            if fault == "die":
                os._exit(9)
            while fault == "hang":
                time.sleep(0.001)
                yield Answer()
            time.sleep(0.1 if fault == "slowly" else 0)

    def _words(self, command: Generate) -> list[str]:
        """`Base: …`, `Adapter: …!` or `Adapter on nf4: …!`, with the seed if the completion is random."""
        asked = command.prompt if command.messages is None else str(command.messages[-1].get("content"))
        start, end = ("Base:", "") if self.served.model.adapter is None else ("Adapter:", "!")
        if self.served.quantization is not None:
            start = f"Adapter on {self.served.quantization}:"
        seed = f" ({command.seed})" if command.temperature and asked and asked.startswith("random") else ""
        return f"{start} {asked}{end}{seed}".split(" ")


def load(served: ServedModel) -> FakeModel:
    kind = {"broken": ModelError, "changed": BaseChangedError}.get(served.model.name)
    if kind is not None:
        raise kind("/an/internal/path")
    return FakeModel(served)


if __name__ == "__main__":
    sys.exit(serve(load))
