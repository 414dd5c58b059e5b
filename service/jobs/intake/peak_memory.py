"""Estimates the peak memory of a job's engine, from the model's shape."""

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import Reinforcement, Runtime
from service.jobs.intake.model_size import ModelShape
from service.jobs.intake.subject import Subject
from service.jobs.model.methods import lora_of, quantization_of, sampling_of
from service.jobs.model.validation import TokenRange

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


def peak_memory(subject: Subject, notes: list[str]) -> TokenRange | None:
    """A rank's weights, trained parameters, and the larger of sampling's cache and training's activations."""
    shape = subject.shape
    if shape is None:
        notes.append("The model's size is unknown on this machine, so its memory is too.")
        return None
    width, method = _bytes_per_value(subject), subject.method
    has_reference = isinstance(method, Reinforcement) and method.reinforcement.hyperparameters.beta > 0
    held = shape.weight_bytes(width, quantization_of(method))
    lora = lora_of(subject.method) or Lora()
    if lora == "full":
        held = shape.num_parameters * (BYTES_PER_TRAINED + (FULL_WIDTH if has_reference else 0))
    else:
        held += shape.adapter_parameters(lora.rank, lora.target_modules) * BYTES_PER_TRAINED
    sampling, training = _cache_bytes(subject, shape, width), _activation_bytes(subject, shape, width)
    if (ranks := _sharding_ranks(subject.runtime)) > 1:
        held //= ranks
        sampling += _whole_bytes(subject, shape, FULL_WIDTH if lora == "full" else width)
        training += _layer_bytes(shape, 2 * FULL_WIDTH if lora == "full" else width)
    held += 0 if subject.on_gpu else PROCESS_BYTES
    working = max(sampling, training)
    logits = LOGITS_TOKENS * shape.vocabulary * 4
    libraries = 0 if subject.on_gpu else CUDA_BUILD_BYTES
    if subject.on_gpu:
        notes.append("vLLM's share of the GPU's memory (sampler_memory) is not included.")
    return TokenRange(low=round(held), high=round(MARGIN * (held + working + logits)) + libraries)


def _sharding_ranks(runtime: Runtime) -> int:
    """The number of ranks that divide weights, gradients and moments among them."""
    return runtime.ranks if runtime.sharding == "fsdp" else 1


def _whole_bytes(subject: Subject, shape: ModelShape, width: int) -> int:
    """Bytes of all weights if the torch sampler gathers them on each rank, otherwise 0."""
    gathers = sampling_of(subject.method) is not None and subject.runtime.sampler != "vllm"
    return shape.num_parameters * width if gathers else 0


def _layer_bytes(shape: ModelShape, width: int) -> int:
    """Bytes of the layers that are unsharded at a time during training, and of the weights outside layers."""
    inside = sum(each.rows * each.columns for each in shape.matrices)
    return (shape.num_parameters - inside + GATHERED_LAYERS * inside // shape.layers) * width


def _bytes_per_value(subject: Subject) -> int:
    if subject.runtime.dtype != "auto":
        return {"float32": 4, "bfloat16": 2}[subject.runtime.dtype]
    return 2 if subject.on_gpu else 4


def _cache_bytes(subject: Subject, shape: ModelShape, width: int) -> int:
    """Bytes of keys and values of the completions sampled together; a group shares those of its prompt."""
    sampling = sampling_of(subject.method)
    if sampling is None:
        return 0
    together = min(subject.runtime.sample_budget, sampling.prompts_per_step * sampling.group_size)
    prompts = -(-together // sampling.group_size) * (subject.rows.longest if subject.rows else 0)
    tokens = together * sampling.max_completion_tokens + prompts
    return int(2 * shape.layers * shape.kv_width * width * tokens)


def _activation_bytes(subject: Subject, shape: ModelShape, width: int) -> int:
    """Memory of the activations of one training pass."""
    per_token = shape.layers * (8 * shape.hidden + 3 * shape.intermediate) * width
    if subject.runtime.token_budget:
        return subject.runtime.token_budget * per_token
    return GPU_TOKENS * per_token if subject.on_gpu else max(CPU_ACTIVATION_BYTES, 512 * per_token)
