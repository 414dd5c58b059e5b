"""One error tree with stable codes.

EngineError
├── ConfigError        config_invalid      the configuration cannot be run
├── DatasetError       dataset_invalid     a row cannot be used; names file, line and field
├── ModelError         model_not_found     the base model or adapter cannot be loaded
│   ├── BaseChangedError base_model_changed the base has other weights than those that were trained on
│   └── NotMergeableError not_mergeable    the adapter cannot be merged into its base model
├── GraderError        grader_contract     graders fail on most completions
├── NonFiniteError     non_finite          loss or gradient is NaN or infinite
├── NoSignalError      no_signal           no group had two different rewards for many steps
├── EndpointDownError  endpoint_failed     an endpoint that the job works with does not answer
├── OverspentError     spend_limit         the job has called endpoints as often as it may
├── PolicyMismatchError policy_mismatch   the sampler does not serve the trained policy
├── DeviceMemoryError  out_of_memory       does not fit even in the smallest pieces
└── DiskFullError      disk_full           a checkpoint cannot be written

All of them are deterministic: running the same job again fails again, so a worker does not retry them.
Anything else that ends an engine (a signal, a lost disk) is infrastructure and is retried.
"""

from __future__ import annotations


class EngineError(Exception):
    """The engine cannot go on."""

    code = "engine_error"
    hint = "Look at the evidence and at the job's events."

    def __init__(self, message: str, *, hint: str | None = None, evidence: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or type(self).hint
        self.evidence = evidence

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.evidence)


def _rebuild(kind: type[EngineError], message: str, hint: str, evidence: tuple[str, ...]) -> EngineError:
    return kind(message, hint=hint, evidence=evidence)


class MachineError(Exception):
    """This machine cannot run the job at present; another attempt, or another machine, may.

    Not an `EngineError`, so a worker retries it.
    """


class ConfigError(EngineError):
    """The configuration cannot be run."""

    code = "config_invalid"
    hint = "Correct the named field and submit the job again."


class DatasetError(EngineError):
    """A dataset row cannot be used."""

    code = "dataset_invalid"
    hint = "Correct the named line and upload the file again."


class ModelError(EngineError):
    """The base model or the adapter cannot be loaded."""

    code = "model_not_found"
    hint = "Check the model catalogue: the path or hub id, its revision, and that it holds safetensors."


class BaseChangedError(ModelError):
    """The base model has other weights now than when this was trained on it."""

    code = "base_model_changed"
    hint = (
        "Put the model's files back as they were; a new job may then start from the last checkpoint. "
        "With the new files only a job from the beginning can run."
    )


class NotMergeableError(ModelError):
    """The adapter cannot be merged into its base model."""

    code = "not_mergeable"
    hint = "Use the adapter as it is: PEFT and vLLM load it beside the base model."


class GraderError(EngineError):
    """Graders fail on most completions."""

    code = "grader_contract"
    hint = "Run the grader on a sample with POST /v1/fine_tuning/alpha/graders/run and correct it."


class NonFiniteError(EngineError):
    """Loss or gradient is NaN or infinite; the optimiser has not moved."""

    code = "non_finite"
    hint = "Lower learning_rate, raise beta, or train in float32; the last checkpoint is intact."


class NoSignalError(EngineError):
    """No group had two different rewards for many steps in a row: there is nothing to learn from."""

    code = "no_signal"
    hint = (
        "All completions of each prompt got the same reward. Use prompts the model solves sometimes, "
        "a finer grader, a larger group_size or a higher temperature; or start with supervised fine-tuning."
    )


class EndpointDownError(EngineError):
    """An endpoint that the job works with does not answer, after all retries."""

    code = "endpoint_failed"
    hint = (
        "Ask the operator whether the endpoint is up and offers the model, then submit the job again. "
        "What was learnt so far is in the newest checkpoint."
    )


class OverspentError(EngineError):
    """The job has called endpoints as often, or for as much money, as it may."""

    code = "spend_limit"
    hint = (
        "Raise max_calls or max_cost_usd, or take fewer rows or a smaller group_size. "
        "What was learnt so far is in the newest checkpoint."
    )


class PolicyMismatchError(EngineError):
    """The sampler does not serve the policy that was handed to it."""

    code = "policy_mismatch"
    hint = (
        "Training on another policy's completions would go wrong unseen. Ask the operator to set "
        "runtime.sampler to torch, or to try another version of vLLM; the last checkpoint is intact."
    )


class DeviceMemoryError(EngineError):
    """The job does not fit this device even in the smallest pieces."""

    code = "out_of_memory"
    hint = "Lower max_completion_tokens or group_size, use LoRA, or take a smaller model."


class DiskFullError(EngineError):
    """A checkpoint cannot be written."""

    code = "disk_full"
    hint = "Free space on the worker's disk; the previous checkpoint is intact."
