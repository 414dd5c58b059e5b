"""Rotary positions whose angles differ in long sequences: the same in sampling, training and transformers."""

from dataclasses import replace
from pathlib import Path

import pytest

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import StepFinished
from tests.engine.conftest import write_rows
from tests.engine.families.catalogue import FAMILIES
from tests.engine.families.jobs import IDS, engine_logprobs, plain_logprobs, run, supervised
from tests.engine.families.models import make_family

SHORT, LONG = 32, 200
"""Lengths after which the angles change: within the sequences of these tests, and beyond them."""
EXACT = 1e-4


def make_phi(folder: Path, changes_after: int) -> Path:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": changes_after,
    }
    shape = {"head_dim": 8, "rope_parameters": rope, "original_max_position_embeddings": changes_after}
    return make_family(folder, replace(FAMILIES["phi4"], shape=shape))


def reinforcement(base: Path, folder: Path) -> RunConfig:
    """Two steps whose prompts have a few tokens, and completions up to 64."""
    prompts = [{"prompt": f"{number}+4=", "answer": str(number + 4)} for number in range(4)]
    settings = {"n_steps": 2, "prompts_per_step": 2, "group_size": 4, "max_completion_tokens": 64}
    grader = {
        "type": "text_similarity",
        "name": "like_answer",
        "input": "{{ sample.output_text }}",
        "reference": "{{ item.answer }}",
        "evaluation_metric": "fuzzy_match",
    }
    return RunConfig.model_validate(
        {
            "job_id": "ftjob-positions",
            "seed": 1,
            "model": {"name": "phi", "path": str(base)},
            "runtime": {"dtype": "float32"},
            "training_file": str(write_rows(folder / "rows.jsonl", prompts)),
            "method": {
                "type": "reinforcement",
                "reinforcement": {"grader": grader, "hyperparameters": {**settings, "guards": []}},
            },
        }
    )


@pytest.mark.parametrize("changes_after", [SHORT, LONG])
def test_completions_are_trained_with_the_angles_with_which_they_were_sampled(
    changes_after: int, tmp_path: Path
) -> None:
    config = reinforcement(make_phi(tmp_path / "base", changes_after), tmp_path)
    events, _ = run(config, tmp_path / "run")
    metrics = [event.metrics for event in events if isinstance(event, StepFinished)]
    assert max(each["completions/max_length"] for each in metrics) > SHORT
    assert max(each["sampling/sampling_logp_difference/max"] for each in metrics) < EXACT


@pytest.mark.parametrize("changes_after", [SHORT, LONG])
def test_a_long_sequence_has_the_values_of_transformers(changes_after: int, tmp_path: Path) -> None:
    assert SHORT < len(IDS) < LONG
    base = make_phi(tmp_path / "base", changes_after)
    _, policy = run(supervised(base, tmp_path, {"rank": 2}), tmp_path / "run")
    found = engine_logprobs(policy, reference=True)
    assert float((found - plain_logprobs(base)).abs().max()) < EXACT
