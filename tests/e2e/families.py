"""Small tasks for every kind of reinforcement job: rows to imitate, rows to train on, and the job's method.

Each initial model has learned right and wrong answers, so its groups have signal.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from grpo_engine.training.self_distillation import feedback_text

Row = dict[str, Any]

PYTHON_STEP = r'''
import re


def grade(sample, item):
    """One line of a calculation: right where both sides are equal."""
    found = re.fullmatch(r"(\d+)\+(\d+)=(\d+)", sample["output_text"].strip())
    return float(bool(found) and int(found[1]) + int(found[2]) == int(found[3]))
'''
HINT = "{prompt} {feedback}"
GRPO = {
    "group_size": 8,
    "prompts_per_step": 8,
    "learning_rate": 4e-3,
    "beta": 0.0,
    "lora": {"rank": 8, "alpha": 16},
    "eval_interval": 1000,
}


@dataclass(frozen=True)
class Task:
    imitated: list[Row]
    """Rows of the supervised job: right and wrong answers."""
    rows: list[Row]
    held_out: list[Row]
    method: dict[str, Any]
    supervised_steps: int = 250
    points: float = 10.0
    """Required gain of the held-out reward, in hundredths."""
    needs: dict[str, Any] = field(default_factory=dict)


def user(text: str, **item: Any) -> Row:
    return {"messages": [{"role": "user", "content": text}], **item}


def answered(row: Row, *turns: tuple[str, str]) -> Row:
    """The row's conversation with more (role, content) turns."""
    further = [{"role": role, "content": content} for role, content in turns]
    return {"messages": [*row["messages"], *further]}


def method(grader: Row, hyperparameters: Row, **fields: Any) -> Row:
    settings = {"grader": grader, **fields, "hyperparameters": {**GRPO, **hyperparameters}}
    return {"type": "reinforcement", "reinforcement": settings}


def split(rows: Iterable[Row], held_out: int, seed: int) -> tuple[list[Row], list[Row]]:
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    return shuffled[held_out:], shuffled[:held_out]


def process_task(seed: int = 0) -> Task:
    """Add three digits in two lines; the model makes mistakes in both, and each line is rewarded."""
    drawn = random.Random(seed)

    def lines(a: int, b: int, c: int) -> str:
        first = a + b + (drawn.random() < 0.5)
        return f"{a}+{b}={first}\n{first}+{c}={first + c + (drawn.random() < 0.5)}"

    triples = list(itertools.product(range(1, 6), repeat=3))
    train, held_out = split([user(f"{a}+{b}+{c}") for a, b, c in triples], 24, seed)
    imitated = [answered(user(f"{a}+{b}+{c}"), ("assistant", lines(a, b, c))) for a, b, c in triples * 6]
    grader = {
        "type": "process",
        "splitter": "lines",
        "grader": {"type": "python", "source": PYTHON_STEP},
    }
    hyperparameters = {"advantage": "process", "n_steps": 8, "max_completion_tokens": 14}
    return Task(imitated, train, held_out, method(grader, hyperparameters))


def tool_task(seed: int = 0) -> Task:
    """Products that the model gets wrong, unless it uses the interpreter, which it rarely does at first."""
    pairs = list(itertools.product(range(2, 10), repeat=2))
    imitated = []
    for index, (a, b) in enumerate(pairs * 10):
        call = json.dumps({"name": "python", "arguments": {"code": f"print({a}*{b})"}})
        question = user(f"{a}*{b}")
        called = ("assistant", f"<tool_call>{call}</tool_call>")
        imitated.append(answered(question, called, ("tool", str(a * b)), ("assistant", str(a * b))))
        imitated.append(answered(question, called if index % 5 < 2 else ("assistant", str(a * b + 1))))
    train, held_out = split([user(f"{a}*{b}", answer=str(a * b)) for a, b in pairs], 24, seed)
    return Task(
        imitated,
        train,
        held_out,
        method(
            {"type": "string_check", "operation": "eq", "input": "{{sample.output_text}}"}
            | {"reference": "{{item.answer}}"},
            {
                "n_steps": 6,
                "max_completion_tokens": 100,
                "max_turns": 3,
                "temperature": 0.7,
                "learning_rate": 2e-3,
            },
            tools=[{"type": "python"}],
        ),
        supervised_steps=450,
    )


def code_task(seed: int = 0) -> Task:
    """Functions of a number, graded by tests; the model mostly adds, whatever the task."""
    drawn = random.Random(seed)
    operators: dict[str, tuple[str, Callable[[int, int], int]]] = {
        "plus": ("+", lambda a, b: a + b),
        "minus": ("-", lambda a, b: a - b),
        "times": ("*", lambda a, b: a * b),
    }
    rows, imitated = [], []
    for word, (symbol, function) in operators.items():
        for number in range(1, 6):
            question = f"x {word} {number}"
            calls = [{"call": "f", "args": [x], "expected": function(x, number)} for x in (3, 11)]
            rows.append(user(question, tests=calls))
            for _ in range(12):
                chosen = symbol if drawn.random() < 0.4 else "+"
                code = f"def f(x): return x{chosen}{number}"
                imitated.append(answered(user(question), ("assistant", code)))
    grader = {"type": "code_tests", "tests": "{{item.tests}}", "timeout_seconds": 2}
    hyperparameters = {"n_steps": 5, "prompts_per_step": 6, "max_completion_tokens": 32}
    return Task(imitated, rows, rows, method(grader, hyperparameters), supervised_steps=400)


def sums(seed: int, wrong: float) -> tuple[list[Row], list[Row], list[Row]]:
    """Supervised rows with this share of off-by-one sums, and rows to train on."""
    drawn = random.Random(seed)
    pairs = list(itertools.product(range(10), repeat=2))
    rows = [user(f"{a}+{b}=", answer=str(a + b), question=f"{a}+{b}") for a, b in pairs]
    imitated = [
        answered(row, ("assistant", str(int(row["answer"]) + (drawn.random() < wrong)))) for row in rows * 8
    ]
    train, held_out = split(rows, 40, seed)
    return imitated, train, held_out


def judge_task(seed: int = 0) -> Task:
    """Sums that another model judges behind an OpenAI-compatible endpoint."""
    imitated, train, held_out = sums(seed, wrong=0.6)
    grader = {
        "type": "score_model",
        "endpoint": "judge",
        "model": "judge",
        "input": [{"role": "user", "content": "{{item.question}}={{sample.output_text}}"}],
        "range": [0, 1],
    }
    return Task(imitated, train, held_out, method(grader, {"n_steps": 10, "max_completion_tokens": 4}))


def distillation_task(seed: int = 0) -> Task:
    """Sums that the model gets wrong unless its prompt has a correction, which is distilled into it."""
    imitated, train, held_out = sums(seed, wrong=0.6)
    drawn = random.Random(seed)
    for _ in range(8):
        for row in train + held_out:
            answer = int(row["answer"])
            found = answer + drawn.choice((-1, 1, 2))
            message = feedback_text(f"expected {answer}, found {found}", "")
            told = HINT.format(prompt=row["messages"][-1]["content"], feedback=message)
            imitated.append(answered(user(told), ("assistant", str(answer))))
    distillation = {"weight": 1.0, "feedback": "grader", "alone": True, "template": HINT}
    hyperparameters = {
        "n_steps": 10,
        "prompts_per_step": 16,
        "max_completion_tokens": 4,
        "learning_rate": 3e-4,
        "self_distillation": distillation,
    }
    grader = {"type": "numeric", "reference": "{{item.answer}}"}
    return Task(imitated, train, held_out, method(grader, hyperparameters), supervised_steps=600)


TASKS: dict[str, Callable[[], Task]] = {
    "process": process_task,
    "tool": tool_task,
    "code_tests": code_task,
    "judge": judge_task,
    "self_distillation": distillation_task,
}
