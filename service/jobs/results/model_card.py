"""The model card of a job's result: evaluation, use and training.

Boundary: pure text of a manifest; equal manifests give equal bytes.
"""

import json
from collections.abc import Mapping
from typing import Any

from jinja2 import Template

from service.jobs.results.manifest import settings_in
from service.jobs.results.vllm_command import MERGED, base_path, holds_whole_model, serve_line

SHOWN = (
    *("recipe", "loss_type", "advantage", "group_size", "prompts_per_step", "n_steps", "n_epochs"),
    *("learning_rate", "lr_schedule", "beta", "epsilon_low", "epsilon_high", "temperature"),
    "max_completion_tokens",
)
"""Hyperparameters that the card shows, if the method has them; manifest.json has all."""
TAGS = {"reinforcement": ["grpo", "reinforcement-learning"], "supervised": ["sft"]}
BITS = {"nf4": "4 bits (bitsandbytes, NF4 with double quantisation)", "int8": "8 bits (bitsandbytes)"}
LOADING = {
    "nf4": 'load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True',
    "int8": "load_in_8bit=True",
}
"""Arguments of transformers' BitsAndBytesConfig, as the engine sets them."""
CONVERTING = {"fp8": "FineGrainedFP8Config", "mxfp4": "Mxfp4Config"}
"""Format of the base's quantised files → transformers' class that converts them, as the engine does."""
CARD = """\
---
base_model: {{ json(model.base) }}
{% if library %}
library_name: {{ library }}
{% endif %}
pipeline_tag: text-generation
tags:
{% for tag in tags %}
- {{ json(tag) }}
{% endfor %}
---

# {{ title }} {{ model.base }}

## Evaluation

{% if "last" not in evaluation %}
None: the job had no held-out rows, or this is one of its checkpoints.
{% else %}
| held-out rows | mean reward | step |
|---|---|---|
{% for name, time in (("baseline", "before training"), ("best", "best"), ("last", "after training")) %}
{% if name in evaluation %}
| {{ time }} | {{ number(evaluation[name]) }} | {{ evaluation[name].step }} |
{% endif %}
{% endfor %}
{% endif %}
{% set verdict = evaluation.verdict %}
{% if verdict %}

{% set compared = " (" ~ verdict.rows ~ " rows compared, paired bootstrap over the rows)" %}
Change over the job: {{ verdict.text }}{{ "" if verdict.difference is none else compared }}.
{% endif %}
{% for name, kept in (evaluation.retention or {}).items() %}
{% set result = "change " + kept.verdict.text if kept.verdict else "mean reward " + number(kept.last) %}
{{ "\n" if loop.first }}* `{{ name }}`, rows of another domain: {{ result }}
{% endfor %}

{% if quantization %}
## Quantised base

{% if library == "peft" %}
The adapter was trained on `{{ model.base }}` in {{ BITS[quantization] }}.
On the unquantised base its completions differ slightly.
{% else %}
The adapter was trained on `{{ model.base }}` in {{ BITS[quantization] }}, and is merged into the base in the
precision of its files. {% if merge.difference is none %}
What this changes was not measured: the job has no held-out rows.
{% else %}
{% set found = merge.difference %}
On {{ found.rows }} held-out completions ({{ found.tokens }} tokens) the mean log-probability of a token is
{{ "%.4f" % found.quantized }} with the adapter on the quantised base and {{ "%.4f" % found.merged }} in this
model: a difference of {{ "%+.4f" % (found.merged - found.quantized) }} nats, on average
{{ "%.4f" % found.mean_absolute }} in absolute value.
{% endif %}
{% endif %}

{% endif %}
{% if library %}
## Use

{% if library == "peft" and model.base_place == "job" %}
The base model is the result of another job. Download it beside this folder, from its service:

```sh
grpo download {{ model.base_job }}{{ " --checkpoint " + checkpoint if checkpoint }} --extract
```

Without `grpo`, unpack this tar.gz into `{{ base_path }}`:
`GET /v1/fine_tuning/jobs/{{ model.base_job }}/adapter{{ "?checkpoint=" + checkpoint if checkpoint }}`

{% elif library == "peft" and model.base_place == "folder" %}
`{{ model.base }}` is the base model's name in the service that trained this adapter. Replace it with the path
of your copy, or export the job: `grpo merge` makes a model that needs no base.

{% endif %}
```python
{% if library == "peft" %}
from peft import PeftModel
from transformers import {{ base_class }}, AutoTokenizer{{ ", " + configuration if configuration }}

{% if quantization %}
quantized = BitsAndBytesConfig({{ LOADING[quantization] }}
{%- if quantization == "nf4" and engine.dtype %}, bnb_4bit_compute_dtype={{ json(engine.dtype) }}{% endif %})
base = {{ base_class }}.from_pretrained({{ json(base_path) }}, quantization_config=quantized)
{% elif converting %}
converted = {{ converting }}(dequantize=True)  # adapters have no gradient on the quantised weights
base = {{ base_class }}.from_pretrained({{ json(base_path) }}, quantization_config=converted)
{% else %}
base = {{ base_class }}.from_pretrained({{ json(base_path) }})
{% endif %}
model = PeftModel.from_pretrained(base, ".")
tokenizer = AutoTokenizer.from_pretrained({{ json(base_path) }})
{% else %}
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".")
tokenizer = AutoTokenizer.from_pretrained(".")
{% endif %}
```

In vLLM, from this folder:

```sh
{{ serve }}
```

{% else %}
## Use

`prompt.txt` has the lessons as text for the prompt. Put it before the text of the system message, with an
empty line between; without a system message, before the text of the first user message. `prompt.json` shows
it in a row, and `experiences.json` lists the lessons.

{% endif %}
## How it was made

`manifest.json` has the whole configuration; `grpo rerun manifest.json` submits the same job again.

| | |
|---|---|
| started from | `{{ model.name }}`{% if model.revision %} at `{{ model.revision }}`{% endif %} |
| method | {{ method.type }} |
{% for name, file in data.items() %}
| {{ name }} | sha256 `{{ file.sha256 }}` |
{% endfor %}
{% for name, rule in graders.items() %}
| {{ name }} | `{{ rule.type }}`, sha256 `{{ rule.sha256 }}` |
{% endfor %}
{% for name in shown %}
{% if hyperparameters.get(name) is not none %}
| {{ name }} | {{ hyperparameters[name] }} |
{% endif %}
{% endfor %}
| seed | {{ seed }} |
| configuration | sha256 `{{ configuration_sha256 }}` |
{% if engine %}
| ran on | {{ engine.device }}, {{ engine.dtype }}, sampler {{ engine.sampler }} |
{% endif %}
{% if versions %}
| versions | {{ versions }} |
{% endif %}
"""


def model_card(manifest: Mapping[str, Any]) -> str:
    """A README.md with the hub's front matter, which is YAML with strings in JSON's form."""
    template = Template(CARD, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    kind, base = manifest["method"]["type"], manifest["model"]["base"]
    versions = manifest["engine"].get("versions", {})
    tags = TAGS.get(kind, [kind])
    if kind == "training_free":
        library, title = "", "Lessons for the prompt of"
    elif holds_whole_model(manifest):
        library, tags = "transformers", [f"base_model:finetune:{base}", *tags]
        is_merged = manifest.get("weights") == MERGED
        title = "A LoRA adapter merged into" if is_merged else "All weights, trained from"
    else:
        library, tags = "peft", [f"base_model:adapter:{base}", "lora", *tags]
        title = "A LoRA adapter for"
    hyperparameters = settings_in(manifest["method"])["hyperparameters"]
    quantization = hyperparameters.get("quantization")
    converting = CONVERTING.get(manifest["engine"].get("base_format"))
    return template.render(
        manifest,
        quantization=quantization,
        BITS=BITS,
        LOADING=LOADING,
        converting=converting,
        base_class=manifest["engine"].get("base_class") or "AutoModelForCausalLM",
        configuration="BitsAndBytesConfig" if quantization else converting,
        library=library,
        title=title,
        tags=tags,
        base_path=base_path(manifest["model"], "./"),
        checkpoint=manifest["model"].get("base_checkpoint"),
        serve=serve_line(manifest, name="tuned", path="./"),
        hyperparameters=hyperparameters,
        shown=SHOWN,
        versions=", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
        json=json.dumps,
        number=_mean_reward,
    )


def _mean_reward(evaluation: Mapping[str, Any]) -> str:
    reward = evaluation.get("reward")
    return "" if reward is None else f"{reward:.4f}"
