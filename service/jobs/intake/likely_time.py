"""The probable duration of a job, at the median speed and lengths of earlier runs of its model."""

from collections.abc import Sequence
from statistics import median

from grpo_engine.config.job import Reinforcement
from service.jobs.intake.costs import PastRun
from service.jobs.intake.subject import Subject
from service.jobs.model.methods import sampling_of


def likely_seconds(subject: Subject, runs: Sequence[PastRun], targets: int) -> float | None:
    """Seconds for sampling, training and the rest; None if no run of this model sampled and trained.

    `targets`: number of tokens that a supervised job trains.
    """
    sampled = _sampled(subject, runs)
    trained = _trained(subject, runs, sampled) if subject.num_completions else targets
    size = subject.num_parameters
    training = [rate for run in runs if (rate := run.training_rate(size))]
    if sampled is None or trained is None or not training:
        return None
    sampling = [rate for run in runs if (rate := run.sampling_rate(size))]
    seconds = sampled / median(sampling) if sampled else 0.0
    return round(seconds + trained / median(training) + _other(runs, subject.total_steps), 1)


def _sampled(subject: Subject, runs: Sequence[PastRun]) -> float | None:
    """Number of sampled tokens, from the median length of the runs' completions."""
    sampling = sampling_of(subject.method)
    if sampling is None or not subject.num_completions:
        return 0.0
    lengths = [
        run.mean_completion_tokens for run in runs if run.mean_completion_tokens and run.sampled_tokens
    ]
    if not lengths:
        return None
    return subject.num_completions * min(sampling.max_completion_tokens, median(lengths))


def _trained(subject: Subject, runs: Sequence[PastRun], sampled: float | None) -> float | None:
    """Number of trained tokens, from the median share of sampled tokens that the runs trained."""
    counts = [(run.trained_tokens, run.sampled_tokens) for run in runs]
    shares = [min(1.0, trained / of_run) for trained, of_run in counts if trained and of_run]
    if sampled is None or not shares:
        return None
    method = subject.method
    times = method.reinforcement.hyperparameters.num_iterations if isinstance(method, Reinforcement) else 1
    return sampled * median(shares) * times


def _other(runs: Sequence[PastRun], steps: int) -> float:
    """Seconds for loading (the least other time of a run) plus, per step, the runs' median excess over it."""
    start = min(run.other_seconds for run in runs)
    return start + steps * median((run.other_seconds - start) / run.steps for run in runs)
