"""The job whose cost is estimated, and the token counts of its rows."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_engine.config.job import Method, Runtime
from service.jobs.intake.model_size import ModelShape
from service.jobs.model.methods import sampling_of


@dataclass(frozen=True)
class RowTokens:
    """Token counts of a file's rows."""

    rows: int = 0
    longest: int = 0
    targets: int = 0
    """Number of tokens that a supervised job learns."""

    def with_row(self, tokens: int, targets: int) -> RowTokens:
        return RowTokens(self.rows + 1, max(self.longest, tokens), self.targets + targets)

    @property
    def mean_targets(self) -> float:
        return self.targets / max(1, self.rows)


@dataclass(frozen=True)
class Subject:
    """The job whose cost is estimated."""

    model: str
    """Name of the base model."""
    method: Method
    total_steps: int
    rows: RowTokens | None
    """None: unknown."""
    shape: ModelShape | None
    on_gpu: bool
    runtime: Runtime

    @property
    def num_parameters(self) -> int:
        """Size of the model; 0: unknown."""
        return self.shape.num_parameters if self.shape else 0

    @property
    def num_completions(self) -> int:
        """Prompts × group_size × steps; 0 for a supervised method."""
        sampling = sampling_of(self.method)
        return 0 if sampling is None else self.total_steps * sampling.prompts_per_step * sampling.group_size
