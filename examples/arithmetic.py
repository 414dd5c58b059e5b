"""A dataset of sums: a rule that a small model can learn, with an exact reward.

    python -m examples.arithmetic FOLDER [--train 2000] [--held-out 100] [--forgotten-carries 0.65]

writes `train.jsonl` and `held_out.jsonl` (prompts with an `answer` for the grader) and `supervised.jsonl`
(the same training prompts with the assistant's turn).
"""

import argparse
import itertools
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def sum_row(left: int, right: int) -> Row:
    """`{"messages": [user "12+7="], "answer": "19"}`"""
    return {"messages": [{"role": "user", "content": f"{left}+{right}="}], "answer": str(left + right)}


def make_rows(
    num_train: int,
    num_held_out: int,
    *,
    left: range = range(10, 90),
    right: range = range(2, 10),
    seed: int = 0,
) -> tuple[list[Row], list[Row]]:
    """Training and held-out sums of a number in `left` and one in `right`; no held-out pair is trained on.

    By default the digits of all sums are aligned. The seed decides the order. If `num_train` exceeds the
    number of remaining pairs, training rows repeat in another order. Raises ValueError if the held-out rows
    leave no training rows.
    """
    shuffled = random.Random(seed)
    pairs = list(itertools.product(left, right))
    if num_held_out >= len(pairs):
        raise ValueError(f"{len(pairs)} sums cannot hold out {num_held_out}")
    shuffled.shuffle(pairs)
    held_out, rest = pairs[:num_held_out], pairs[num_held_out:]
    train: list[tuple[int, int]] = []
    while len(train) < num_train:
        train += rest
        shuffled.shuffle(rest)
    return [sum_row(*pair) for pair in train[:num_train]], [sum_row(*pair) for pair in held_out]


def supervised_rows(rows: Iterable[Row], *, forgotten_carries: float = 0.0, seed: int = 0) -> list[Row]:
    """The rows with an assistant's turn in which this share of carries is forgotten (37+5=32).

    Imitation learns the mistake; a reward for the right number does not.
    """
    drawn = random.Random(seed)
    return [_demonstrated(row, forgets=drawn.random() < forgotten_carries) for row in rows]


def _demonstrated(row: Row, *, forgets: bool) -> Row:
    left, right = row["messages"][0]["content"].rstrip("=").split("+")
    carries = int(left) % 10 + int(right) % 10 >= 10
    answer = str(int(row["answer"]) - (10 if carries and forgets else 0))
    return {**row, "messages": [*row["messages"], {"role": "assistant", "content": answer}]}


def write_jsonl(path: str | Path, rows: Iterable[Row]) -> Path:
    """Write one row per line."""
    path = Path(path)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Write sums as JSONL datasets into a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--held-out", type=int, default=100)
    parser.add_argument("--forgotten-carries", type=float, default=0.0, help="share, in supervised.jsonl")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    train, held_out = make_rows(options.train, options.held_out, seed=options.seed)
    demonstrated = supervised_rows(train, forgotten_carries=options.forgotten_carries, seed=options.seed)
    for name, rows in (("train", train), ("held_out", held_out), ("supervised", demonstrated)):
        print(write_jsonl(options.folder / f"{name}.jsonl", rows))


if __name__ == "__main__":
    main()
