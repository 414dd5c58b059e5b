"""`python -m grpo_engine.serve.serving --answers-to FD`: one model that answers requests (`generation.py`).

The first line on standard input names the model; when standard input ends, the engine ends. Answers go to the
descriptor that was handed over, so that nothing a library prints gets among them. It runs beside jobs and
gives way: lowest priority on the CPU, and the first to go where the machine's memory is short.
Boundary: the weights and the sampler are those of training; who may ask is the worker's business.
"""

from __future__ import annotations

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
from grpo_engine.serve.protocol import Answer, Ask, Cancel, Loaded, Order, Refusal, ServedModel, Unloadable

set_library_defaults()

import torch  # noqa: E402 - it reads the defaults when it is imported

from grpo_engine.serve.answering import Answering, Refused  # noqa: E402

Orders = queue.SimpleQueue[Ask | Cancel | None]
NICENESS = 10
BROKE_OFF = "The answer broke off because of an error of the engine."


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 where its orders end, 1 where the model cannot be served."""
    parser = argparse.ArgumentParser(prog="python -m grpo_engine.serve.serving", description=__doc__)
    parser.add_argument("--answers-to", type=int, required=True, metavar="FD", help="open for writing")
    options = parser.parse_args(arguments)
    give_way()
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
        orders: Orders = queue.SimpleQueue()
        threading.Thread(target=read_orders, args=(orders,), name="orders", daemon=True).start()
        with suppress(BrokenPipeError):  # who asked has gone
            serve(model, orders, out)
    return 0


def give_way() -> None:
    """To jobs, on the CPU and where memory runs out."""
    os.nice(NICENESS)
    with suppress(OSError):  # only Linux has it
        Path("/proc/self/oom_score_adj").write_text("1000")


def read_orders(orders: Orders) -> None:
    """Standard input → orders; None at its end."""
    for line in sys.stdin:
        orders.put(Order.validate_json(line))
    orders.put(None)


def serve(model: Answering, orders: Orders, out: TextIO) -> None:
    """Until the orders end: a token of each open request in turn."""
    running: dict[str, Iterator[Answer]] = {}
    with torch.no_grad(), model.policy.sampling():
        while True:
            while not running or not orders.empty():
                match orders.get():
                    case None:
                        return
                    case Cancel(id=id):
                        running.pop(id, None)
                    case Ask() as ask:
                        running[ask.id] = model.answer(ask)
            for id, answers in list(running.items()):
                answer = advanced(id, answers)
                write(out, answer)
                if answer.is_last:
                    del running[id]


def advanced(id: str, answers: Iterator[Answer]) -> Answer:
    """The next answer of one request, whatever happens to it; the others go on."""
    refuse = partial(Answer, id=id)
    try:
        return next(answers)
    except Refused as refused:
        return refuse(refusal=refused.refusal)
    except torch.OutOfMemoryError:
        message = "The request does not fit the device's memory: shorten it or lower max_tokens."
        return refuse(refusal=Refusal(code="out_of_memory", message=message))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and the others go on
        # without its text, which may quote the prompt
        print("".join(traceback.format_tb(error.__traceback__)), type(error).__name__, file=sys.stderr)
        return refuse(refusal=Refusal(code="engine_error", message=BROKE_OFF))


def write(out: TextIO, record: BaseModel) -> None:
    out.write(record.model_dump_json(exclude_none=True) + "\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
