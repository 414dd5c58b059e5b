"""Given completions and rewards, for tests that compare two ways to train on them."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo_engine.config.job import Reinforcement, RunConfig
from grpo_engine.contract.events import StepFinished, StepSkipped
from grpo_engine.contract.records import FinishReason, Sample, Score
from grpo_engine.graders.printed import PrintedOutput
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack
from grpo_engine.objective.types import Completion, Group, PackedBatch, Prompt
from grpo_engine.rollout.sampler.base import OnGroup, Sampling
from grpo_engine.training.trainer import Trainer
from tests.engine.conftest import waken

CPU = torch.device("cpu")


def trained_batch(group: Group, device: torch.device = CPU) -> PackedBatch:
    """All completions of a group as one micro-batch of weight 1."""
    sequences = tuple(
        TrainingSequence(c.token_ids, c.logprobs, (1.0,) * len(c.token_ids), 1.0, trained=c.sampled)
        for c in group.completions
    )
    return next(pack([TrainingGroup(group.prompt.token_ids, sequences)], 100_000, device))


@dataclass(frozen=True)
class Given:
    """A completion and its reward."""

    token_ids: tuple[int, ...]
    reward: float | None
    finish_reason: FinishReason = FinishReason.STOP
    sampled: tuple[bool, ...] = ()


Groups = Sequence[tuple[tuple[int, ...], Sequence[Given]]]
"""A step's prompts with their completions."""


@dataclass
class InjectedSampler:
    """The groups of steps 1, 2, …. A completion's text is its reward, which `InjectedGrading` reads."""

    steps: Sequence[Groups]
    matches_trainer: bool = True
    logprobs: Callable[[Given], tuple[float, ...]] = lambda given: (-1.0,) * len(given.token_ids)
    version: int = field(default=0, init=False)

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        groups = [self._group(*each) for each in self.steps[sampling.step - 1]]
        for position, group in enumerate(groups):
            if on_group is not None:
                on_group(position, group)
        return groups

    def _group(self, prompt: tuple[int, ...], given: Sequence[Given]) -> Group:
        completions = tuple(
            Completion(
                text=str(each.reward),
                token_ids=each.token_ids,
                logprobs=self.logprobs(each),
                finish_reason=each.finish_reason,
                policy_version=self.version,
                sampled=each.sampled,
            )
            for each in given
        )
        return Group(Prompt(0, "", prompt, {}), completions)

    def rest(self) -> dict[str, float]:
        return {}

    def load_policy(self, version: int) -> None:
        self.version = version


class InjectedGrading:
    def __init__(self) -> None:
        self.printed = PrintedOutput()

    def submit(self, sample: Sample, item: Mapping[str, Any]) -> Future[Score]:
        text = sample.output_text
        scored: Future[Score] = Future()
        scored.set_result(Score(reward=None if text == "None" else float(text)))
        return scored

    def close(self) -> None:
        """Nothing to close."""


def random_steps(
    steps: int, prompts: int, group_size: int, *, longest: int = 9, seed: int = 0, vocab: int = 60
) -> list[Groups]:
    """Random prompts, rewards and completions of unequal length; one group per step has no signal."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(low: int, high: int) -> tuple[int, ...]:
        count = int(torch.randint(low, high + 1, (1,), generator=generator))
        return tuple(torch.randint(6, vocab, (count,), generator=generator).tolist())

    def reward() -> float:
        return float(torch.randint(0, 5, (1,), generator=generator)) / 4

    return [
        [
            (
                tokens(2, 7),
                [Given(tokens(1, longest), 0.7 if place == 1 else reward()) for _ in range(group_size)],
            )
            for place in range(prompts)
        ]
        for _ in range(steps)
    ]


def steps_of(config: RunConfig, steps: int = 3) -> list[Groups]:
    """Groups with the sizes of the job."""
    assert isinstance(config.method, Reinforcement)
    settings = config.method.reinforcement.hyperparameters
    return random_steps(steps, settings.prompts_per_step, settings.group_size)


def injected_trainer(
    config: RunConfig,
    steps: Sequence[Groups],
    sampler: InjectedSampler | None = None,
    place: Callable[[Policy], None] = lambda policy: None,
) -> Trainer:
    """A trainer for the configuration's model with injected completions. `place` may move the policy."""
    assert isinstance(config.method, Reinforcement)
    method = config.method.reinforcement
    policy = load_policy(config.model, method.hyperparameters, CPU, torch.float32, config.seed)
    if policy.peft_model is None and method.hyperparameters.beta > 0:
        policy.keep_reference()
    waken(policy, 11)
    place(policy)
    prompts = [Prompt(0, "", (1,), {})]
    return Trainer(config, method, policy, sampler or InjectedSampler(steps), InjectedGrading(), prompts)


def metrics_of_step(trainer: Trainer, step: int) -> dict[str, float]:
    """Run the step. Returns its metrics."""
    (metrics,) = [
        event.metrics for event in trainer.step(step) if isinstance(event, StepFinished | StepSkipped)
    ]
    return metrics


def after_steps(
    config: RunConfig,
    steps: Sequence[Groups],
    *,
    shares_prompts: bool = True,
    place: Callable[[Policy], None] = lambda policy: None,
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Parameters after all steps, and the last step's metrics."""
    trainer = injected_trainer(config, steps, place=place)
    trainer.policy.shares_prompts &= shares_prompts
    metrics: dict[str, float] = {}
    for step in range(1, len(steps) + 1):
        metrics = metrics_of_step(trainer, step)
    parameters = {name: each.detach().clone() for name, each in trainer.policy.trainable.items()}
    return parameters, metrics
