"""`python -m grpo_engine.serve.serving --answers-to FD`: one model that answers requests (`protocol.py`).

The first line on standard input names the model; the process ends when standard input ends. Answers go to the
given descriptor, so that output of a library cannot mix with them. Jobs on the same machine take precedence:
the process has the lowest CPU priority and is killed first when memory runs out.
Boundary: weights and sampler are those of training; the worker decides who may use the model.
"""

import argparse
import os
import queue
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TextIO

from pydantic import BaseModel

from grpo_engine.contract.errors import EngineError
from grpo_engine.process.setup import set_library_defaults
from grpo_engine.serve.protocol import (
    Answer,
    Cancel,
    Command,
    Generate,
    Loaded,
    Refusal,
    ServedModel,
    Unloadable,
)

set_library_defaults()

import torch  # noqa: E402 - it reads the defaults when it is imported

from grpo_engine.serve.answering import Answering, Refused  # noqa: E402

Commands = queue.SimpleQueue[Generate | Cancel | None]
NICENESS = 10
INTERRUPTED = "The answer was interrupted by an internal error."


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 when standard input ends, 1 if the model cannot be served."""
    parser = argparse.ArgumentParser(prog="python -m grpo_engine.serve.serving", description=__doc__)
    parser.add_argument("--answers-to", type=int, required=True, metavar="FD", help="open for writing")
    options = parser.parse_args(arguments)
    yield_to_jobs()
    with os.fdopen(options.answers_to, "w", encoding="utf-8") as out:
        first = sys.stdin.readline()
        if not first:
            return 0
        try:
            model = Answering.load(ServedModel.model_validate_json(first))
        except EngineError as error:
            write(out, Unloadable(code=error.code, message=error.message))
            return 1
        write(out, Loaded())
        commands: Commands = queue.SimpleQueue()
        threading.Thread(target=read_commands, args=(commands,), name="commands", daemon=True).start()
        with suppress(BrokenPipeError):  # the worker has ended
            serve(model, commands, out)
    return 0


def yield_to_jobs() -> None:
    """Lower this process's CPU priority, and make it the first to be killed when memory runs out."""
    os.nice(NICENESS)
    with suppress(OSError):  # Linux only
        Path("/proc/self/oom_score_adj").write_text("1000")


def read_commands(commands: Commands) -> None:
    """Put each line of standard input into the queue, and None at its end."""
    for line in sys.stdin:
        commands.put(Command.validate_json(line))
    commands.put(None)


def serve(model: Answering, commands: Commands, out: TextIO) -> None:
    """Answer until the commands end, one token of each open request in turn."""
    running: dict[str, Iterator[Answer]] = {}
    with torch.no_grad(), model.policy.sampling():
        while True:
            while not running or not commands.empty():
                match commands.get():
                    case None:
                        return
                    case Cancel(id=id):
                        running.pop(id, None)
                    case Generate() as command:
                        running[command.id] = model.answer(command)
            for id, answers in list(running.items()):
                answer = next_answer(id, answers)
                write(out, answer)
                if answer.is_last:
                    del running[id]


def next_answer(id: str, answers: Iterator[Answer]) -> Answer:
    """The next part of one answer; an error ends this request only."""
    refuse = partial(Answer, id=id)
    try:
        return next(answers)
    except Refused as refused:
        return refuse(refusal=refused.refusal)
    except torch.OutOfMemoryError:
        message = "The request does not fit the device's memory. Shorten it or lower max_tokens."
        return refuse(refusal=Refusal(code="out_of_memory", message=message))
    except Exception as error:  # noqa: BLE001 - reported, and the other requests continue
        # Without the error's text, which may quote the prompt.
        print("".join(traceback.format_tb(error.__traceback__)), type(error).__name__, file=sys.stderr)
        return refuse(refusal=Refusal(code="engine_error", message=INTERRUPTED))


def write(out: TextIO, record: BaseModel) -> None:
    out.write(record.model_dump_json(exclude_none=True) + "\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
