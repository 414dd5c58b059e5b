"""One error tree with stable codes.

Every `EngineError` is deterministic: the same job fails again, so a worker does not retry it. Any other
exception becomes an `engine_error`, which ends the job when it repeats. Errors of the machine (a signal, a
lost disk, a `MachineError`) are retried (`run/engine_errors.py`).
"""


class EngineError(Exception):
    """The job cannot succeed; running it again would fail again."""

    code = "engine_error"
    hint = "Check the evidence and the job's events."

    def __init__(self, message: str, *, hint: str | None = None, evidence: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or type(self).hint
        self.evidence = evidence


class MachineError(Exception):
    """This machine cannot run the job at present; another attempt or another machine may."""


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
    """The base model's weights differ from those that the adapter or checkpoint was trained on."""

    code = "base_model_changed"
    hint = (
        "Restore the model's original files and repeat the request; a new job can continue from the last "
        "checkpoint. With the new files, training must start from step 0."
    )


class NotMergeableError(ModelError):
    """The adapter cannot be merged into its base model."""

    code = "not_mergeable"
    hint = "Use the adapter itself: PEFT and vLLM load it together with the base model."


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
        "All completions of each prompt got the same reward. Use prompts the model solves sometimes or a "
        "finer grader, raise group_size or temperature, or start with supervised fine-tuning."
    )


class EndpointDownError(EngineError):
    """An endpoint that the job uses did not respond, after all retries."""

    code = "endpoint_failed"
    hint = (
        "Check with the operator that the endpoint is up and offers the model, then submit the job again. "
        "If there is a checkpoint, the newest one holds what was learned so far."
    )


class EnvironmentUnreachableError(EngineError):
    """An environment of the job cannot be reached, or all of its episodes fail."""

    code = "environment_unreachable"
    hint = (
        "Correct the failures in the evidence. If the environment's server was not reached, check that it "
        "runs and has free sessions. Then submit the job again. "
        "If there is a checkpoint, the newest one holds what was learned so far."
    )


class OverspentError(EngineError):
    """The job has reached its limit of endpoint calls or their cost."""

    code = "spend_limit"
    hint = (
        "Raise max_calls or max_cost_usd, or use fewer rows or a smaller group_size. "
        "If there is a checkpoint, the newest one holds what was learned so far."
    )


class PolicyMismatchError(EngineError):
    """The sampler does not serve the policy that it was given."""

    code = "policy_mismatch"
    hint = (
        "Completions of another policy would spoil the training unnoticed. Have the operator set "
        "runtime.sampler to torch, or try another version of vLLM; the last checkpoint is intact."
    )


class DeviceMemoryError(EngineError):
    """The job does not fit on this device even with the smallest micro-batches."""

    code = "out_of_memory"
    hint = "Lower max_completion_tokens or group_size, use LoRA, or choose a smaller model."


class DiskFullError(EngineError):
    """A checkpoint cannot be written."""

    code = "disk_full"
    hint = (
        "Free space on the worker's disk and submit the job again; checkpoints of earlier steps are intact."
    )


class RanksDisagreeError(EngineError):
    """The ranks of a job would start from different states."""

    code = "ranks_disagree"
    hint = (
        "Give all ranks the same configuration, datasets, base model and checkpoint: share the run directory "
        "or copy it to every host."
    )
