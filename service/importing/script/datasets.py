"""The datasets of a script: the name and split of each `load_dataset(…)`, and what changes its rows."""

import ast

from service.importing.script.bindings import NotConstant
from service.importing.script.constants import Located, source_of
from service.importing.script.script import Script

LOAD = "load_dataset"
FILES = ("json", "csv", "parquet")
"""Loaders whose `data_files` are the dataset."""


def dataset_fields(script: Script, value: Located, *, held_out: bool = False) -> None:
    """The fields of the training rows, or of the held-out ones. Raises NotConstant."""
    name = "dataset_test_split" if held_out else "dataset_name"
    found, split, changes = _origin(script, value)
    if not script.callee(found).endswith(LOAD) or not isinstance(found.node, ast.Call):
        why = f"`{source_of(found.node)}` is no {LOAD}(…): write the rows to a file, and give it with --data"
        script.refuse("eval_dataset" if held_out else "train_dataset", value.node, why)
        return
    wanted = ("path", "name", "split", "data_files")
    arguments = script.arguments(found.node, found.scope, wanted[:2])
    given = {each: script.constants.value(arguments[each]) for each in wanted if each in arguments}
    split = str(given.get("split") or split or "train")
    if held_out:
        script.fields[name] = split
    else:
        is_file = given.get("path") in FILES and isinstance(given.get("data_files"), str)
        script.fields["dataset_name"] = given["data_files"] if is_file else given.get("path")
        script.fields["dataset_train_split"] = split
        if given.get("name"):
            script.fields["dataset_config"] = given["name"]
    if changes:
        why = f"{', '.join(changes)}: rows are uploaded unchanged, so make these changes to the file"
        script.differs(name, value.node, why)


def _origin(script: Script, value: Located) -> tuple[Located, str | None, list[str]]:
    """Where the rows come from, the split that is selected, and the calls that change the rows.

    Follows names, `dataset["train"]`, `dataset.map(…)` and functions of the script that return a dataset.
    """
    split, changes, entered = None, list[str](), list[ast.AST]()
    while True:
        found = script.constants.followed(value)
        match found.node:
            case ast.Subscript(value=inner, slice=key):
                split = _text(script, Located(key, found.scope)) or split
                value = Located(inner, found.scope)
            case ast.Call(func=ast.Name()) if isinstance(
                made := script.constants.followed(Located(found.node.func, found.scope)), Located
            ) and isinstance(made.node, ast.FunctionDef):
                returned = [each.value for each in ast.walk(made.node) if isinstance(each, ast.Return)]
                if not returned or returned[-1] is None or made.node in entered:
                    return found, split, changes
                entered.append(made.node)
                value = Located(returned[-1], made.node)
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if not script.callee(found).endswith(
                LOAD
            ):
                changes.insert(0, f"line {found.node.end_lineno}: .{name}(…)")
                value = Located(inner, found.scope)
            case _:
                return found, split, changes


def _text(script: Script, found: Located) -> str | None:
    try:
        return str(script.constants.value(found))
    except NotConstant:
        return None  # the split is a parameter, usually `train`
