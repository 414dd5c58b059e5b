"""Small tasks for every kind of reinforcement job, and the rows from which one model learns to try them all.

It learns right and wrong answers to each task, so that its groups have signal.
"""

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from grpo_engine.training.self_distillation import feedback_text

Row = dict[str, Any]

SUPERVISED_STEPS = 360
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
TRIPLES = tuple(itertools.product(range(1, 4), repeat=3))
FACTORS = tuple(itertools.product(range(2, 6), repeat=2))
ADDENDS = tuple(itertools.product(range(5), repeat=2))
OPERATORS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "plus": ("+", lambda a, b: a + b),
    "minus": ("-", lambda a, b: a - b),
    "times": ("*", lambda a, b: a * b),
}
OPERATIONS = tuple(itertools.product(OPERATORS, range(1, 5)))


@dataclass(frozen=True)
class Task:
    imitated: list[Row]
    """Rows of the supervised job: right and wrong answers."""
    rows: list[Row]
    """To train on and to evaluate."""
    method: dict[str, Any]


def user(text: str, **item: Any) -> Row:
    return {"messages": [{"role": "user", "content": text}], **item}


def answered(row: Row, *turns: tuple[str, str]) -> Row:
    """The row's conversation with more (role, content) turns."""
    further = [{"role": role, "content": content} for role, content in turns]
    return {"messages": [*row["messages"], *further]}


def replies(row: Row, *texts: str) -> Iterable[Row]:
    return (answered(row, ("assistant", text)) for text in texts)


def method(grader: Row, hyperparameters: Row, **fields: Any) -> Row:
    settings = {"grader": grader, **fields, "hyperparameters": {**GRPO, **hyperparameters}}
    return {"type": "reinforcement", "reinforcement": settings}


def process_task() -> Task:
    """Add three digits in two lines; the model makes mistakes in both, and each line is rewarded."""
    imitated = []
    for a, b, c in TRIPLES:
        for first, wrong in itertools.product((a + b, a + b + 1), (0, 1)):
            lines = f"{a}+{b}={first}\n{first}+{c}={first + c + wrong}"
            imitated += replies(user(f"{a}+{b}+{c}"), lines)
    grader = {
        "type": "process",
        "splitter": "lines",
        "grader": {"type": "python", "source": PYTHON_STEP},
    }
    hyperparameters = {"advantage": "process", "n_steps": 14, "max_completion_tokens": 14}
    return Task(imitated, [user(f"{a}+{b}+{c}") for a, b, c in TRIPLES], method(grader, hyperparameters))


def tool_task() -> Task:
    """Products that the model gets wrong unless it uses the interpreter, which it seldom does at first."""
    imitated = []
    for a, b in FACTORS:
        call = json.dumps({"name": "python", "arguments": {"code": f"print({a}*{b})"}})
        question, called, found = user(f"{a}*{b}"), f"<tool_call>{call}</tool_call>", str(a * b)
        result = answered(question, ("assistant", called), ("tool", found), ("assistant", found))
        wrong = str(a * b + 1)
        imitated += [*[result] * 4, *replies(question, *[called] * 4, *[wrong] * 6)]
    grader = {"type": "string_check", "operation": "eq"}
    grader |= {"input": "{{sample.output_text}}", "reference": "{{item.answer}}"}
    hyperparameters = {
        "n_steps": 12,
        "prompts_per_step": 4,
        "group_size": 6,
        "max_completion_tokens": 100,
        "max_turns": 3,
        "temperature": 0.7,
        "learning_rate": 2e-3,
    }
    rows = [user(f"{a}*{b}", answer=str(a * b)) for a, b in FACTORS]
    return Task(imitated, rows, method(grader, hyperparameters, tools=[{"type": "python"}]))


def code_task() -> Task:
    """Functions of a number, graded by tests; the model mostly adds, whatever the task."""
    rows, imitated = [], []
    for word, number in OPERATIONS:
        symbol, function = OPERATORS[word]
        calls = [{"call": "f", "args": [x], "expected": function(x, number)} for x in (3, 11)]
        question = user(f"x {word} {number}", tests=calls)
        rows.append(question)
        code = "def f(x): return x{}{}"
        texts = [code.format(symbol, number)] * 2 + [code.format("+", number)] * 3
        imitated += replies(question, *texts)
    grader = {"type": "code_tests", "tests": "{{item.tests}}", "timeout_seconds": 2}
    hyperparameters = {"n_steps": 7, "prompts_per_step": 4, "group_size": 6, "max_completion_tokens": 32}
    return Task(imitated, rows, method(grader, hyperparameters))


def sums() -> list[Row]:
    return [user(f"{a}+{b}=", answer=str(a + b), question=f"{a}+{b}") for a, b in ADDENDS]


def judge_task() -> Task:
    """Sums that another model judges behind an OpenAI-compatible endpoint; the model is mostly off by one."""
    imitated = []
    for row, (a, b) in zip(sums(), ADDENDS, strict=True):
        imitated += replies(row, *[str(a + b)] * 3, *[str(a + b + 1)] * 5)
    grader = {
        "type": "score_model",
        "endpoint": "judge",
        "model": "judge",
        "input": [{"role": "user", "content": "{{item.question}}={{sample.output_text}}"}],
        "range": [0, 1],
    }
    return Task(imitated, sums(), method(grader, {"n_steps": 15, "max_completion_tokens": 4}))


def quantized_task() -> Task:
    """The judge's sums with a numeric grader, on a base in 4 bits."""
    hyperparameters = {"n_steps": 15, "max_completion_tokens": 4, "quantization": "nf4"}
    grader = {"type": "numeric", "reference": "{{item.answer}}"}
    return Task([], sums(), method(grader, hyperparameters))


def distillation_task() -> Task:
    """The same sums: right where the prompt has a correction, which is distilled into the model."""
    imitated = []
    for row, (a, b) in zip(sums(), ADDENDS, strict=True):
        for found in (a + b + 1, a + b + 1, a + b - 1, a + b + 2):
            feedback = feedback_text(f"expected {a + b}, found {found}", "")
            corrected = HINT.format(prompt=row["messages"][0]["content"], feedback=feedback)
            imitated += replies(user(corrected), str(a + b))
    distillation = {"weight": 1.0, "feedback": "grader", "alone": True, "template": HINT}
    hyperparameters = {
        "n_steps": 10,
        "prompts_per_step": 16,
        "max_completion_tokens": 4,
        "learning_rate": 3e-4,
        "self_distillation": distillation,
    }
    grader = {"type": "numeric", "reference": "{{item.answer}}"}
    return Task(imitated, sums(), method(grader, hyperparameters))


TASKS = {
    "process": process_task(),
    "tool": tool_task(),
    "code_tests": code_task(),
    "judge": judge_task(),
    "self_distillation": distillation_task(),
    "quantized": quantized_task(),
}
