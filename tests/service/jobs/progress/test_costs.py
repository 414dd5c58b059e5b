"""What a job costs, from its engine's events."""

import pytest

from grpo_engine.contract.events import Computation, Started, StepFinished
from service.jobs.intake.costs import (
    Cost,
    PastRun,
    past_run,
    seconds_of_attempts,
    seconds_per_step,
    shown,
    with_start,
    with_step,
)
from service.platform.tables.core import Job

STEP = {
    "timing/sample_seconds": 2.0,
    "timing/train_seconds": 1.0,
    "perf/sampled_tokens_per_second": 50.0,
    "perf/trained_tokens_per_second": 100.0,
    "completions/mean_length": 20.0,
    "memory/peak_bytes": 7.0,
}


def started(at: float) -> Started:
    return Started(
        total_steps=2,
        device="cpu",
        machine="m",
        dtype="float32",
        sampler="torch",
        num_parameters=5,
        num_trainable_parameters=1,
        num_rows=8,
        versions={},
        computation=Computation(forward="packed", head="frozen", slower_because={"forward": "x"}),
        at=at,
    )


def step(number: int, at: float, **metrics: float) -> StepFinished:
    return StepFinished(step=number, metrics=STEP | metrics, at=at)


def job(cost: Cost, started_at: float, finished_at: float, state: str = "succeeded") -> Job:
    times = {"started_at": started_at, "finished_at": finished_at}
    return Job(model="ft:base:org:x:1", actual=cost, state=state, **times)


def test_steps_add_up_to_what_a_job_cost() -> None:
    known = with_step(with_start(None, started(at=0.0)), step(1, at=4.0))
    cost = with_start(with_step(known, step(2, at=9.0, **{"memory/peak_bytes": 5.0})), started(at=9.0))
    past = past_run(job(cost, 0.0, 10.0))
    assert past == PastRun("base", "m", 5, 2, 200, 4.0, 200, 2.0, 4.0, 20.0)
    assert cost["peak_memory_bytes"] == 7
    how = {"forward": "packed", "decoder": "none", "head": "frozen", "slower_because": {"forward": "x"}}
    assert cost["computation"] == how


def test_the_time_between_two_attempts_is_not_running_time() -> None:
    cost = with_step(with_start(None, started(at=100.0)), step(1, at=104.0))
    resumed = with_start(cost, started(at=90_000.0))
    assert seconds_per_step(with_step(resumed, step(2, at=90_006.0))) == 5


@pytest.mark.parametrize(
    ("finished_at", "state", "seconds"),
    # 30 s of loading, two steps in 10 s, 5 s of saving
    [(90_011.0, "succeeded", 45.0), (95_000.0, "failed", 40.0)],
)
def test_loading_and_saving_are_time_of_a_job_and_its_pauses_are_not(
    finished_at: float, state: str, seconds: float
) -> None:
    cost = with_step(with_start(None, started(at=130.0)), step(1, at=134.0))
    resumed = with_step(with_start(cost, started(at=90_000.0)), step(2, at=90_006.0))
    assert seconds_of_attempts(job(resumed, 100.0, finished_at, state)) == seconds


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_a_worker_s_clock_that_is_off_makes_no_job_longer(skew: float) -> None:
    cost = with_step(with_start(None, started(at=130.0 + skew)), step(1, at=134.0 + skew))
    assert seconds_of_attempts(job(cost, 100.0, 140.0)) == 40


def test_a_clock_that_is_set_back_makes_no_negative_time() -> None:
    cost = with_step(with_start(None, started(at=100.0)), step(1, at=104.0))
    later = with_step(cost, step(2, at=50.0))
    assert seconds_per_step(later) == 2
    assert seconds_of_attempts(job(later, 100.0, 50.0)) == 0
    assert shown(job(later, 100.0, 50.0))["seconds"] == 0


def test_without_a_step_no_pace_is_known() -> None:
    assert seconds_per_step(with_start(None, started(at=100.0))) is None


def test_a_job_without_a_step_gives_no_measurement() -> None:
    assert past_run(job({"machine": "m"}, 0.0, 10.0)) is None
