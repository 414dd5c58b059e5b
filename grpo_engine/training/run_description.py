"""The first events: the device, libraries and model that a run uses, how it computes, and its warnings."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.contract.events import Computation, Started, Warned
from grpo_engine.models.fast.operations import compiled_version
from grpo_engine.models.lora import largest_rank
from grpo_engine.models.lora_targets import left_out
from grpo_engine.models.policy import Policy
from grpo_engine.training.method import Method


def started(method: Method, step: int) -> Started:
    """A run's first event; the run resumes after `step` (0: from the start)."""
    policy = method.policy
    run = Started(
        total_steps=method.total_steps,
        resumed_from_step=step,
        device="none",
        dtype="none",
        sampler=method.sampler_name,
        num_parameters=0,
        num_trainable_parameters=0,
        num_rows=method.num_rows,
        versions=library_versions(),
    )
    if policy is None:
        return run
    parameters = list(policy.model.parameters())
    model = {
        "device": str(policy.device),
        "machine": machine_name(policy.device),
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "computation": computation(policy),
        "num_parameters": policy.model.num_parameters(),
    }
    if method.trains_weights:
        model["num_trainable_parameters"] = sum(each.numel() for each in parameters if each.requires_grad)
        model["base_format"] = policy.stored_format
        model["base_class"] = "AutoModelForImageTextToText" if policy.is_renamed else None
        model["base_fingerprint"] = policy.base_fingerprint
        model["adapter_rank"] = None if policy.peft_model is None else largest_rank(policy.peft_model)
    return run.model_copy(update=model)


def weights_left_out(method: Method, lora: Lora | Literal["full"] | None) -> list[Warned]:
    """A warning that names the matrices which LoRA on all linear layers does not train, if there are any.

    `lora`: the job's; None: the shape of its parent's adapter.
    """
    names_layers = isinstance(lora, Lora) and lora.target_modules != "all-linear"
    adapter = None if method.policy is None or names_layers else method.policy.peft_model
    if adapter is None or not method.trains_weights or not (missing := left_out(adapter)):
        return []
    names = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
    message = f"The adapter leaves out matrices of the layers: {names}."
    return [Warned(code="weights_not_trained", message=message, step=0)]


def computation(policy: Policy) -> Computation:
    choices = {"forward": policy.forward, "decoder": policy.decoder, "head": policy.head}
    chosen = {part: choice for part, choice in choices.items() if choice is not None}
    reasons = {part: choice.slower_because for part, choice in chosen.items() if choice.slower_because}
    names = {part: choice.name for part, choice in chosen.items()}
    return Computation.model_validate({**names, "slower_because": reasons})


def model_warnings(policy: Policy) -> list[Warned]:
    """Warnings about the model's files and about the way in which it is computed."""
    return [*_unused_weights(policy), *_fallbacks(policy)]


def _unused_weights(policy: Policy) -> list[Warned]:
    if not (names := policy.unused_weights):
        return []
    message = (
        f"{len(names)} weights of the model's files are not used, such as {names[0]}: its config.json "
        "has fewer layers. Check that the model was copied completely."
    )
    return [Warned(code="weights_unused", message=message, step=0)]


def _fallbacks(policy: Policy) -> list[Warned]:
    """A warning if the proof refused the kernels for a model that they are written for."""
    for code, choice in (("slower_forward", policy.forward), ("slower_decoder", policy.decoder)):
        if choice is not None and choice.is_refused:
            what = "Training and sampling do" if code == "slower_forward" else "Sampling does"
            message = (
                f"{what} not use the engine's kernels but a slower way ({choice.name}), because they were "
                f"not proven to give this model's results: {choice.slower_because}. The results are right; "
                "report this with the model's name and versions."
            )
            return [Warned(code=code, message=message)]
    return []


def library_versions() -> dict[str, str]:
    """Versions of Python, of the libraries that compute, and of the compiled operations."""
    packages = {name: package_version(name) for name in ("torch", "transformers", "peft", "grpo-service")}
    return {"python": platform.python_version(), **packages, "compiled operations": compiled_version()}


@cache  # each checkpoint has the versions, and importlib parses a package's whole description for one
def package_version(name: str) -> str:
    """A package's version; the engine also runs from its sources, without installation."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def machine_name(device: torch.device) -> str:
    """The GPU's name, or the processor's with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    lines = Path("/proc/cpuinfo").read_text().splitlines() if platform.system() == "Linux" else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"
