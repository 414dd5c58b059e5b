"""A job's rollouts as files: all that is recorded, or datasets made of them.

What can be refused is refused before the first line: then the lines are read in batches, and no transaction
spans two of them. Boundary: no HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Job
from service.rollouts import pairs, repository
from service.rollouts.datasets import Dataset, TrainedSplit, find_dataset
from service.rollouts.pairs import Limits
from service.rollouts.selection import Selection
from service.rollouts.service import checked_job, search_limit


def all_lines(database: Database, job: Job, selection: Selection) -> Iterator[str]:
    """The groups that are meant as JSON lines in order of steps, token ids included."""
    for batch in repository.batches(database, job.id, selection):
        for group in batch:
            if repository.is_meant(group, selection):
                place = {"step": group.step, "split": group.split, "position": group.position}
                yield json.dumps(place | group.data, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Source:
    """What a dataset is made of: rollouts of a tenant's job."""

    tenant: str
    job_id: str
    parts: Selection
    split: TrainedSplit


@dataclass(frozen=True)
class RolloutExports:
    """Datasets made of one split's rollouts, whose rows are those of one file."""

    database: Database
    storage: Storage

    def best_answers(self, source: Source, limits: Limits) -> Iterator[str]:
        """Rows for `supervised` training. Raises NotFound, and InvalidRequest if there is none."""
        job, dataset, selection = self._opened(source)
        with search_limit.slot(source.tenant):
            found = pairs.best_answers(self.database, job.id, selection, limits)
        return pairs.lines(self.database, job.id, source.split, dataset, found, pairs.supervised_row)

    def preferences(self, source: Source, limits: Limits) -> Iterator[str]:
        """Good and bad answers. Raises NotFound, and InvalidRequest if there is none."""
        job, dataset, selection = self._opened(source)
        with search_limit.slot(source.tenant):
            found = pairs.preferences(self.database, job.id, selection, limits)
        return pairs.lines(self.database, job.id, source.split, dataset, found, pairs.preference_row)

    def _opened(self, source: Source) -> tuple[Job, Dataset, Selection]:
        job = checked_job(self.database, source.tenant, source.job_id, source.parts)
        dataset = find_dataset(self.database, self.storage, job, source.split)
        return job, dataset, replace(source.parts, split=source.split)
