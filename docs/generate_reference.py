"""Write `reference/hyperparameters.md` and `reference/graders/`: the fields of a job, from their models.

    python -m docs.generate_reference

Types, ranges and defaults come from the JSON schemas that validate a job, meanings from the
fields' descriptions. Boundary: pages are text; `docs/grader_examples.py` holds the examples.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from docs.field_meanings import class_text, meanings
from docs.grader_examples import EXAMPLES, Example
from grpo_engine.config.guards import Guard
from grpo_engine.config.hyperparameters import Lora, SupervisedHyperparameters
from grpo_engine.config.recipes import ALIASES, CLIPS, RECIPES
from grpo_engine.config.reinforcement import EarlyStopping, ReinforcementHyperparameters, SelfDistillation
from grpo_engine.config.training_free import EndpointModel, TrainingFreeHyperparameters
from grpo_engine.graders.base import GraderBase
from grpo_engine.graders.rules.multi import Multi, SingleGrader
from grpo_engine.graders.rules.score_model import JudgeMessage, SamplingParams, TextPart

REFERENCE = Path(__file__).parent / "reference"
Schema = dict[str, Any]
METHODS: dict[str, type[BaseModel]] = {
    "reinforcement": ReinforcementHyperparameters,
    "supervised": SupervisedHyperparameters,
    "training_free": TrainingFreeHyperparameters,
}
OBJECTS: tuple[type[BaseModel], ...] = (Lora, SelfDistillation, EarlyStopping, Guard, EndpointModel)
PARTS: dict[str, tuple[type[BaseModel], ...]] = {"score_model": (JudgeMessage, TextPart, SamplingParams)}
"""Objects inside a grader's fields, described on its page."""
KINDS: dict[str, type[GraderBase]] = {
    str(kind.model_json_schema()["properties"]["type"]["const"]): kind
    for kind in [*get_args(SingleGrader), Multi]
}
DEFAULTS = {"guards": "every kind, action `warn`"}
"""Texts for defaults that are made by a factory."""


def type_and_range(schema: Schema) -> tuple[str, str]:
    """The types of a value and its bounds (empty: none)."""
    options: list[Schema] = schema.get("anyOf") or schema.get("oneOf") or []
    if "anyOf" in schema or 0 < len(options) < 4:
        found = [type_and_range(option) for option in options if option != NULL]
        names, ranges = ([row[column] for row in found] for column in (0, 1))
        return " or ".join(dict.fromkeys(names)), " or ".join(dict.fromkeys(filter(None, ranges)))
    if "oneOf" in schema:
        return "[grader](README.md)", ""
    if "$ref" in schema:
        return f"[{(name := schema['$ref'].rpartition('/')[2])}](#{name.lower()}-object)", ""
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")])), ""
    if schema.get("type") == "array" and "items" in schema:
        inner, bounds = type_and_range(schema["items"])
        return f"list of {inner}", "; ".join(filter(None, (_bounds(schema, "Items", " items"), bounds)))
    if "patternProperties" in schema:
        (inner,) = schema["patternProperties"].values()
        return f"object: name → {type_and_range(inner)[0]}", _bounds(schema, "Length", " entries")
    if schema.get("type") == "string":
        return "string", _bounds(schema, "Length", " characters")
    if schema.get("type") == "array":
        return "list", _bounds(schema, "Items", " items")
    return str(schema.get("type", "any JSON")), _bounds(schema, "imum", "")


NULL: Schema = {"type": "null"}


def _bounds(schema: Schema, suffix: str, unit: str) -> str:
    """`1 to 64`, `≥ 1`, `> 0, ≤ 1`; empty without bounds."""
    low, high = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return (f"{_number(low)} to {_number(high)}" if low != high else _number(low)) + unit
    limits = (("> ", above), ("≥ ", low), ("< ", below), ("≤ ", high))
    text = ", ".join(f"{sign}{_number(value)}" for sign, value in limits if value is not None)
    return text + unit if text else ""


def _number(value: float) -> str:
    """`4,096`; `1e15` for a very large number."""
    return f"{value:g}".replace("e+", "e") if abs(value) >= 1e12 else f"{value:,}"


def default_of(model: type[BaseModel], name: str) -> str:
    """The value that an unset field has, as the page shows it."""
    if name in DEFAULTS:
        return DEFAULTS[name]
    if name == "learning_rate":
        adapter, full = (model.model_validate({"lora": lora}) for lora in (None, "full"))
        return f"`{getattr(adapter, name):g}`; `{getattr(full, name):g}` for all weights"
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "unset"
    shown = value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else value
    return f"`{json.dumps(shown)}`"


def cell(text: str) -> str:
    """Text for a table: one line, no bar that ends the cell."""
    return " ".join(text.split()).replace("|", "\\|")


def field_rows(model: type[BaseModel], *, skip: tuple[str, ...] = ()) -> Iterator[str]:
    """A row for each field of an object: name, type, range, default, meaning."""
    descriptions, properties = meanings(model), model.model_json_schema()["properties"]
    for name in model.model_fields:
        if name not in skip:
            kind, bounds = type_and_range(properties[name])
            row = (f"`{name}`", kind, bounds, default_of(model, name), descriptions[name])
            yield "| " + " | ".join(map(cell, row)) + " |"


FIELDS = "| field | type | range | default | meaning |\n|---|---|---|---|---|"


def object_section(model: type[BaseModel]) -> str:
    return f"### {model.__name__} object\n\n{class_text(model)}\n\n{FIELDS}\n" + "\n".join(field_rows(model))


def hyperparameter_section(name: str) -> str:
    """The section on a hyperparameter: where it applies, with its type, range, default and meaning."""
    applies: dict[tuple[str, ...], list[str]] = {}
    texts: dict[str, list[str]] = {}
    for method, model in METHODS.items():
        if name in model.model_fields:
            kind, bounds = type_and_range(model.model_json_schema()["properties"][name])
            applies.setdefault((kind, bounds, default_of(model, name)), []).append(method)
            texts.setdefault(meanings(model)[name], []).append(method)
    rows = [f"| {', '.join(methods)} | {' | '.join(map(cell, row))} |" for row, methods in applies.items()]
    sentences = [
        text if len(texts) == 1 else f"{', '.join(f'`{method}`' for method in methods)}: {text}"
        for text, methods in texts.items()
    ]
    others = [f"`{alias}`" for alias, canonical in ALIASES.items() if canonical == name]
    also = [f"Also accepted as {', '.join(others)}."] if others else []
    head = "| method | type | range | default |\n|---|---|---|---|"
    return "\n\n".join((f"### {name}", "\n".join((head, *rows)), *sentences, *also))


def recipe_rows() -> Iterator[str]:
    for recipe, stated in RECIPES.items():
        values = {**CLIPS.get(str(stated["loss_type"]), {}), **stated}
        shown = ", ".join(f"`{name}` {json.dumps(value)}" for name, value in values.items())
        yield f"| `{recipe}` | {shown} |"


def hyperparameter_page() -> str:
    names = sorted({name for model in METHODS.values() for name in model.model_fields})
    links = [
        f"**`{method}`**\n" + ",\n".join(f"[{name}](#{name})" for name in model.model_fields)
        for method, model in METHODS.items()
    ]
    return "\n\n".join(
        (
            HYPERPARAMETERS_HEAD.strip(),
            *links,
            "## Recipes\n\nA recipe sets these values unless the job sets them.",
            "\n".join(("| recipe | values |\n|---|---|", *recipe_rows())),
            "## Hyperparameters",
            *(hyperparameter_section(name) for name in names),
            "## Objects",
            *(object_section(model) for model in OBJECTS),
        )
    )


def example_text(example: Example) -> str:
    """A request of `graders/run` and the reward that it returns."""
    body = json.dumps(example.request(), indent=2, ensure_ascii=False)
    gives = f"\n\nThe reward is `{example.reward}`." if example.reward is not None else ""
    return f"## Example\n\n```json\n{body}\n```{gives}{example.note and chr(10) * 2 + example.note}"


def grader_page(kind: str) -> str:
    model, example = KINDS[kind], EXAMPLES[kind]
    fields = "\n".join((FIELDS, f"| `type` | `{kind}` |  | required | Kind of the grader. |"))
    parts = [object_section(part) for part in PARTS.get(kind, ())]
    return "\n\n".join(
        (
            f"# Grader `{kind}`",
            GENERATED,
            class_text(model),
            "## Fields",
            "\n".join((fields, *field_rows(model, skip=("type",)))),
            *parts,
            example_text(example),
        )
    )


def grader_index() -> str:
    rows = [
        f"| [`{kind}`]({kind}.md) | {cell(class_text(model).split(chr(10) * 2)[0])} | {RUNS[kind]} |"
        for kind, model in KINDS.items()
    ]
    return GRADERS_HEAD.strip() + "\n\n| type | reward | runs in |\n|---|---|---|\n" + "\n".join(rows)


RUNS = {
    **dict.fromkeys(
        ("string_check", "numeric", "format", "length", "text_similarity", "environment"), "engine"
    ),
    **dict.fromkeys(("math", "reward_model"), "own process"),
    **dict.fromkeys(("code_tests", "python", "reasoning_gym"), "sandbox"),
    **dict.fromkeys(("score_model", "endpoint"), "another server"),
    **dict.fromkeys(("process", "multi"), "as its graders"),
}
GENERATED = "Generated by `python -m docs.generate_reference` from the models that validate a job."
HYPERPARAMETERS_HEAD = f"""
# Hyperparameters

{GENERATED}

Set these fields under `method.<type>.hyperparameters`. The service refuses a value of the wrong type or
outside its range and names the field in `param`. If the default is "unset", the feature is off unless the
text says otherwise. [Methods](../write-a-job/methods.md) explains how the fields work together.
"""
GRADERS_HEAD = f"""
# Graders

{GENERATED}

A grader returns one number for one completion. Fields such as `input` and `reference` are templates:
`{{{{item.field}}}}` is a field of the dataset row, `{{{{sample.output_text}}}}` is the completion, and
`{{{{sample.output_json.field}}}}` is a field of the completion parsed as JSON. If a grader cannot score a
completion, it reports an error, and the completion is left out of its group; it never counts as 0.
[Writing a grader](../../write-a-job/graders.md) shows how to choose and test one.
"""


def pages() -> dict[Path, str]:
    """File → its whole text."""
    graders = {REFERENCE / "graders" / f"{kind}.md": grader_page(kind) for kind in KINDS}
    return {
        REFERENCE / "hyperparameters.md": hyperparameter_page() + "\n",
        REFERENCE / "graders" / "README.md": grader_index() + "\n",
        **{path: text + "\n" for path, text in graders.items()},
    }


def main() -> int:
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
