"""Estimates the cost of a job: ranges of steps, tokens, memory and duration.

Tokens follow from rows and limits, memory from the model's shape, duration only from past jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_engine.config.job import Reinforcement, TrainingFree
from service.jobs.intake.costs import PastRun
from service.jobs.intake.likely_time import likely_seconds
from service.jobs.intake.peak_memory import peak_memory
from service.jobs.intake.subject import Subject
from service.jobs.model.methods import max_turns_of, sampling_of
from service.jobs.model.validation import Estimate, Range, TokenRange

SHORTEST_SHARE = 1 / 8
"""Shortest mean length assumed for an unknown model's completions, as a share of max_completion_tokens."""
LEAST_TRAINED_SHARE = 1 / 4
"""Least share of sampled tokens that is trained, because groups without signal are not."""
SAME_SPREAD, SIMILAR_SPREAD = 1.5, 3.0
"""Factors by which a job's speed may differ from past jobs of its model, or of models of its size."""
SIMILAR_SIZE = 4.0
"""Models at most this many times larger or smaller are comparable in speed."""
MODEL_JOBS = 8
"""Number of past jobs of one model that are used, newest first."""
SHORT_SHARE = 10
"""Past runs shorter than the longest one divided by this are not used."""
TRAIN_PER_SAMPLE = (0.3, 3.0)
"""Range of seconds of training per second of sampling, if no training was measured yet."""


@dataclass(frozen=True)
class Basis:
    """The past runs from which a job's speed is estimated."""

    runs: Sequence[PastRun]
    is_same_model: bool
    """False: the runs are of models of about the same size, so the estimate is less reliable."""

    @property
    def spread(self) -> float:
        """The factor by which their speed may be off."""
        return SAME_SPREAD if self.is_same_model else SIMILAR_SPREAD

    def __str__(self) -> str:
        runs = f"{len(self.runs)} earlier run{'s' if len(self.runs) > 1 else ''}"
        whose = "with this model" if self.is_same_model else "with models of a similar size"
        machines = ", ".join(sorted({each.machine for each in self.runs if each.machine}))
        return f"{runs} {whose}{f' on {machines}' if machines else ''}"


def estimate(subject: Subject, past: Sequence[PastRun]) -> Estimate:
    """The whole estimate."""
    notes: list[str] = []
    basis = comparable(subject, past)
    sampled = sampled_tokens(subject, basis, notes)
    trained = trained_tokens(subject, sampled, notes)
    likely = None
    if trained is not None and basis.is_same_model:  # other models' completions have other lengths
        likely = likely_seconds(subject, basis.runs, trained.high)
    completions, turns = subject.num_completions, max_turns_of(subject.method)
    if turns:
        notes.append(f"Episodes have 1 to {turns} turns; max_completion_tokens bounds all turns together.")
    return Estimate(
        steps=subject.total_steps,
        completions=completions,
        turns=TokenRange(low=completions, high=completions * turns) if turns else None,
        sampled_tokens=sampled,
        trained_tokens=trained,
        peak_memory_bytes=None if trained is None else peak_memory(subject, notes),
        seconds=None if trained is None else job_seconds(subject, sampled, trained, basis, notes),
        likely_seconds=likely,
        basis=None if likely is None else str(basis),
        notes=notes,
    )


def comparable(subject: Subject, past: Sequence[PastRun]) -> Basis:
    """Runs of the same model if there are any, otherwise of models of about the same size."""
    if same := [each for each in past if each.model == subject.model]:
        return Basis(same[:MODEL_JOBS], is_same_model=True)
    size = subject.num_parameters
    near = [each for each in past if size and 1 / SIMILAR_SIZE <= each.num_parameters / size <= SIMILAR_SIZE]
    return Basis(near[:MODEL_JOBS], is_same_model=False)


def sampled_tokens(subject: Subject, basis: Basis, notes: list[str]) -> TokenRange:
    """Completions times their length: at least this model's recent length, or a guess; at most the limit."""
    count, sampling = subject.num_completions, sampling_of(subject.method)
    if sampling is None:
        return TokenRange(low=0, high=0)
    limit = sampling.max_completion_tokens
    lengths = [each.mean_completion_tokens for each in basis.runs if each.mean_completion_tokens]
    if lengths and basis.is_same_model:
        shortest = min(limit, min(lengths)) / 2
        seen = f"{min(lengths):.0f}" + (f" to {max(lengths):.0f}" if max(lengths) - min(lengths) > 1 else "")
        notes.append(f"This model's completions had about {seen} tokens so far.")
    else:
        shortest = limit * SHORTEST_SHARE
        notes.append("Completion lengths are not known yet; a probe measures them.")
    return TokenRange(low=round(count * max(1.0, shortest)), high=count * limit)


def trained_tokens(subject: Subject, sampled: TokenRange, notes: list[str]) -> TokenRange | None:
    """Completion or target tokens that gradients are computed for; repeated passes count again."""
    if isinstance(subject.method, TrainingFree):
        notes.append(
            "A training-free job trains no weights; its duration depends on the models that it calls."
        )
        return None
    if isinstance(subject.method, Reinforcement):
        times = subject.method.reinforcement.hyperparameters.num_iterations
        return TokenRange(low=round(sampled.low * times * LEAST_TRAINED_SHARE), high=sampled.high * times)
    if subject.rows is None:
        notes.append("The model is not on this machine: tokens, memory and duration are unknown.")
        return None
    num_rows = subject.total_steps * subject.method.supervised.hyperparameters.rows_per_step
    tokens = round(num_rows * subject.rows.mean_targets)
    return TokenRange(low=tokens, high=tokens)


def job_seconds(
    subject: Subject, sampled: TokenRange, trained: TokenRange, basis: Basis, notes: list[str]
) -> Range | None:
    """Range of the job's duration; None if nothing comparable has run here."""
    size, spread = subject.num_parameters, basis.spread
    sampling = steady([(each.sample_seconds, each.sampling_rate(size)) for each in basis.runs])
    training = steady([(each.train_seconds, each.training_rate(size)) for each in basis.runs])
    if not (sampling if sampled.high else training):
        probing = " A probe measures the speed." if sampled.high else ""
        notes.append(f"The duration is unknown: nothing comparable has run here yet.{probing}")
        return None
    sample = phase_seconds(sampled, sampling, spread)
    if training:
        train = phase_seconds(trained, training, spread)
    else:
        train = Range(low=sample.low * TRAIN_PER_SAMPLE[0], high=sample.high * TRAIN_PER_SAMPLE[1])
        notes.append("No such model has been trained here yet: the training speed is a guess.")
    notes.append(f"The range of the duration is from {basis}.")
    others = [each.other_seconds for each in basis.runs]
    return Range(
        low=round(sample.low + train.low + min(others) / spread, 1),
        high=round(sample.high + train.high + max(others) * spread, 1),
    )


def steady(measured: Sequence[tuple[float, float | None]]) -> list[float]:
    """The rates of the longer runs in `measured` (seconds, rate); short runs mostly measure the start."""
    longest = max((seconds for seconds, rate in measured if rate), default=0.0)
    return [rate for seconds, rate in measured if rate and seconds * SHORT_SHARE >= longest]


def phase_seconds(tokens: TokenRange, rates: Sequence[float], spread: float) -> Range:
    """Seconds, from the fewest tokens at the highest rate to the most tokens at the lowest rate."""
    if not tokens.high:
        return Range(low=0, high=0)
    return Range(low=tokens.low / (max(rates) * spread), high=tokens.high / (min(rates) / spread))
