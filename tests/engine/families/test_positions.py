"""Rotary positions whose angles differ in long sequences: the same in sampling, training and transformers."""

from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pytest
import torch

from grpo_engine.config.job import RunConfig, SupervisedHyperparameters
from grpo_engine.contract.events import StepFinished
from grpo_engine.models.loading import load_policy
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.serve.streaming import StreamingSampler
from grpo_engine.training_free.local_client import LocalModelClient
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


@pytest.mark.parametrize(("lengths", "max_tokens"), [((1, 2 * SHORT), SHORT // 2), ((1,), 2 * SHORT)])
def test_an_attempt_has_the_values_of_one_forward_pass(
    lengths: tuple[int, ...], max_tokens: int, tmp_path: Path
) -> None:
    """In a training-free job: a short one beside a long one, and one that becomes long while it grows."""
    config = reinforcement(make_phi(tmp_path / "base", SHORT), tmp_path)
    settings = SupervisedHyperparameters.model_validate({})
    policy = load_policy(config.model, settings, torch.device("cpu"), torch.float32, seed=1)
    client, rows = LocalModelClient(config, policy), [{"prompt": "1+4=" * length} for length in lengths]
    answers = client.answer(rows, 4, Sampling(max_tokens=max_tokens, seed=3))
    prompts = RowReader(policy.tokenizer).prompts(rows)
    for prompt, completions in zip(prompts, answers, strict=True):
        for each in completions:
            with torch.no_grad():
                logits = policy.model(torch.tensor([[*prompt.token_ids, *each.token_ids]])).logits[0]
            logprobs = logits[len(prompt.token_ids) - 1 : -1].log_softmax(-1)
            expected = logprobs.gather(1, torch.tensor(each.token_ids)[:, None]).squeeze(1)
            assert float((torch.tensor(each.logprobs) - expected).abs().max()) < EXACT


def test_each_of_two_requests_at_the_same_time_has_the_angles_of_its_longest_sequence(tmp_path: Path) -> None:
    """The first one becomes long while it grows, the second one stays short."""
    source = reinforcement(make_phi(tmp_path / "base", SHORT), tmp_path).model
    settings = SupervisedHyperparameters.model_validate({})
    policies = [load_policy(source, settings, torch.device("cpu"), torch.float32, seed=1) for _ in range(2)]
    sampler, prompt, lengths = StreamingSampler(policies[0]), IDS[:8], (2 * SHORT, SHORT // 2)
    found: list[tuple[list[int], list[float]]] = [([], []), ([], [])]
    with torch.no_grad():
        requests = [sampler.grow(prompt, 1, Sampling(max_tokens=length, seed=3)) for length in lengths]
        for both in zip_longest(*requests, fillvalue=[]):
            for (tokens, logprobs), growths in zip(found, both, strict=True):
                tokens += [token for each in growths for token in each.token_ids]
                logprobs += [logprob for each in growths for logprob in each.logprobs]
        for length, (tokens, logprobs) in zip(lengths, found, strict=True):
            policies[1].fix_positions(len(prompt) + length)
            logits = policies[1].model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None]).squeeze(1)
            assert float((torch.tensor(logprobs) - expected).abs().max()) < EXACT
    assert len(found[0][0]) > SHORT
