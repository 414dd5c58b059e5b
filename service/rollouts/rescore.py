"""Scores a job's stored completions with another grader, as in training, without changing the job.

Rules run in a grading process that is killed at its deadline, untrusted code in the sandbox. Whole steps are
scored, because some estimators compare all groups of a step.
Boundary: no HTTP; `rescoring.py` computes the differences.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import Any

from grpo_engine.config.job import Method, Reinforcement
from grpo_engine.contract.records import FinishReason, Sample, Score
from grpo_engine.graders import Grader, make_sample
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.graders.rules.reward_model import RewardModel
from service.graders.service import RESERVED_FIELDS, check
from service.jobs.model.methods import grader_of, leaves, parsed_method
from service.jobs.store.repository import require_job
from service.platform.errors import InvalidRequest
from service.platform.tables.core import Job, Rollout
from service.rollouts import repository
from service.rollouts.datasets import Dataset, find_dataset
from service.rollouts.rescoring import Estimator, compared, summarised, with_own_parts
from service.rollouts.schemas import RescoreRead, RescoreRequest
from service.rollouts.selection import Selection, is_one_text
from service.web.dependencies import CatalogDep, DatabaseDep, StorageDep
from service.web.limits import ConcurrencyLimit

DEADLINE_SECONDS = 40.0
"""Time limit for all completions; clients wait a minute for the response."""
COMPLETION_SECONDS = 10.0
GRADING_PROCESSES = 2
MAX_SERVER_CALLS = 64
"""Maximum completions for a grader that calls a server: each call costs money."""
MAX_ROW_BYTES = 64 * 2**20
"""Maximum size of the rows that graders see; all of them are in memory at once."""
_limit = ConcurrencyLimit("re-scores", per_tenant=2, overall=4)

Items = dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Rescore:
    """Rescoring of stored rollouts."""

    database: DatabaseDep
    storage: StorageDep
    catalog: CatalogDep

    def run(self, tenant: str, job_id: str, request: RescoreRequest) -> RescoreRead:
        """Score and compare. Raises NotFound, InvalidRequest, TooManyRequests at the limit of re-scores."""
        with self.database.reading() as session:
            job = require_job(session, tenant, job_id)
        check(request.grader, self.catalog)
        _refuse_rules_of_workers(request)
        method = parsed_method(job.method)
        estimator = _estimator(method, request)
        dataset = find_dataset(self.database, self.storage, job, request.split)
        with _limit.slot(tenant):
            groups, num_skipped = self._groups(job, request)
            items = _items(dataset, groups)
            scores = _graded(request.grader, groups, items)
        found = compared(groups, scores, estimator, grader_of(method), request.grader)
        return RescoreRead(
            grader=request.grader.model_dump(mode="json"),
            advantage=estimator.name,
            summary=summarised(found, num_skipped),
            data=found,
        )

    def _groups(self, job: Job, request: RescoreRequest) -> tuple[list[Rollout], int]:
        """Groups of the newest whole steps within the limit, and the number of groups left out."""
        selection = Selection(request.from_step, request.to_step, request.split)
        batches = repository.batches(self.database, job.id, selection, newest_first=True)
        found: list[Rollout] = []
        room, num_skipped = request.limit, 0
        for step, groups in groupby(chain.from_iterable(batches), key=lambda group: group.step):
            some = list(islice(groups, room + 1))  # a group has at least one completion
            if _num_completions(some) > room:
                if found:
                    break
                message = f"limit: step {step} alone has more than {request.limit} completions. Raise limit."
                raise InvalidRequest(message, param="limit")
            usable = [group for group in some if all(map(is_one_text, group.data["completions"]))]
            found += usable
            room -= _num_completions(usable)
            num_skipped += len(some) - len(usable)
        if not found:
            why = ": the answers of tools and environments are not stored in full" if num_skipped else ""
            message = f"No rollouts of these steps can be scored again{why}."
            raise InvalidRequest(message, param="from_step", code="no_rollouts")
        return found, num_skipped


def _num_completions(groups: Sequence[Rollout]) -> int:
    return sum(len(group.data["completions"]) for group in groups)


def _estimator(method: Method, request: RescoreRequest) -> Estimator:
    if not isinstance(method, Reinforcement):
        return Estimator(request.advantage or "group_std", ddof=1, masks_truncated=False)
    given = method.reinforcement.hyperparameters
    name = request.advantage or given.advantage
    if name == "process":
        message = "advantage: process needs the rewards of single steps, which are not stored. Name another."
        raise InvalidRequest(message, param="advantage")
    return Estimator(name, given.advantage_ddof, given.mask_truncated_completions)


def _refuse_rules_of_workers(request: RescoreRequest) -> None:
    for place, rule in leaves("grader", request.grader):
        if isinstance(rule, RewardModel):
            message = f"{place}: reward models run on workers only and cannot re-score."
            raise InvalidRequest(message, param=place, code="grader_needs_worker")
        if rule.execution == "thread" and request.limit > MAX_SERVER_CALLS:
            message = f"limit: {place} calls a server for every completion: use at most {MAX_SERVER_CALLS}."
            raise InvalidRequest(message, param="limit")


def _items(dataset: Dataset, groups: Sequence[Rollout]) -> Items:
    """The items that graders see, by row number."""
    wanted = sorted({group.data["row"] for group in groups})
    return {
        number: {key: value for key, value in row.items() if key not in RESERVED_FIELDS}
        for number, row in dataset.rows(wanted, max_bytes=MAX_ROW_BYTES)
    }


def _graded(grader: Grader, groups: Sequence[Rollout], items: Items) -> list[list[Score]]:
    """Each group's new scores. Raises InvalidRequest if they take too long."""
    end = time.monotonic() + DEADLINE_SECONDS
    with Grading(grader, processes=GRADING_PROCESSES, deadline_seconds=COMPLETION_SECONDS) as grading:
        futures = []
        for group in groups:
            for completion in group.data["completions"]:
                if time.monotonic() > end:
                    raise _too_slow()
                futures.append(grading.submit(_sample(completion), items[group.data["row"]]))
        try:
            scores = iter([future.result(max(0.0, end - time.monotonic())) for future in futures])
        except TimeoutError as error:
            raise _too_slow() from error
    return [
        [with_own_parts(next(scores), completion) for completion in group.data["completions"]]
        for group in groups
    ]


def _sample(completion: dict[str, Any]) -> Sample:
    return make_sample(
        completion["text"],
        num_tokens=len(completion.get("token_ids", ())),
        finish_reason=FinishReason(completion["finish_reason"]),
    )


def _too_slow() -> InvalidRequest:
    message = f"limit: scoring took more than {DEADLINE_SECONDS:g} s. Request fewer completions."
    return InvalidRequest(message, param="limit", code="rescore_too_slow")
