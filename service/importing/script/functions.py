"""The reward functions of a script: names for `rewards.py`, and the source that each needs."""

import ast
from collections.abc import Iterator

from service.importing.script.bindings import NotConstant
from service.importing.script.constants import Located, source_of
from service.importing.script.script import Script
from service.importing.script.slices import slice_of


def reward_fields(script: Script, value: Located) -> None:
    """`reward_funcs` and the functions' sources. Raises NotConstant."""
    found = script.constants.followed(value)
    each_of = found.node.elts if isinstance(found.node, ast.List | ast.Tuple) else [found.node]
    names: list[str] = []
    for each in each_of:
        original = value if each is found.node else Located(each, found.scope)
        try:
            names += _reward(script, original)
        except NotConstant as error:
            script.refuse("reward_funcs", each, str(error))
    script.fields["reward_funcs"] = names


def _reward(script: Script, value: Located) -> Iterator[str]:
    """The name under which `rewards.py` finds the reward function."""
    names, found = script.constants.named(value)
    node = found.node
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if "reward_model_name_or_path" in script.fields:
            raise NotConstant(node, "one reward model per job: name others in graders of type reward_model")
        script.fields["reward_model_name_or_path"] = node.value
    elif isinstance(node, ast.ImportFrom):
        imported, _ = names[-1]
        original = next(a.name for a in node.names if (a.asname or a.name) == imported)
        yield original if (node.module or "").startswith("trl") else f"{node.module}.{original}"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        name = f"{script.path.name}:{node.lineno}:{node.name}"
        script.sources[name] = slice_of(script.text, script.constants.bindings, node.name, found.scope)
        yield name
    elif isinstance(node, ast.Call) and script.callee(found).endswith("get_soft_overlong_punishment"):
        limits = ("max_completion_len", "soft_punish_cache")
        given = script.arguments(node, found.scope, limits)
        numbers = [script.constants.value(given[each]) for each in limits if each in given]
        yield f"get_soft_overlong_punishment({','.join(map(str, numbers))})"
    else:
        why = f"`{source_of(node)}` is not a function of the script: write def name(completions, **kwargs)"
        raise NotConstant(value.node, why)
