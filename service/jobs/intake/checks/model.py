"""Checks the base model of a job, as far as its files are on the service's machine."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_engine.files.model_folder import LANGUAGE_PARTS, damage, unsupported_format
from service.hub.models import is_hub_id
from service.jobs.intake.checks.method import check_lora_targets
from service.jobs.intake.model_size import UnknownShape, model_shape
from service.jobs.intake.report import Report
from service.jobs.model.dataset import Problems
from service.jobs.model.methods import quantization_of
from service.jobs.model.schemas import JobCreate
from service.platform.catalog import CatalogEntry
from service.platform.token_counting import DamagedModelTextError, ModelText, ModelTextError, load_model_text

GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "WithLMHead", "Decoder")
"""Ends of the names of transformers' classes that generate text."""
ENDLESS = "its tokenizer has no end-of-sequence token; name one in tokenizer_config.json (eos_token)"


def check_model(report: Report, job: JobCreate, entry: CatalogEntry | None) -> ModelText | None:
    """The base model, its shape and its chat template; None if its tokenizer is not on this machine."""
    if entry is None:
        if not any(problem.param == "model" for problem in report.problems.found):
            report.problems.add("model", unknown_model(job.model), code="model_not_found")
        return None
    if entry.folder is None:
        reason = f"the model {entry.name} is not on the service's machine"
        report.warn("lengths_unchecked", f"Row lengths were not checked: {reason}.")
        return None
    with suppress(OSError):  # files that only the worker may read
        if not entry.must_download and (found := damage(entry.folder)):
            _refuse(found, report)
            return None
    with suppress(OSError, ValueError, RecursionError):  # reading the text below reports what is not JSON
        _check_config(job, entry.folder, report)
    with suppress(UnknownShape):
        report.shape = model_shape(entry.folder)
        check_lora_targets(report, report.shape)
    try:
        text = load_model_text(entry.folder)
        if text.may_have_end:
            return text
        _refuse(ENDLESS, report)
    except DamagedModelTextError as error:
        _refuse(str(error), report)
    except ModelTextError as error:
        report.warn("lengths_unchecked", f"Row lengths were not checked: {error}.")
    return None


def _refuse(reason: str, report: Report) -> None:
    report.problems.add("model", f"cannot be loaded: {reason}", code="model_not_supported")


def unknown_model(name: str) -> str:
    """Why a job cannot use a model, and how a hub's model is added."""
    reason = f"{name!r} is neither in the model catalogue nor one of your fine-tuned models"
    if is_hub_id(name):
        return f"{reason}. Add it on the service's machine: grpo models add {name}"
    return f"{reason} (see GET /v1/models)"


def _check_config(job: JobCreate, folder: Path, report: Report) -> None:
    """Adds a problem for a model that the engine refuses when it loads it."""
    config = json.loads((folder / "config.json").read_bytes())
    is_quantized_again = quantization_of(job.method) is not None
    if reason := unsupported_format(config, is_quantized_again=is_quantized_again):
        _refuse(reason, report)
    else:
        _check_text_only(config, report.problems)
        _check_class(config, report.problems)


def _check_text_only(config: Mapping[str, Any], problems: Problems) -> None:
    kind = config.get("model_type")
    if "vision_config" in config and kind not in LANGUAGE_PARTS:
        reason = f"is a vision-language model ({kind}), whose language model cannot be loaded alone"
        hint = "use a text-only model, or one of " + ", ".join(LANGUAGE_PARTS)
        problems.add("model", f"{reason}: {hint}", code="model_not_supported")


def _check_class(config: Mapping[str, Any], problems: Problems) -> None:
    """Adds a problem for a model that was saved as one that does not generate text, such as an encoder."""
    named = config.get("architectures")
    classes = [str(each) for each in named] if isinstance(named, list) else []
    if config.get("is_encoder_decoder") is True:
        reason = f"is an encoder-decoder model ({config.get('model_type')}), not a causal language model"
    elif classes and not any(each.endswith(GENERATES) for each in classes):
        reason = f"is not a causal language model ({classes[0]})"
    else:
        return
    problems.add("model", reason, code="model_not_supported")
