"""Checkpoints of a training-free job, which are its artifact too: a library in plain files.

    step-00000003/  manifest.json  state.json
                    experiences/  experiences.json  prompt.txt  prompt.json  manifest.json

Complete or invisible like every checkpoint: written beside, fsynced, the manifest last, then renamed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_engine.config.job import RunConfig
from grpo_engine.files.atomic_folder import new_checkpoint, seal, step_name
from grpo_engine.rollout.evaluation import Rewards
from grpo_engine.training.checkpoint import config_digest
from grpo_engine.training_free.library import Experience, Library
from grpo_engine.training_free.prompts import Row, library_text, with_experiences

FOLDER = "experiences"
PLACEMENT = (
    "prompt.txt stands before the text of the system message, with an empty line between; without a system "
    "message before the text of the first user message. `example` is the first training row as it is sent."
)


@dataclass(frozen=True, slots=True)
class State:
    """All that a run needs to go on as if never interrupted."""

    step: int = 0
    num_tokens: int = 0
    """Tokens of all attempts."""
    num_calls: int = 0
    """Calls to endpoints, of attempts and reflection, evaluations included."""
    cost_usd: float = 0.0
    evaluated_step: int = -1
    library: Library = field(default_factory=Library)
    baseline: Rewards = field(default_factory=dict)
    """Of the held-out rows before step 1, which verdicts compare with."""


def save(folder: Path, config: RunConfig, state: State, template: str, example: Row) -> Path:
    """Write `folder/step-…`. Raises DiskFullError; the checkpoints before it stay intact."""
    with new_checkpoint(folder, state.step) as temporary:
        (temporary / FOLDER).mkdir()
        _write_artifact(temporary / FOLDER, state, template, example)
        _write_json(temporary / "state.json", _state_dict(state))
        facts = {"job_id": config.job_id, "step": state.step}
        seal(temporary / FOLDER, facts)
        seal(temporary, {**facts, "config_sha256": config_digest(config)})
    return folder / step_name(state.step)


def load(folder: Path) -> State:
    """The state of a checkpoint whose manifest holds."""
    found = json.loads((folder / "state.json").read_text())
    lessons = json.loads((folder / FOLDER / "experiences.json").read_text())
    library = Library(
        tuple(Experience.model_validate(lesson) for lesson in lessons),
        found.pop("next_number"),
        found.pop("version"),
    )
    return State(**found, library=library)


def _state_dict(state: State) -> dict[str, Any]:
    own = {name: getattr(state, name) for name in State.__slots__ if name != "library"}
    return {**own, "next_number": state.library.next_number, "version": state.library.version}


def _write_artifact(folder: Path, state: State, template: str, example: Row) -> None:
    lessons = state.library.experiences
    text = library_text(lessons, template)
    _write_json(folder / "experiences.json", [lesson.model_dump() for lesson in lessons])
    (folder / "prompt.txt").write_text(text, encoding="utf-8")
    sent = with_experiences(example, lessons, template)
    shown = {name: sent[name] for name in ("messages", "prompt") if name in sent}
    _write_json(folder / "prompt.json", {"text": text, "placement": PLACEMENT, "example": shown})


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
