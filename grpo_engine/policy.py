"""The policy: model, tokenizer, adapter and frozen reference, with their log-probabilities.

Weights come from a folder or the hub at a pinned revision: safetensors only, no remote code. What a model's
shape allows (shared prompts, chunked output layer) is proven on random tokens at load, never assumed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from grpo_engine import adapters
from grpo_engine.attention import PackedLayout, using
from grpo_engine.config import Hyperparameters, Lora, ModelSource
from grpo_engine.errors import ModelError
from grpo_engine.logprobs import LogitsOf, token_logprobs
from grpo_engine.packing import TrainingGroup, TrainingSequence, pack
from grpo_engine.types import PackedBatch

PROOF_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.05}
"""Largest difference of a log-probability between the packed and the plain forward."""


class Policy:
    """The model being trained. `model` is the causal language model itself, adapter layers inside."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        source: ModelSource,
        peft_model: PeftModel | None,
        autocast: bool = False,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.source = source
        self.peft_model = peft_model
        self.reference_model: PreTrainedModel | None = None
        self.autocast = autocast
        self.device = model.device
        self.stop_set = _stop_tokens(model, tokenizer)
        self.stop_ids = torch.tensor(sorted(self.stop_set), device=self.device)
        self.pad_token_id = tokenizer.pad_token_id or 0
        self.shares_prompts = False
        model.eval()  # dropout off: the trained policy is the sampled one

    @property
    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """Name → parameter that the optimiser moves, in a fixed order."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of completion tokens, special tokens left out."""
        return cast(str, self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of the matrix products; the trained weights may be kept in float32 beside it."""
        return torch.bfloat16 if self.autocast else cast(torch.dtype, self.model.dtype)

    @property
    def max_length(self) -> int | None:
        """Longest sequence in tokens, None where the model states none."""
        limit = getattr(self.model.config, "max_position_embeddings", None)
        return int(limit) if limit else None

    def logprobs(
        self, batch: PackedBatch, temperature: float = 1.0, *, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [N] and entropies [N] of the batch's trained tokens."""
        return self._logprobs(self.model, batch, temperature, entropy_gradient)

    def reference_logprobs(self, batch: PackedBatch, temperature: float = 1.0) -> Tensor:
        """Log-probabilities [N] under the frozen reference; no gradient."""
        with torch.no_grad():
            if self.peft_model is None:
                if self.reference_model is None:
                    raise RuntimeError("a full fine-tuning job with beta > 0 keeps a reference")
                return self._logprobs(self.reference_model, batch, temperature)[0]
            with adapters.reference_adapter(self.peft_model):
                return self._logprobs(self.model, batch, temperature)[0]

    def _logprobs(
        self,
        model: PreTrainedModel,
        batch: PackedBatch,
        temperature: float,
        entropy_gradient: bool = False,
    ) -> tuple[Tensor, Tensor]:
        hidden, head = self.output_states(model, batch)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            return token_logprobs(
                hidden,
                batch.targets_N,
                head,
                temperature=temperature,
                vocab_size=head.weight.shape[0] if isinstance(head, torch.nn.Linear) else hidden.shape[-1],
                entropy_gradient=entropy_gradient,
            )

    def output_states(self, model: PreTrainedModel, batch: PackedBatch) -> tuple[Tensor, LogitsOf]:
        """What predicts each trained token [N, H], and the function that makes logits [n, V] of it."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            if not self.shares_prompts:
                return plain_logits(model, batch), lambda logits: logits
            with using(model, PackedLayout(batch.spans, self.device)):
                out = model.base_model(
                    input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False
                )
            hidden = out.last_hidden_state[0].index_select(0, batch.sources_N)
            return hidden, cast(LogitsOf, model.get_output_embeddings())

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Inside, sampling is as fast as it gets: adapter merged where merging does not round it away."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            if self.peft_model is None or not adapters.mergeable(self.peft_model):
                yield
                return
            with adapters.merged(self.peft_model):
                yield

    def keep_reference(self) -> None:
        """Freeze a copy of the whole model (full fine-tuning with β > 0)."""
        self.reference_model = copy.deepcopy(self.model).requires_grad_(False)

    def save(self, folder: Path) -> str:
        """The trained part in its public layout; "adapter" or "model" is its folder's name."""
        if self.peft_model is not None:
            adapters.save_adapter(self.peft_model, folder / "adapter", self.source.name, self.source.revision)
            return "adapter"
        self.model.save_pretrained(folder / "model", safe_serialization=True)
        self.tokenizer.save_pretrained(folder / "model")
        return "model"

    def load(self, folder: Path) -> None:
        """What `save` wrote."""
        if self.peft_model is not None:
            adapters.load_adapter_weights(self.peft_model, folder / "adapter")
            return
        # Through from_pretrained, because the names on disk are not always those in memory.
        saved = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=self.model.dtype)
        self.model.load_state_dict(saved.state_dict())

    def prove_shared_prompts(self) -> float:
        """Compare the packed forward with the plain one; use it only where they agree.

        Returns the largest difference of a log-probability (infinite where the packed one fails).
        """
        self.shares_prompts = False
        if _looks_through_windows(self.model.config):
            return float("inf")
        batch = _proof_batch(self.model.config.vocab_size, self.device)
        with torch.no_grad():
            plain, _ = self.logprobs(batch)
            self.shares_prompts = True
            try:
                packed, _ = self.logprobs(batch)
                difference = float((plain - packed).abs().max())
            except (RuntimeError, AttributeError, TypeError, KeyError):
                difference = float("inf")
        self.shares_prompts = difference <= PROOF_TOLERANCE[self.compute_dtype]
        return difference


def plain_logits(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """The trained tokens' logits [N, V] through the model's own padded forward: any model, no sharing."""
    rows: list[Tensor] = []
    columns: list[Tensor] = []
    for span in batch.spans:
        prompt = batch.input_ids[0, span.start : span.completions_start]
        offset = span.completions_start
        for length in span.completion_tokens:
            rows.append(torch.cat([prompt, batch.input_ids[0, offset : offset + length]]))
            columns.append(torch.arange(offset, offset + length, device=batch.input_ids.device))
            offset += length
    input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.arange(input_ids.shape[1], device=input_ids.device)[None] < torch.tensor(
        [len(row) for row in rows], device=input_ids.device
    ).unsqueeze(1)
    logits = model(input_ids=input_ids, attention_mask=mask.long(), use_cache=False).logits
    chosen = [
        logits[index, len(row) - len(own) - 1 : len(row) - 1]
        for index, (row, own) in enumerate(zip(rows, columns, strict=True))
    ]
    place = torch.zeros(batch.input_ids.shape[1], dtype=torch.long, device=input_ids.device)
    place[torch.cat(columns)] = torch.arange(sum(map(len, columns)), device=input_ids.device)
    return torch.cat(chosen)[place[batch.columns_N]]


def _proof_batch(vocab_size: int, device: torch.device) -> PackedBatch:
    """Two groups of random tokens with completions of unequal length."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, vocab_size, (count,), generator=generator).tolist())

    groups = [
        TrainingGroup(
            tokens(prompt),
            tuple(TrainingSequence(tokens(n), (0.0,) * n, (1.0,) * n, 1.0) for n in completions),
        )
        for prompt, completions in ((5, (4, 1, 7)), (3, (2, 6)))
    ]
    return next(pack(groups, 10_000, device))


def _looks_through_windows(config: PreTrainedConfig) -> bool:
    """Whether some layers see only a stretch of the past: a proof on short sequences would not notice."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    return bool(getattr(config, "sliding_window", None)) and getattr(config, "use_sliding_window", True)


def _stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    stops = model.generation_config.eos_token_id if model.generation_config else None
    found = set(stops) if isinstance(stops, list) else {stops}
    found.add(tokenizer.eos_token_id)
    return frozenset(token for token in found if token is not None)


def load_policy(
    source: ModelSource, hyperparameters: Hyperparameters, device: torch.device, dtype: torch.dtype, seed: int
) -> Policy:
    """Base model, tokenizer and adapter on `device`. Raises ModelError."""
    torch.manual_seed(seed)
    full = hyperparameters.lora == "full"
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.path, revision=source.revision)
        model = AutoModelForCausalLM.from_pretrained(
            source.path,
            revision=source.revision,
            dtype=torch.float32 if full else dtype,
            use_safetensors=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{source.name} cannot be loaded: {error}") from error
    _refuse_endless(model, tokenizer, source)
    model.to(device)  # type: ignore[arg-type]
    peft_model = _with_adapter(model, source, hyperparameters)
    policy = Policy(
        model if peft_model is None else cast(PreTrainedModel, peft_model.get_base_model()),
        tokenizer,
        source,
        peft_model,
        autocast=full and dtype == torch.bfloat16,
    )
    policy.prove_shared_prompts()
    return policy


def _refuse_endless(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: ModelSource) -> None:
    """A model must be able to end; one whose generation settings contradict each other could not be saved."""
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {source.name} has no end-of-sequence token")
    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig(
            eos_token_id=model.generation_config.eos_token_id, pad_token_id=tokenizer.pad_token_id
        )


def _with_adapter(
    model: PreTrainedModel, source: ModelSource, hyperparameters: Hyperparameters
) -> PeftModel | None:
    lora = hyperparameters.lora
    if lora == "full":
        if source.adapter is not None:
            merged = PeftModel.from_pretrained(model, source.adapter).merge_and_unload()
            merged.requires_grad_(True)
        return None
    if source.adapter is not None:
        return adapters.resume_adapter(model, source.adapter, lora)
    return adapters.attach(model, lora or Lora())
