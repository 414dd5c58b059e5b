"""The policy: model, tokenizer, adapter and frozen reference, with their log-probabilities.

Whether a model supports shared prompts and our own kernels is proven on random tokens at load (`loading.py`).
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from grpo_engine.config.job import ModelSource
from grpo_engine.config.turn_ends import turn_ends
from grpo_engine.contract.errors import ModelError
from grpo_engine.files.fingerprint import fingerprint
from grpo_engine.models import lora, quantization
from grpo_engine.models.chat_template import rendered
from grpo_engine.models.fast.model import FAMILIES, FastModel
from grpo_engine.models.forward import (
    fast_states,
    output_head,
    packed_states,
    padded_logits,
    proof_logits_by_kernels,
    proof_logits_packed,
    proof_logits_padded,
)
from grpo_engine.models.logprobs import LogitsOf, is_frozen, token_logprobs
from grpo_engine.models.positions import fix_positions
from grpo_engine.models.proof import Choice, Compute, Proof
from grpo_engine.objective.types import PackedBatch

ATTENTION = {"full_attention", "sliding_attention"}
"""Types of layers that can run on a packed row. A proof on short sequences could miss errors of others."""
UNSUPPORTED = "the engine's kernels do not support its layers or its adapter"
HEADER_STARTS, HEADER_END = ("<|start|>", "<|channel|>"), "<|message|>"
"""Special tokens around the header of a message of gpt-oss; the words between them are ordinary tokens."""


class Policy:
    """The model being trained. `model` is the causal language model, with its adapter layers."""

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
        self.architecture = type(model).__name__  # sharding derives another class
        self.stop_set = _stop_tokens(model, tokenizer)
        self.header_tokens = _header_tokens(tokenizer)
        self.device = model.device
        self.shares_prompts = False
        self.fast: FastModel | None = None
        self.fast_reference: FastModel | None = None
        self.forward = Choice("padded")
        self.decoder: Choice | None = None
        """Set by the torch sampler; the names are in `contract.events.Computation`."""
        model.eval()  # dropout off: the trained policy is the sampled one
        quantization.use_differentiable_products(model)
        self.unused_weights: tuple[str, ...] = ()
        """Weights of the model's files that belong to further layers than its config.json has."""
        self.stored_format: str | None = None
        """Format of the quantised weights in the base's files, of which the model has the values."""
        self.is_renamed = False
        """Whether the base's files hold a whole vision-language model, with other names for the weights."""
        self.dropouts = lora.lora_dropouts(model)

    @property
    def training_kernels(self) -> FastModel | None:
        """Our own kernels if they run the training passes."""
        return self.fast

    @property
    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """Name → parameter that the optimiser changes, in a fixed order."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @cached_property
    def base_fingerprint(self) -> str:
        """Fingerprint of the base's weight files; trained weights fit only this base."""
        return base_fingerprint(self.source)

    def fix_positions(self, max_tokens: int) -> bool:
        """Make each sequence's values independent of its length, at most this. False: they already are."""
        models = [model for model in (self.model, self.reference_model) if model is not None]
        depends = [fix_positions(model, max_tokens) for model in models]
        return any(depends)

    @property
    def num_embeddings(self) -> int:
        """Number of tokens that the model has; others may have been added to its tokenizer."""
        return len(self.model.get_input_embeddings().weight)  # of an adapter's layer too

    def known(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The ids of a text from elsewhere, without tokens that the model lacks."""
        limit = self.num_embeddings
        return tuple(token for token in token_ids if token < limit)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of completion tokens without special tokens and headers; messages begin on a new line."""
        messages = self._messages(token_ids) if self.header_tokens else [token_ids]
        texts = [self.tokenizer.decode(list(ids), skip_special_tokens=True) for ids in messages]
        return "\n".join(text for text in texts if text)

    def _messages(self, token_ids: Sequence[int]) -> list[list[int]]:
        """The tokens of each message, without the words of its header."""
        messages: list[list[int]] = [[]]
        in_header = False
        for token in token_ids:
            if (part := self.header_tokens.get(token)) is not None:
                in_header = part != HEADER_END
                messages += [[]] if part == HEADER_END else []
            elif not in_header:
                messages[-1].append(token)
        return messages

    def completion_text(self, token_ids: Sequence[int]) -> str:
        """Text of a whole completion; a stop token at its end is left out."""
        return self.decode(self._without_stop(token_ids))

    def turn_text(self, token_ids: Sequence[int]) -> str:
        """Text of a turn with special tokens, which may mark calls, without its end-of-turn token."""
        ids = list(self._without_stop(token_ids))
        return cast(str, self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def _without_stop(self, token_ids: Sequence[int]) -> Sequence[int]:
        return token_ids[:-1] if token_ids and token_ids[-1] in self.stop_set else token_ids

    @property
    def compute_dtype(self) -> torch.dtype:
        """Data type of the matrix products; the trained weights may be float32."""
        return torch.bfloat16 if self.autocast else cast(torch.dtype, self.model.dtype)

    @property
    def max_length(self) -> int | None:
        """Longest sequence in tokens; None if the model states none."""
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
                    raise RuntimeError("there is no reference: full fine-tuning with beta > 0 must keep one")
                return self._logprobs(self.reference_model, batch, temperature)[0]
            with lora.reference_adapter(self.peft_model):
                return self._logprobs(self.model, batch, temperature)[0]

    def _logprobs(
        self, model: PreTrainedModel, batch: PackedBatch, temperature: float, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        hidden, head = self.output_states(model, batch)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            return token_logprobs(
                hidden, batch.targets_N, head, temperature=temperature, entropy_gradient=entropy_gradient
            )

    def output_states(self, model: PreTrainedModel, batch: PackedBatch) -> tuple[Tensor, LogitsOf]:
        """Hidden states [N, H] that predict the trained tokens, and a function from states to logits."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            if not self.shares_prompts:
                return padded_logits(model, batch), lambda logits: logits
            kernels = self.training_kernels if model is self.model else self.fast_reference
            hidden = fast_states(kernels, batch) if kernels is not None else packed_states(model, batch)
            return hidden, output_head(model)

    def keep_fewer_activations(self) -> bool:
        """Recompute each layer in the backward pass; False if that is impossible or already done."""
        if self.training_kernels is None or self.training_kernels.checkpointed:
            return False
        self.training_kernels.checkpointed = True
        return True

    @contextmanager
    def dropout(self) -> Iterator[None]:
        """Inside the block, the adapter's dropout is active; the base model's never is."""
        for module in self.dropouts:
            module.train()
        try:
            yield
        finally:
            for module in self.dropouts:
                module.eval()

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Inside the block, the adapter is merged into the weights if that is exact; sampling is then faster.

        Our own kernels merge it themselves, on a CPU (`Linears.joined`).
        """
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            if self.peft_model is None or self.fast is not None or not lora.mergeable(self.peft_model):
                yield
                return
            with lora.merged(self.peft_model):
                yield

    def keep_reference(self) -> None:
        """Freeze a copy of the whole model (full fine-tuning with β > 0).

        It runs as the policy does, so that the KL is 0 until the weights differ.
        """
        self.reference_model = copy.deepcopy(self.model).requires_grad_(False)
        if self.fast is not None:
            self.fast_reference = FastModel(self.reference_model, self.compute_dtype)

    def prove_shared_prompts(self) -> None:
        """Use the fastest forward pass that computes what the model's own does. Raises ModelError."""
        if other := set(getattr(self.model.config, "layer_types", None) or ()) - ATTENTION:
            reason = f"layers of type {', '.join(sorted(other))} are computed only on whole rows"
            self.use_forward(Choice("padded", reason))
            return
        fits = FastModel.fitting(self.model, self.compute_dtype) is not None
        proof, name = self.proof(proof_logits_padded), "padded"
        if proof.has_nan:
            reason = f"{self.source.name} computes NaN: some of its weights are damaged or not numbers"
            raise ModelError(
                reason, hint="Store the model again, and check that it generates text with transformers."
            )
        if not proof.is_causal:
            reason = f"{self.source.name} ({type(self.model).__name__}) predicts tokens from later ones"
            raise ModelError(reason, hint="Use a causal language model.")
        objection = proof.objection(proof_logits_packed)
        if objection is None:
            objection = proof.objection(proof_logits_by_kernels) if fits else UNSUPPORTED
            name = "packed" if objection else "kernels"
        is_refused = bool(objection and fits) and self.model.config.model_type in FAMILIES
        self.use_forward(Choice(name, objection or "", is_refused=is_refused))

    def use_forward(self, choice: Choice) -> None:
        """Use the forward pass that was proven for this model."""
        self.forward, self.shares_prompts = choice, choice.name != "padded"
        self.fast = FastModel.fitting(self.model, self.compute_dtype) if choice.name == "kernels" else None

    @property
    def head(self) -> Choice:
        """How log-probabilities are computed from hidden states."""
        if not self.shares_prompts:
            return Choice("full_logits", "the forward pass is padded")
        if is_frozen(output_head(self.model)):
            return Choice("frozen")
        return Choice("recomputed", "the output layer is trained, or not a plain linear layer")

    def proof(self, own: Compute) -> Proof:
        """A proof that compares computations of this model with `own`."""
        return Proof(self.model, own, peft_model=self.peft_model, autocast=self.autocast)


def _header_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Ids of the special tokens around messages' headers; empty if the tokenizer lacks one of them."""
    special = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
    names = (*HEADER_STARTS, HEADER_END)
    return {special[name]: name for name in names} if special.keys() >= set(names) else {}


def _stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The stops of model and tokenizer, and the ends of turns that the chat template writes."""
    stops = model.generation_config.eos_token_id if model.generation_config else None
    found = set(stops) if isinstance(stops, list) else {stops}
    found.add(tokenizer.eos_token_id)
    special = {each.content: token for token, each in tokenizer.added_tokens_decoder.items() if each.special}
    known = {text for text, token in special.items() if token in found}
    ends = turn_ends(lambda messages: rendered(tokenizer, messages), special, known)
    found |= {special[text] for text in ends}
    return frozenset(token for token in found if token is not None)


def base_fingerprint(source: ModelSource) -> str:
    """Fingerprint of a base model's files; empty, and never compared, if they cannot be read."""
    try:
        config = cached_file(source.path, "config.json", revision=source.revision, local_files_only=True)
        return fingerprint(Path(str(config)).parent)
    except (OSError, ValueError):
        return ""
