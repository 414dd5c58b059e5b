"""Reinforcement fine-tuning as in OpenAI's guide, for their service; it runs unchanged on this one.

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=… python -m examples.openai_script

Boundary: OpenAI's client only. MODEL is a name that the operator gave to a model: `grpo models add
o4-mini-2025-04-16 PATH`. The script writes the result files to the current folder.
"""

import json
import time
from pathlib import Path
from typing import Any

from openai import OpenAI

MODEL = "o4-mini-2025-04-16"
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"total": {"type": "string"}},
            "required": ["total"],
            "additionalProperties": False,
        },
    },
}
GRADER: Any = {  # the client's types allow a `multi` grader with one grader only
    "type": "multi",
    "graders": {
        "exact": {
            "type": "string_check",
            "name": "exact",
            "operation": "like",
            "input": "{{sample.output_text}}",
            "reference": "{{item.total}}",
        },
        "near": {
            "type": "text_similarity",
            "name": "near",
            "evaluation_metric": "fuzzy_match",
            "input": "{{sample.output_text}}",
            "reference": "{{item.total}}",
        },
        "short": {
            "type": "python",
            "name": "short",
            "image_tag": "2025-05-08",
            "source": "def grade(sample, item):\n    return float(len(sample['output_text']) < 40)\n",
        },
    },
    "calculate_output": "0.8 * exact + 0.1 * near + 0.1 * short",
}
METHOD: Any = {  # the client's types lack the `response_format` of a method
    "type": "reinforcement",
    "reinforcement": {
        "grader": GRADER,
        "response_format": SCHEMA,
        "hyperparameters": {
            "n_epochs": 1,
            "batch_size": 4,
            "learning_rate_multiplier": 1.0,
            "compute_multiplier": 0.5,
            "eval_interval": 2,
            "eval_samples": 4,
            "reasoning_effort": "medium",
        },
    },
}


def rows(first: int, last: int) -> bytes:
    """Sums with the answer beside the conversation."""
    lines = [
        {
            "messages": [
                {"role": "developer", "content": 'Answer as {"total": "…"}.'},
                {"role": "user", "content": f"{n}+{n + 1}="},
            ],
            "total": str(2 * n + 1),
        }
        for n in range(first, last)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def main() -> None:
    client = OpenAI()
    files = [
        client.files.create(file=(name, content), purpose="fine-tune")
        for name, content in (("train.jsonl", rows(0, 16)), ("valid.jsonl", rows(16, 20)))
    ]
    for file in files:
        client.files.wait_for_processing(file.id)
    client.fine_tuning.alpha.graders.validate(grader=GRADER)
    tried = client.fine_tuning.alpha.graders.run(
        grader=GRADER, item={"total": "3"}, model_sample='{"total": "3"}'
    )
    print("the grader gives a right answer", tried.reward)

    job = client.fine_tuning.jobs.create(
        model=MODEL,
        training_file=files[0].id,
        validation_file=files[1].id,
        seed=7,
        suffix="sums",
        metadata={"team": "arithmetic"},
        method=METHOD,
    )
    print("created", job.id)

    while job.status not in ("succeeded", "failed", "cancelled"):
        time.sleep(0.5)
        job = client.fine_tuning.jobs.retrieve(job.id)
    for event in reversed(list(client.fine_tuning.jobs.list_events(job.id, limit=50))):
        print(event.level, event.message)
    for checkpoint in client.fine_tuning.jobs.checkpoints.list(job.id):
        print("checkpoint", checkpoint.step_number, checkpoint.fine_tuned_model_checkpoint)
    if job.status != "succeeded":
        raise SystemExit(f"{job.status}: {job.error}")
    for name, result in zip(("metrics.csv", "adapter.tar.gz"), job.result_files, strict=True):
        Path(name).write_bytes(client.files.content(result).read())
    print("trained", job.fine_tuned_model)


if __name__ == "__main__":
    main()
