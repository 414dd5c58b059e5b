"""Messages between a grading process and its parent: JSON, one object per line.

start    {"parent": pid, "graders": {key: grader}}          → {"ready": true} or {"error": text}
request  {"id": n, "grader": key, "seconds": s, "sample": {…}, "item": {…}} → {"id": n, "score": {…}}

A sample's `output_json` is not sent, because it follows from the text.
"""

import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_engine.contract.records import FinishReason, Sample, Score
from grpo_engine.graders.base import GraderBase
from grpo_engine.graders.samples import make_sample


def start_message(graders: Mapping[str, GraderBase]) -> dict[str, Any]:
    """First line to a process: its graders."""
    dumped = {key: grader.model_dump(mode="json") for key, grader in graders.items()}
    return {"parent": os.getpid(), "graders": dumped}


def request(number: int, key: str, sample: Sample, item: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """One completion for the grader with this key, to be scored within `seconds`."""
    sent = {field: getattr(sample, field) for field in Sample.model_fields if field != "output_json"}
    return {"id": number, "grader": key, "seconds": seconds, "sample": sent, "item": dict(item)}


def read_sample(sent: Mapping[str, Any]) -> Sample:
    """The sample of a request."""
    return make_sample(
        sent["output_text"],
        num_tokens=sent["num_tokens"],
        finish_reason=FinishReason(sent["finish_reason"]),
        tools=sent["output_tools"],
        environment_reward=sent["environment_reward"],
    )


def grade_safely(grader: GraderBase, sample: Sample, item: Mapping[str, Any]) -> Score:
    """The grader's score. If it raises, the completion is unscorable and the error names the place."""
    try:
        return grader.grade(sample, item)
    except Exception as error:  # noqa: BLE001 - the other completions are still graded
        last = traceback.extract_tb(error.__traceback__)[-1]
        # without the exception's text, which may hold anything
        place = f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}"
        return grader.unscorable("other_error", f"the grader failed: {place}")
