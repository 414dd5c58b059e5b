"""Estimates the cost of a job: ranges of steps, tokens, memory and duration.

Tokens follow from rows and limits, memory from the model's shape, duration only from past jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import Method, Reinforcement, Runtime, TrainingFree
from service.jobs.intake.costs import PastRun
from service.jobs.intake.likely_time import likely_seconds
from service.jobs.intake.model_size import ModelShape
from service.jobs.model.methods import lora_of, max_turns_of, quantization_of, sampling_of
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
PROCESS_BYTES = 370 * 2**20
"""Memory of an engine without a model on a CPU: Python, torch and transformers."""
CUDA_BUILD_BYTES = 500 * 2**20
"""Further memory of torch's build for CUDA, which PyPI offers also for machines without a GPU."""
BYTES_PER_TRAINED = 16
"""Bytes for a trained parameter: weight, gradient and Adam's two moments in float32."""
FULL_WIDTH = 4
"""Bytes of a weight if all weights are trained, also in the reference model."""
GATHERED_LAYERS = 2
"""Number of layers that a sharded rank holds unsharded while it trains: the current and the next."""
CPU_ACTIVATION_BYTES, GPU_TOKENS = 160 * 2**20, 16_384
"""Limits of a training pass without a token budget, as in the engine's `micro_batch_budget.py`."""
LOGITS_TOKENS = 1024
"""Rows of logits in memory at a time."""
MARGIN = 1.4
"""Factor for the most that allocators, copies and buffers add."""


@dataclass(frozen=True)
class RowTokens:
    """Token counts of a file's rows."""

    rows: int = 0
    total: int = 0
    longest: int = 0
    targets: int = 0
    """Number of tokens that a supervised job learns."""

    def with_row(self, tokens: int, targets: int) -> RowTokens:
        longest = max(self.longest, tokens)
        return RowTokens(self.rows + 1, self.total + tokens, longest, self.targets + targets)

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
    likely = likely_time(subject, basis, trained)
    completions, turns = num_completions(subject), max_turns_of(subject.method)
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


def likely_time(subject: Subject, basis: Basis, trained: TokenRange | None) -> float | None:
    """Seconds; None without earlier runs of this model: other models' completions have other lengths."""
    if trained is None or not basis.runs or not basis.is_same_model:
        return None
    return likely_seconds(
        subject.method,
        basis.runs,
        size=subject.shape.num_parameters if subject.shape else 0,
        steps=subject.total_steps,
        completions=num_completions(subject),
        targets=trained.high,
    )


def comparable(subject: Subject, past: Sequence[PastRun]) -> Basis:
    """Runs of the same model if there are any, otherwise of models of about the same size."""
    if same := [each for each in past if each.model == subject.model]:
        return Basis(same[:MODEL_JOBS], is_same_model=True)
    size = subject.shape.num_parameters if subject.shape else 0
    near = [each for each in past if size and 1 / SIMILAR_SIZE <= each.num_parameters / size <= SIMILAR_SIZE]
    return Basis(near[:MODEL_JOBS], is_same_model=False)


def num_completions(subject: Subject) -> int:
    """Prompts × group_size × steps; 0 for a supervised method."""
    sampling = sampling_of(subject.method)
    return 0 if sampling is None else subject.total_steps * sampling.prompts_per_step * sampling.group_size


def sampled_tokens(subject: Subject, basis: Basis, notes: list[str]) -> TokenRange:
    """Completions times their length: at least this model's recent length, or a guess; at most the limit."""
    count, sampling = num_completions(subject), sampling_of(subject.method)
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


def peak_memory(subject: Subject, notes: list[str]) -> TokenRange | None:
    """A rank's weights, trained parameters, and the larger of sampling's cache and training's activations."""
    shape = subject.shape
    if shape is None:
        notes.append("The model's size is unknown on this machine, so its memory is too.")
        return None
    width, method = bytes_per_value(subject), subject.method
    has_reference = isinstance(method, Reinforcement) and method.reinforcement.hyperparameters.beta > 0
    held = shape.weight_bytes(width, quantization_of(method))
    lora = lora_of(subject.method) or Lora()
    if lora == "full":
        held = shape.num_parameters * (BYTES_PER_TRAINED + (FULL_WIDTH if has_reference else 0))
    else:
        held += shape.adapter_parameters(lora.rank, lora.target_modules) * BYTES_PER_TRAINED
    sampling, training = cache_bytes(subject, shape, width), activation_bytes(subject, shape, width)
    if (ranks := sharding_ranks(subject.runtime)) > 1:
        held //= ranks
        sampling += whole_bytes(subject, shape, FULL_WIDTH if lora == "full" else width)
        training += layer_bytes(shape, 2 * FULL_WIDTH if lora == "full" else width)
    held += 0 if subject.on_gpu else PROCESS_BYTES
    working = max(sampling, training)
    logits = LOGITS_TOKENS * shape.vocabulary * 4
    libraries = 0 if subject.on_gpu else CUDA_BUILD_BYTES
    if subject.on_gpu:
        notes.append("vLLM's share of the GPU's memory (sampler_memory) is not included.")
    return TokenRange(low=round(held), high=round(MARGIN * (held + working + logits)) + libraries)


def sharding_ranks(runtime: Runtime) -> int:
    """The number of ranks that divide weights, gradients and moments among them."""
    return runtime.ranks if runtime.sharding == "fsdp" else 1


def whole_bytes(subject: Subject, shape: ModelShape, width: int) -> int:
    """Bytes of all weights if the torch sampler gathers them on each rank, otherwise 0."""
    gathers = sampling_of(subject.method) is not None and subject.runtime.sampler != "vllm"
    return shape.num_parameters * width if gathers else 0


def layer_bytes(shape: ModelShape, width: int) -> int:
    """Bytes of the layers that are unsharded at a time during training, and of the weights outside layers."""
    inside = sum(each.rows * each.columns for each in shape.matrices)
    return (shape.num_parameters - inside + GATHERED_LAYERS * inside // shape.layers) * width


def bytes_per_value(subject: Subject) -> int:
    if subject.runtime.dtype != "auto":
        return {"float32": 4, "bfloat16": 2}[subject.runtime.dtype]
    return 2 if subject.on_gpu else 4


def cache_bytes(subject: Subject, shape: ModelShape, width: int) -> int:
    """Bytes of keys and values of the completions sampled together; a group shares those of its prompt."""
    sampling = sampling_of(subject.method)
    if sampling is None:
        return 0
    together = min(subject.runtime.sample_budget, sampling.prompts_per_step * sampling.group_size)
    prompts = -(-together // sampling.group_size) * (subject.rows.longest if subject.rows else 0)
    tokens = together * sampling.max_completion_tokens + prompts
    return int(2 * shape.layers * shape.kv_width * width * tokens)


def activation_bytes(subject: Subject, shape: ModelShape, width: int) -> int:
    """Memory of the activations of one training pass."""
    per_token = shape.layers * (8 * shape.hidden + 3 * shape.intermediate) * width
    if subject.runtime.token_budget:
        return subject.runtime.token_budget * per_token
    return GPU_TOKENS * per_token if subject.on_gpu else max(CPU_ACTIVATION_BYTES, 512 * per_token)


def job_seconds(
    subject: Subject, sampled: TokenRange, trained: TokenRange, basis: Basis, notes: list[str]
) -> Range | None:
    """Range of the job's duration; None if nothing comparable has run here."""
    size, spread = subject.shape.num_parameters if subject.shape else 0, basis.spread
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
