"""The model card of a job's result: what it is, what it can do, how it was made, how it is used.

Boundary: pure text of a manifest; equal manifests give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from service.jobs.results.manifest import settings_in
from service.jobs.results.vllm_command import MERGED, holds_whole_model, serve_line

SHOWN = (
    "recipe",
    "loss_type",
    "advantage",
    "group_size",
    "prompts_per_step",
    "n_steps",
    "n_epochs",
    "learning_rate",
    "lr_schedule",
    "beta",
    "epsilon_low",
    "epsilon_high",
    "temperature",
    "max_completion_tokens",
)
"""Of the hyperparameters, where the method has them; all are in manifest.json."""
PEFT = """```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained({base})
model = PeftModel.from_pretrained(base, ".")
tokenizer = AutoTokenizer.from_pretrained({base})
```"""
WHOLE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".")
tokenizer = AutoTokenizer.from_pretrained(".")
```"""


def model_card(manifest: Mapping[str, Any]) -> str:
    """README.md with the hub's front matter."""
    return "\n".join([*_front_matter(manifest), "", *_body(manifest)]) + "\n"


def _front_matter(manifest: Mapping[str, Any]) -> Iterator[str]:
    """YAML; strings as JSON has them, which YAML reads."""
    base, library = manifest["model"]["base"], _library(manifest)
    yield "---"
    yield f"base_model: {json.dumps(base)}"
    if library:
        yield f"library_name: {library}"
    yield "pipeline_tag: text-generation"
    yield "tags:"
    yield from (f"- {json.dumps(tag)}" for tag in _tags(manifest, base))
    yield "---"


def _tags(manifest: Mapping[str, Any], base: str) -> list[str]:
    method = manifest["method"]["type"]
    kind = {"reinforcement": ["grpo", "reinforcement-learning"], "supervised": ["sft"]}.get(method, [method])
    relation = {
        "peft": [f"base_model:adapter:{base}", "lora"],
        "transformers": [f"base_model:finetune:{base}"],
    }
    return [*relation.get(_library(manifest), []), *kind]


def _library(manifest: Mapping[str, Any]) -> str:
    if manifest["method"]["type"] == "training_free":
        return ""
    return "transformers" if holds_whole_model(manifest) else "peft"


def _hyperparameters(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = settings_in(manifest["method"])["hyperparameters"]
    return found


def _body(manifest: Mapping[str, Any]) -> Iterator[str]:
    base = manifest["model"]["base"]
    what = {"peft": "A LoRA adapter for", "transformers": "All weights, trained from"}
    if manifest.get("weights") == MERGED:
        what["transformers"] = "A LoRA adapter merged into"
    yield f"# {what.get(_library(manifest), 'Lessons for the prompt of')} {base}"
    yield ""
    yield from _evaluation(manifest)
    yield from _use(manifest, base)
    yield from _training(manifest)


def _evaluation(manifest: Mapping[str, Any]) -> Iterator[str]:
    yield "## Evaluation"
    yield ""
    known = manifest["evaluation"]
    if "last" not in known:
        yield "None: the job had no held-out rows, or this is one of its checkpoints."
        yield ""
        return
    yield "| held-out rows | mean reward | step |"
    yield "|---|---|---|"
    for name, when in (("baseline", "before training"), ("best", "best"), ("last", "after training")):
        if row := known.get(name):
            yield f"| {when} | {_number(row.get('reward'))} | {row.get('step')} |"
    yield ""
    if verdict := known.get("verdict"):
        rows = f"{verdict['rows']} rows compared, paired bootstrap over the rows"
        yield f"Over the job: {verdict['text']} ({rows})."
        yield ""
    for name, kept in (known.get("retention") or {}).items():
        told = (kept.get("verdict") or {}).get("text") or f"mean reward {_number(kept['last'].get('reward'))}"
        yield f"* `{name}`, rows of another domain: {told}"
    if known.get("retention"):
        yield ""


def _use(manifest: Mapping[str, Any], base: str) -> Iterator[str]:
    library = _library(manifest)
    if not library:
        return
    yield "## Use"
    yield ""
    yield from (PEFT.format(base=json.dumps(base)) if library == "peft" else WHOLE).splitlines()
    yield ""
    yield "In vLLM, from this folder:"
    yield ""
    yield "```sh"
    yield serve_line(manifest, name="tuned", path="./")
    yield "```"
    yield ""


def _training(manifest: Mapping[str, Any]) -> Iterator[str]:
    engine = manifest["engine"]
    versions = engine.get("versions", {})
    yield "## How it was made"
    yield ""
    yield "`manifest.json` has the whole configuration; `grpo rerun manifest.json` asks for the same job."
    yield ""
    yield "| | |"
    yield "|---|---|"
    started = manifest["model"]["name"]
    yield f"| started from | `{started}`{_at(manifest['model']['revision'])} |"
    yield f"| method | {manifest['method']['type']} |"
    for name, file in manifest["data"].items():
        yield f"| {name} | sha256 `{file['sha256']}` |"
    for name, rule in manifest["graders"].items():
        yield f"| {name} | `{rule['type']}`, sha256 `{rule['sha256']}` |"
    settings = _hyperparameters(manifest)
    for name in SHOWN:
        if settings.get(name) is not None:
            yield f"| {name} | {settings[name]} |"
    yield f"| seed | {manifest['seed']} |"
    yield f"| configuration | sha256 `{manifest['configuration_sha256']}` |"
    if engine:
        yield f"| ran on | {engine.get('device')}, {engine.get('dtype')}, sampler {engine.get('sampler')} |"
    if versions:
        yield f"| versions | {', '.join(f'{name} {found}' for name, found in sorted(versions.items()))} |"


def _at(revision: str | None) -> str:
    return f" at `{revision}`" if revision else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
