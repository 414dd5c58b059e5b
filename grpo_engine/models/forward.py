"""Three ways to run a model over a packed micro-batch: our kernels, the model's own layers, whole rows."""

from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from grpo_engine.models.fast.attention import attention_for, packed_attention
from grpo_engine.models.fast.model import FastModel
from grpo_engine.models.logprobs import CappedHead, LogitsOf
from grpo_engine.models.shared_prompt_attention import using
from grpo_engine.objective.packing import TrainingGroup, pack
from grpo_engine.objective.types import GroupSpan, PackedBatch

ROUND = 64
"""On a CPU, the number of rows is a multiple of this, because oneDNN compiles a program for each number."""


def fast_states(fast: FastModel, batch: PackedBatch) -> Tensor:
    """Hidden states [N, H] that predict the trained tokens, by our kernels (Llama family only)."""
    tokens, positions, spans = batch.input_ids[0], batch.position_ids[0], batch.spans
    if tokens.device.type == "cpu" and (extra := -len(tokens) % ROUND):
        tokens, positions = pad(tokens, (0, extra)), pad(positions, (0, extra))
        spans = (*spans, GroupSpan(len(batch.input_ids[0]), extra, ()))
    attention = attention_for(spans, fast.model, fast.dtype)
    hidden = fast.hidden(tokens, positions, attention, fast.tensors())
    return hidden.index_select(0, batch.sources_N)


def packed_states(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """The same states by the model's own layers, if transformers can replace their attention with ours."""
    with using(model, packed_attention(batch.spans, model, compute_dtype(model))):
        hidden = own_states(model, batch.input_ids, batch.position_ids)
    return hidden.index_select(0, batch.sources_N)


def own_states(model: PreTrainedModel, input_ids: Tensor, position_ids: Tensor) -> Tensor:
    """Tokens and positions of a row [1, T] → hidden states [T, H], ready for the `output_head`."""
    out = model.base_model(input_ids=input_ids, position_ids=position_ids, use_cache=False)
    config = model.config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1 / getattr(config, "logits_scaling", 1)
    hidden = cast(Tensor, out.last_hidden_state[0])
    return hidden if scale == 1 else hidden * scale


def output_head(model: PreTrainedModel) -> LogitsOf:
    """Hidden states [n, H] → logits [n, V], with the family's soft cap."""
    head = cast(torch.nn.Linear, model.get_output_embeddings())
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    return CappedHead(head, cap) if cap else head


def padded_logits(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """The trained tokens' logits [N, V] by the model's own padded forward. Works for any model, but computes
    a prompt once for each completion."""
    tokens, rows = batch.input_ids[0], list[Tensor]()
    for span in batch.spans:
        own = tokens[span.start : span.end].split([span.prompt_tokens, *span.completion_tokens])
        rows += [torch.cat([own[0], completion]) for completion in own[1:]]
    input_ids, mask = (
        pad_sequence(each, batch_first=True) for each in (rows, [torch.ones_like(row) for row in rows])
    )
    logits = model(input_ids=input_ids, attention_mask=mask, use_cache=False).logits
    lengths = [length for span in batch.spans for length in span.completion_tokens]
    chosen = [
        logits[index, len(row) - length - 1 : len(row) - 1]
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True))
    ]
    columns = torch.cat([torch.arange(span.completions_start, span.end) for span in batch.spans])
    return torch.cat(chosen)[torch.searchsorted(columns.to(tokens.device), batch.columns_N)]


def proof_logits_by_kernels(model: PreTrainedModel) -> Tensor:
    """Logits [N, V] of `proof_batch` by our kernels. Raises ValueError if they do not support the model."""
    states = fast_states(supported_by_kernels(model), proof_batch(model))
    return cast(Tensor, model.get_output_embeddings()(states))


def supported_by_kernels(model: PreTrainedModel) -> FastModel:
    """The model for our kernels. Raises ValueError if they do not support it."""
    fast = FastModel.fitting(model, compute_dtype(model))
    if fast is None:
        raise ValueError("the engine's kernels do not support this architecture")
    return fast


def proof_logits_packed(model: PreTrainedModel) -> Tensor:
    """The same logits by the model's own layers with our attention."""
    return output_head(model)(packed_states(model, proof_batch(model)))


def proof_logits_padded(model: PreTrainedModel) -> Tensor:
    """The same logits by the model's own forward pass."""
    return padded_logits(model, proof_batch(model))


def compute_dtype(model: PreTrainedModel) -> torch.dtype:
    """Number format of the matrix products here: autocast's, if it is on, otherwise the weights'."""
    kind = model.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return cast(torch.dtype, model.dtype)


def proof_batch(model: PreTrainedModel) -> PackedBatch:
    """Two groups of random tokens with completions of unequal length."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, model.config.vocab_size, (count,), generator=generator).tolist())

    groups = [
        TrainingGroup.of(tokens(prompt), *map(tokens, completions))
        for prompt, completions in ((5, (4, 1, 7)), (3, (2, 6)))
    ]
    return next(pack(groups, 10_000, model.device))
