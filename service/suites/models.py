"""The datasets that a request may name by task."""

from typing import Any, Literal

from pydantic import Field

from grpo_engine.contract.records import Input

MAX_SIZE = 50_000
INSTALL = "pip install 'grpo-service[reasoning-gym]'"
SEED_STEP = 65_536
"""Row `i` of a task has the suite's seed plus `i`, so the seeds of two datasets must be further apart."""


class ReasoningGymDataset(Input):
    """Rows of a Reasoning Gym task; equal fields give equal rows."""

    type: Literal["reasoning_gym"]
    task: str = Field(min_length=1, max_length=128)
    """Name of the task, such as `chain_sum`."""
    size: int = Field(500, ge=1, le=MAX_SIZE)
    """Number of rows."""
    seed: int = Field(0, ge=0, lt=2**32 // SEED_STEP)
    """Datasets with different seeds have different rows: 0 for training and 1 for validation, for example."""
    config: dict[str, Any] = {}
    """The task's own options, such as `{"max_terms": 3}`."""
    levels: int | None = Field(None, ge=2, le=64)
    """Number of levels of the task's curriculum, from the easiest, among which the rows are divided. Each row
    has its `level`, for the hyperparameter `curriculum`. null: the task's default difficulty."""
    system_prompt: str | None = Field(None, min_length=1, max_length=20_000)
    """System message of every row; null: none."""

    @property
    def filename(self) -> str:
        return f"reasoning_gym {self.task} size {self.size} seed {self.seed}.jsonl"


class SuiteError(Exception):
    """The suite cannot generate the rows. `where`: the field of the dataset; empty for the whole dataset."""

    def __init__(self, where: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.where = where
        self.code = code
