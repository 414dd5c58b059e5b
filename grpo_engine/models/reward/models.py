"""Reward models: sequence classification with one label, in their own grading process.

Safetensors only, no remote code, float32 on the CPU, one thread: grading processes run beside the training.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from grpo_engine.config.messages import TEMPLATE_ERRORS
from grpo_engine.graders.errors import UnscorableError

MODELS_KEPT = 2
HUGE = 10**9
"""A tokenizer without a limit states a larger number."""


class LoadedRewardModel(NamedTuple):
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: float
    """Longest input in tokens; infinite if the model states none."""


@lru_cache(maxsize=MODELS_KEPT)
def load(path: str, revision: str | None = None) -> LoadedRewardModel:
    """Model and tokenizer of a folder or a hub id, kept for this process. Raises UnscorableError.

    Sets torch's threads of this process to one.
    """
    torch.set_num_threads(1)
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": False}
    options["local_files_only"] = Path(path).is_dir()
    try:
        config = AutoConfig.from_pretrained(path, **options)
        if config.num_labels != 1:
            message = f"a reward model has one label; this model has {config.num_labels} labels"
            raise UnscorableError("other_error", message)
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
        model, report = AutoModelForSequenceClassification.from_pretrained(
            path,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise UnscorableError("other_error", f"the reward model cannot be loaded: {error}") from error
    if missing := sorted(report["missing_keys"]):
        message = f"no weights for {', '.join(missing[:5])}: was it trained as a reward model?"
        raise UnscorableError("other_error", message)
    model.eval()
    return LoadedRewardModel(model, tokenizer, _longest(config, tokenizer))


def score(
    path: str, revision: str | None, prompt: str | None, completion: str, *, max_length: int | None = None
) -> float:
    """The model's logit for a completion. Raises UnscorableError."""
    loaded = load(path, revision)
    encoded = encode(loaded.tokenizer, prompt, completion)
    num_tokens = encoded["input_ids"].shape[1]
    limit = min(loaded.max_length, max_length or math.inf)
    if num_tokens > limit:
        message = f"{num_tokens} tokens for the reward model, which reads at most {limit:g}"
        raise UnscorableError("truncated_observation_error", message)
    if num_tokens == 0:
        raise UnscorableError("other_error", "the text is empty: the tokenizer returns no tokens")
    with torch.inference_mode():
        return float(loaded.model(**encoded).logits[0, 0])


def encode(tokenizer: PreTrainedTokenizerBase, prompt: str | None, completion: str) -> Any:
    """Model inputs [1, T]: two turns by the chat template, a pair of texts, or the completion alone."""
    if prompt is None:
        return tokenizer(completion, return_tensors="pt")
    if not tokenizer.chat_template:
        return tokenizer(prompt, completion, return_tensors="pt")
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
    try:
        return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_tensors="pt")
    except TEMPLATE_ERRORS as error:
        raise UnscorableError("other_error", f"the chat template refuses the texts: {error}") from None


def _longest(config: Any, tokenizer: PreTrainedTokenizerBase) -> float:
    stated = (getattr(config, "max_position_embeddings", None), tokenizer.model_max_length)
    return min((limit for limit in stated if limit and limit < HUGE), default=math.inf)
