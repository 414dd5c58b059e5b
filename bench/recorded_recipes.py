"""The classes of runs that `bench/recorded_runs.py` records: how each is made, and the expected finding."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from examples.arithmetic import make_rows, supervised_rows

Row = dict[str, Any]
NUM_SUMS = 640
"""Number of all rows that `make_rows` can make."""
RIGHT = {"type": "numeric", "reference": "{{item.answer}}"}
ABSTAINS = {"type": "string_check", "operation": "like", "input": "{{sample.output_text}}", "reference": "?"}
NUMBER = {"type": "format", "pattern": r"\d+", "match": "search"}
LONG = {"type": "format", "pattern": r".{9,}", "match": "search"}
LENGTH = {"type": "length", "mode": "linear", "target": 0, "maximum": 16}


def _paid(formula: str) -> Row:
    """A grader for right answers that also pays for length, by the formula over `right` and `short`."""
    return {"type": "multi", "graders": {"right": RIGHT, "short": LENGTH}, "calculate_output": formula}


@dataclass(frozen=True)
class Recipe:
    """How a class of runs is made."""

    demonstrations: str = "carries"
    """The demonstrations that the model imitates first; `demonstrated` explains the names."""
    grader: Mapping[str, Any] = field(default_factory=lambda: RIGHT)
    eval_grader: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    answers: str = "sum"
    """`sum`; `product`; `digit`: any digit; `coin`: only sums with a carry, which is included at random."""
    num_train: int = 440
    num_held_out: int = 200


RISES = "Held-out reward (greedy) rose from "
EXPECTED: dict[str, tuple[str, str]] = {
    "good": ("", RISES),
    "noisy": ("", RISES),
    "plateau": ("", RISES),
    "memorised": ("warning not_held_out", "The training reward rose from "),
    "hacked": ("warning not_held_out", "The training reward rose from "),
    "dead": ("warning few_signals", "No completion in the newest "),
    "failed": ("error no_signal", "No completion in the newest "),
    "flat": ("warning reward_flat", "The reward does not rise although groups have signal"),
    "easy": ("warning already_solved", "The model already solved this before training"),
    "hard": ("warning few_signals", "No completion in the newest "),
    "cut": ("warning truncation", "Many completions are cut"),
    "unstable": ("warning reward_fell", "The held-out reward fell from "),
    "length": ("warning length_hacking", "The reward grows with length"),
    "broken": ("warning learning_rate_too_high", "The learning rate is too high: the reward rose to "),
    "longer": ("info longer_completions", RISES),
    "six": ("warning few_training_rows", "The training file has only 6 rows"),
    "few": ("info more_rows", "Training reward rose from "),
}
"""Class → severity and code of its finding, and the start of its summary.

`memorised-full` with seed 0 is recorded as `few`, because its 200 rows do not prove what happened.
"""
SMALL_STEPS = {"prompts_per_step": 4, "group_size": 4}
RECIPES: dict[str, Recipe] = {
    "good": Recipe(settings={"n_steps": 80}),
    "good-dapo": Recipe(settings={"n_steps": 60, "recipe": "dapo"}),
    "good-beta": Recipe(settings={"n_steps": 80, "beta": 0.02, "learning_rate": 5e-4}),
    "noisy": Recipe(settings={**SMALL_STEPS, "n_steps": 150, "learning_rate": 4e-4}),
    "noisy-slow": Recipe(
        settings={**SMALL_STEPS, "n_steps": 150, "learning_rate": 1.5e-4, "eval_interval": 30}
    ),
    "memorised": Recipe(answers="coin", num_train=24, settings={"n_steps": 120, "learning_rate": 2e-3}),
    "memorised-full": Recipe(
        answers="coin", num_train=40, settings={"n_steps": 120, "learning_rate": 1e-3, "lora": "full"}
    ),
    "flat": Recipe("digits", answers="digit", num_train=32, settings={"n_steps": 120, "learning_rate": 5e-4}),
    "hacked": Recipe(
        "abstains",
        {
            "type": "multi",
            "graders": {"right": RIGHT, "unsure": ABSTAINS},
            "calculate_output": "max(right, unsure)",
        },
        RIGHT,
        {"n_steps": 80},
    ),
    "dead": Recipe(
        grader={
            "type": "string_check",
            "operation": "like",
            "input": "{{sample.output_text}}",
            "reference": "☃",
        },
        settings={"n_steps": 60, "max_skipped_steps": 100},
    ),
    "failed": Recipe(
        grader={
            "type": "string_check",
            "operation": "like",
            "input": "{{sample.output_text}}",
            "reference": "☃",
        },
        settings={"n_steps": 60},
    ),
    "flat-still": Recipe(settings={"n_steps": 150, "learning_rate": 1e-8, "group_size": 16}),
    "good-solved": Recipe("sums", settings={"n_steps": 60, "max_skipped_steps": 100}),
    "easy": Recipe(grader=NUMBER, settings={"n_steps": 60, "max_skipped_steps": 100}),
    "hard": Recipe(answers="product", settings={"n_steps": 60, "max_skipped_steps": 100}),
    "good-shorter": Recipe(
        "working", settings={"n_steps": 60, "max_completion_tokens": 7, "max_skipped_steps": 100}
    ),
    "good-rambling": Recipe("rambling", settings={"n_steps": 60, "max_completion_tokens": 5}),
    "cut": Recipe("working", settings={"n_steps": 60, "max_completion_tokens": 5, "max_skipped_steps": 100}),
    "unstable": Recipe(settings={"n_steps": 100, "learning_rate": 3e-2, "max_skipped_steps": 200}),
    "unstable-reuse": Recipe(
        settings={"n_steps": 80, "learning_rate": 1e-2, "num_iterations": 4, "max_skipped_steps": 200}
    ),
    "length": Recipe(
        "rambling",
        _paid("0.1*right - 0.9*short"),
        settings={"n_steps": 80, "max_completion_tokens": 24},
    ),
    "length-limit": Recipe(
        "rambling",
        _paid("0*right - 1*short"),
        settings={"n_steps": 40, "max_completion_tokens": 16, "learning_rate": 3e-3},
    ),
    "longer-long": Recipe("rambling", LONG, settings={"n_steps": 60, "max_completion_tokens": 16}),
    "broken": Recipe(
        settings={
            "n_steps": 100,
            "learning_rate": 5e-2,
            "warmup_steps": 100,
            "max_skipped_steps": 200,
        }
    ),
    "few-rows": Recipe(num_held_out=12, settings={"n_steps": 60, "learning_rate": 3e-4}),
    "plateau": Recipe(settings={"n_steps": 150, "lr_schedule": "constant"}),
    "longer-weak": Recipe(
        "rambling", _paid("0.8*right - 0.2*short"), settings={"n_steps": 80, "max_completion_tokens": 24}
    ),
    "longer-strong": Recipe(
        "rambling", _paid("0.5*right - 0.5*short"), settings={"n_steps": 80, "max_completion_tokens": 24}
    ),
    "longer-other": Recipe(
        "rambling",
        _paid("0.7*right - 0.3*short"),
        RIGHT,
        settings={"n_steps": 80, "max_completion_tokens": 24},
    ),
    "longer-working": Recipe("some-working", settings={"n_steps": 80, "max_completion_tokens": 12}),
    "longer-slow": Recipe(
        "some-working", settings={"n_steps": 100, "max_completion_tokens": 12, "learning_rate": 2e-4}
    ),
    "good-longer": Recipe("half-abstains", settings={"n_steps": 80, "max_completion_tokens": 12}),
    "six": Recipe(num_train=6, num_held_out=0, settings={"n_steps": 60, "prompts_per_step": 6}),
}


def _variant(base: str, *, num_held_out: int = 120, num_train: int = 440, **settings: Any) -> Recipe:
    own = {**RECIPES[base].settings, "prompts_per_step": 16, **settings}
    return replace(RECIPES[base], settings=own, num_held_out=num_held_out, num_train=num_train)


RECIPES |= {
    "few-eight": _variant("few-rows", num_held_out=8, learning_rate=5e-4),
    "easy-half": _variant("easy", n_steps=40),
    "unstable-higher": _variant("unstable", n_steps=60, learning_rate=5e-2),
    "good-rloo": _variant("good", n_steps=50, recipe="rloo"),
    "good-abstains": _variant("hacked", num_held_out=200, learning_rate=7e-4),
    "memorised-sixteen": _variant("memorised", num_held_out=200, num_train=16, n_steps=100),
    "cut-four": _variant("cut", n_steps=40, max_completion_tokens=4),
    "length-sixteen": _variant("length", n_steps=50, max_completion_tokens=16),
    "hard-sixteen": _variant("hard", n_steps=40),
    "flat-tiny": _variant("flat-still", n_steps=100, learning_rate=1e-9, group_size=8, prompts_per_step=32),
}
"""Recipes that were set aside while the rules were written. `good-abstains` exploits its grader only when it
samples; its greedy answers are right."""


def rows_of(recipe: Recipe, seed: int) -> tuple[list[Row], list[Row]]:
    """Training and held-out rows, with the recipe's kind of answers."""
    train, held_out = make_rows(NUM_SUMS - recipe.num_held_out, recipe.num_held_out, seed=seed)
    rows = [*held_out, *train]
    drawn = random.Random(seed)
    if recipe.answers == "coin":
        rows = [row for row in rows if _carries(row)]
    for row in rows:
        left, right = _operands(row)
        others = {
            "sum": str(left + right),
            "product": str(left * right * 101),
            "digit": str(drawn.randrange(10)),
            "coin": str(left + right - drawn.choice((0, 10))),
        }
        row["answer"] = others[recipe.answers]
    return rows[recipe.num_held_out :][: recipe.num_train], rows[: recipe.num_held_out]


def _operands(row: Row) -> tuple[int, int]:
    left, right = row["messages"][0]["content"].rstrip("=").split("+")
    return int(left), int(right)


def _sum(question: str) -> str:
    return str(sum(map(int, question.rstrip("=").split("+"))))


def _carries(row: Row) -> bool:
    left, right = _operands(row)
    return left % 10 + right % 10 >= 10


def demonstrated(name: str, seed: int) -> list[Row]:
    """Sums with the assistant's turn.

    `carries`: two of three carries are forgotten. `sums`: right answers. `digits`: any digit. `abstains`:
    like `carries`, but with "?" in a tenth of the rows. `working`: the sum is repeated first. `rambling`:
    like `carries`, followed by some spaces. `some-working`: some are right after the sum is repeated,
    the others are any digit. `half-abstains`: half "?", and half like `carries` after the sum is repeated.
    """
    rows, _ = make_rows(2000, 200, seed=seed)
    drawn = random.Random(seed)
    imitated = supervised_rows(rows, forgotten_carries=0.0 if name == "sums" else 0.65, seed=seed)
    for row in imitated:
        question, answer = row["messages"][0], row["messages"][1]
        match name:
            case "digits":
                answer["content"] = str(drawn.randrange(10))
            case "abstains" if drawn.random() < 0.1:
                answer["content"] = "?"
            case "some-working" if drawn.random() < 0.6:
                answer["content"] = str(drawn.randrange(10))
            case "some-working":
                answer["content"] = question["content"] + _sum(question["content"])
            case "half-abstains" if drawn.random() < 0.5:
                answer["content"] = "?"
            case "half-abstains":
                answer["content"] = question["content"] + answer["content"]
            case "working":
                answer["content"] = question["content"] + answer["content"]
            case "rambling":
                answer["content"] += " " * drawn.choice((0, 0, 1, 2, 3, 4, 6, 8))
    return imitated
