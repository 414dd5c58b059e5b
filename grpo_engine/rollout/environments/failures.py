"""Ends a job whose environments fail all the time."""

from collections.abc import Sequence

from grpo_engine.contract.errors import EnvironmentUnreachableError
from grpo_engine.objective.types import Group

FAILED_BATCHES = 3
"""Batches in a row in which every episode fails, after which the job fails."""


class FailedBatches:
    """Counts batches in which every episode failed."""

    def __init__(self) -> None:
        self.num = 0
        """Such batches in a row."""

    def add(self, groups: Sequence[Group]) -> None:
        """Raises EnvironmentUnreachableError after FAILED_BATCHES such batches in a row."""
        completions = [each for group in groups for each in group.completions]
        episodes = [each.episode for each in completions if each.episode is not None]
        if not episodes or not all(each.failure for each in episodes):
            self.num = 0
            return
        self.num += 1
        if self.num >= FAILED_BATCHES:
            message = f"all {len(episodes)} sessions failed, in {FAILED_BATCHES} batches in a row"
            found = {f"{each.environment}: {each.failure}": None for each in episodes}
            raise EnvironmentUnreachableError(message, evidence=tuple(found)[:3])
