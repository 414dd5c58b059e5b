"""What a grading process and its parent say to each other: JSON, one object a line.

hello    {"parent": pid, "graders": {key: grader}}          → {"ready": true} or {"error": text}
request  {"id": n, "grader": key, "sample": {…}, "item": {…}} → {"id": n, "score": {…}}

Boundary: plain data. A sample's `output_json` is not sent, because it follows from the text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from grpo_engine.contract.records import FinishReason, Sample
from grpo_engine.graders.base import GraderBase
from grpo_engine.graders.samples import make_sample


def hello(graders: Mapping[str, GraderBase]) -> dict[str, Any]:
    """First line to a process: its rules."""
    dumped = {key: grader.model_dump(mode="json") for key, grader in graders.items()}
    return {"parent": os.getpid(), "graders": dumped}


def request(number: int, key: str, sample: Sample, item: Mapping[str, Any]) -> dict[str, Any]:
    """One completion for the rule of this key."""
    return {
        "id": number,
        "grader": key,
        "sample": {
            "output_text": sample.output_text,
            "output_tools": sample.output_tools,
            "num_tokens": sample.num_tokens,
            "finish_reason": sample.finish_reason,
        },
        "item": dict(item),
    }


def read_sample(sent: Mapping[str, Any]) -> Sample:
    """The sample of a request."""
    sample = make_sample(
        sent["output_text"], num_tokens=sent["num_tokens"], finish_reason=FinishReason(sent["finish_reason"])
    )
    return sample.model_copy(update={"output_tools": tuple(sent["output_tools"])})
