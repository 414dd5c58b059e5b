"""Translates reward functions into graders: TRL's own by name, Python functions by their source.

Boundary: pure. The source is parsed here but never run; it runs in the sandbox, like every `python` grader.
"""

import ast
import re
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from service.importing.rules import Refusal

NOT_FOUND = "its file was not found: give --reward file.py:function"
SUPPLIED = ("prompts", "completions")
"""Arguments that the wrapper passes besides the row's columns."""
NOT_HERE = {
    "completion_ids": "a grader sees the text and its number of tokens, not the tokens",
    "trainer_state": "a grader does not see the trainer's state",
    "environments": "a grader does not see them; a grader of type environment gives their own rewards",
}
WRAPPED = "called with one completion at a time, in the sandbox, with only the standard library"


@dataclass(frozen=True)
class Reward:
    """A reward function's graders, by a suffix of its key, and its term in the formula."""

    graders: Mapping[str, dict[str, Any]]
    formula: str = "{key}"
    note: str = ""


SOLUTION = "{{item.solution}}"
BUILT_IN = {
    "accuracy_reward": Reward(
        {"": {"type": "math", "reference": SOLUTION}},
        note="numbers and expressions outside LaTeX also count as answers",
    ),
    "reasoning_accuracy_reward": Reward(
        {"": {"type": "math", "reference": SOLUTION}},
        note="the answer is read from the whole completion, not only from what follows </think>",
    ),
    "think_format_reward": Reward(
        {
            "_tags": {"type": "format", "tags": ["think"]},
            "_start": {"type": "format", "pattern": r"(?s)<think>.*", "match": "full"},
        },
        "min({key}_tags, {key}_start)",
        note="a second </think> is wrong here",
    ),
    "get_soft_overlong_punishment": Reward(
        {"": {"type": "length", "mode": "soft_overlong", "unit": "tokens", "maximum": 1280, "buffer": 256}}
    ),
}
"""TRL's own functions with the arguments that its script passes."""
_OVERLONG = re.compile(r"get_soft_overlong_punishment\((\d+),(\d+)\)")
"""The length penalty with the arguments of a user's script: the maximum and the buffer."""


def grader_of(name: str, sources: Mapping[str, str]) -> Reward:
    """The graders for a reward function's name. Raises Refusal."""
    plain = name.removeprefix("trl.rewards.")
    if plain in BUILT_IN:
        return BUILT_IN[plain]
    if match := _OVERLONG.fullmatch(plain):
        limits = {"maximum": int(match[1]), "buffer": int(match[2])}
        return Reward({"": {"type": "length", "mode": "soft_overlong", "unit": "tokens", **limits}})
    if name not in sources:
        raise Refusal(NOT_FOUND)
    function = re.split(r"[.:]", name)[-1]
    source, note = wrapped(sources[name], function)
    return Reward({"": {"type": "python", "source": source}}, note=note)


def key_of(name: str, taken: Container[str]) -> str:
    """A variable name for the formula that is not taken."""
    key = re.sub(r"\W", "_", name)[:48] or "reward"
    key = f"r_{key}" if key[0].isdigit() else key
    return next(each for each in (key, *(f"{key}_{n}" for n in range(2, 99))) if each not in taken)


def wrapped(source: str, name: str) -> tuple[str, str]:
    """The module with a `grade(sample, item)` that calls the function, and a note on its limits.

    Raises Refusal if the function cannot be called that way.
    """
    function = _function(source, name)
    columns = _columns(function)
    note = f"{WRAPPED}; the rows need {', '.join(columns)}" if columns else WRAPPED
    return f"{source.rstrip()}\n\n\n{_adapter(function)}", note


_RETURNED = "return float(reward) if isinstance(reward, bool) else reward"
"""TRL and verl put rewards into a tensor, which makes numbers of bools; the sandbox refuses a bool."""
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
"""Arguments that verl passes to a reward function."""


def wrapped_verl(source: str | None, reference: str) -> tuple[str, str]:
    """The same for verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`.

    Of a dict that it returns, only `score` is the reward; verl logs the other values.
    """
    if source is None:
        raise Refusal(NOT_FOUND)
    function = _function(source, reference.rpartition(":")[2])
    names = [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]
    if others := [name for name in _columns(function) if name not in VERL]:
        raise Refusal(f"verl calls it with {', '.join(VERL)}, and it needs {', '.join(others)}")
    taken = VERL if function.args.kwarg else tuple(name for name in VERL if name in names)
    adapter = f"""def grade(sample, item):
    given = {{
        "data_source": item.get("data_source"),
        "solution_str": sample["output_text"],
        "ground_truth": item["reward_model"]["ground_truth"],
        "extra_info": item.get("extra_info"),
    }}
    reward = {function.name}(**{{name: given[name] for name in {taken!r}}})
    reward = reward["score"] if isinstance(reward, dict) else reward
    {_RETURNED}
"""
    return f"{source.rstrip()}\n\n\n{adapter}", f"{WRAPPED}; the rows need reward_model.ground_truth"


def _function(source: str, name: str) -> ast.FunctionDef:
    """The function of that name. Raises Refusal if the sandbox cannot call it."""
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        raise Refusal(f"line {error.lineno}: {error.msg}") from None
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    found = {node.name: node for node in module.body if isinstance(node, kinds)}
    if name not in found:
        raise Refusal(f"its file defines no function {name} at its top level")
    if "grade" in found:
        raise Refusal("its file defines a function named grade, which is the grader's own name")
    function = found[name]
    if isinstance(function, ast.AsyncFunctionDef):
        raise Refusal("async functions are not supported: use an `endpoint` grader to call other machines")
    if foreign := _foreign_modules(module):
        which = ", ".join(foreign)
        raise Refusal(f"it imports {which}, and the sandbox has only the standard library; see `endpoint`")
    return function


def _foreign_modules(module: ast.Module) -> list[str]:
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or "").partition(".")[0])
    return sorted(names - sys.stdlib_module_names)


def _columns(function: ast.FunctionDef) -> list[str]:
    """Columns that it requires. Raises Refusal for arguments that only TRL's trainer has."""
    arguments = function.args
    if arguments.posonlyargs:
        raise Refusal("TRL passes arguments by name, and some of its parameters are positional-only")
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    needed = [each.arg for each in arguments.args[: len(arguments.args) - len(arguments.defaults)]]
    needed += [each.arg for each, default in named if default is None]
    for name, why in NOT_HERE.items():
        if name in needed:
            raise Refusal(f"it needs {name}: {why}")
    return [name for name in needed if name not in SUPPLIED]


def _adapter(function: ast.FunctionDef) -> str:
    """Source of `grade`, which passes lists with one completion; None stays None, a bool becomes a number."""
    arguments = function.args
    names = [each.arg for each in (*arguments.args, *arguments.kwonlyargs)]
    taken = f"{{name: given[name] for name in {tuple(sorted(names))!r} if name in given}}"
    passed = "given" if arguments.kwarg else taken
    return f"""def grade(sample, item):
    text = sample["output_text"]
    is_plain = "prompt" in item
    given = {{name: [value] for name, value in item.items() if name not in ("prompt", "prompt_messages")}}
    given["prompts"] = [item["prompt"] if is_plain else item.get("prompt_messages")]
    given["completions"] = [text if is_plain else [{{"role": "assistant", "content": text}}]]
    reward = {function.name}(**{passed})[0]
    {_RETURNED}
"""
