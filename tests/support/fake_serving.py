"""A serving engine without a model: repeats the prompt word by word, and fails on request.

`python -m tests.support.fake_serving --answers-to FD`. The first word of the last message (or prompt) can
be a fault: `die` and `hang` after one word, `refuse`, `slowly`. With an adapter the answer ends with `!`. A
model named `broken` cannot be loaded.
"""

import argparse
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator

from grpo_engine.contract.records import FinishReason
from grpo_engine.serve.protocol import (
    Answer,
    Cancel,
    Command,
    Generate,
    Loaded,
    Piece,
    Refusal,
    ServedModel,
    Token,
    Unloadable,
    Usage,
)


def words_of(command: Generate, model: ServedModel) -> list[str]:
    """`Base: …`, `Adapter: …!` or `Adapter on nf4: …!`, with the seed if the completion is random."""
    asked = command.prompt if command.messages is None else str(command.messages[-1].get("content"))
    start, end = ("Base:", "") if model.model.adapter is None else ("Adapter:", "!")
    if model.quantization is not None:
        start = f"Adapter on {model.quantization}:"
    seed = f" ({command.seed})" if command.temperature and asked and asked.startswith("random") else ""
    return f"{start} {asked}{end}{seed}".split(" ")


def answers(command: Generate, model: ServedModel) -> Iterator[Answer]:
    words = words_of(command, model)
    fault = words[1].rstrip("!")
    if fault == "refuse":
        refusal = Refusal(code="context_length_exceeded", message="too long", param="messages")
        yield Answer(id=command.id, refusal=refusal)
        return
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
        yield Answer(id=command.id, pieces=tuple(pieces), usage=usage)
        if fault == "die":
            os._exit(9)
        while fault == "hang":
            yield Answer(id=command.id)
        time.sleep(0.1 if fault == "slowly" else 0)


def read(commands: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        commands.put(line)
    commands.put("")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers-to", type=int, required=True)
    out = os.fdopen(parser.parse_args().answers_to, "w")
    model = ServedModel.model_validate_json(sys.stdin.readline())
    if code := {"broken": "model_not_found", "changed": "base_model_changed"}.get(model.model.name):
        print(Unloadable(code=code, message="/an/internal/path").model_dump_json(), file=out, flush=True)
        sys.exit(1)
    commands: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=read, args=(commands,), daemon=True).start()
    print(Loaded().model_dump_json(), file=out, flush=True)
    running: dict[str, Iterator[Answer]] = {}
    while True:
        while not running or not commands.empty():
            line = commands.get()
            if not line:
                return
            match Command.validate_json(line):
                case Generate() as command:
                    running[command.id] = answers(command, model)
                case Cancel(id=id):
                    running.pop(id, None)
        for id, coming in list(running.items()):
            answer = next(coming)
            if answer.pieces or answer.is_last:
                print(answer.model_dump_json(exclude_none=True), file=out, flush=True)
            if answer.is_last:
                del running[id]
        time.sleep(0.001)


if __name__ == "__main__":
    main()
