"""Measures how a merged model differs from its adapter on the quantised base that it was trained on.

The difference is that of the tokens' log-probabilities, on the completions of the job's last evaluation (of a
supervised job, on its held-out targets). It needs no grader and no sampling. Tool results are included.
"""

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_engine.config.job import Reinforcement, RunConfig, Supervised, TrainingFree, hyperparameters_of
from grpo_engine.config.tools import function_schemas
from grpo_engine.contract.events import MergeDifference
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.objective.packing import TrainingGroup, pack
from grpo_engine.rollout.dataset import RowReader, held_out_numbers, read_rows

MAX_ROWS = 32
TOKENS = 4096
"""Tokens in one pass."""


def measure(
    config: RunConfig, merged: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> MergeDifference | None:
    """The merged model compared with the adapter on its quantised base, in the same data type.

    None if the base was not quantised or the job has no held-out completions.
    """
    path = config.training_file if config.validation_split is not None else config.validation_file
    if isinstance(config.method, TrainingFree) or path is None:
        return None
    settings = hyperparameters_of(config.method)
    groups = list(_held_out(config, path, tokenizer))
    if settings.quantization is None or not groups:
        return None
    policy = Policy(merged, tokenizer, config.model, None)
    policy.prove_shared_prompts()
    merged_N = _logprobs(policy, groups)
    trained_N = _logprobs(load_policy(config.model, settings, policy.device, merged.dtype, 0), groups)
    return MergeDifference(
        rows=len(groups),
        tokens=len(trained_N),
        quantized=float(trained_N.mean()),
        merged=float(merged_N.mean()),
        mean_absolute=float((merged_N - trained_N).abs().mean()),
    )


def _held_out(config: RunConfig, path: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[TrainingGroup]:
    rows, method = read_rows(path), config.method
    if isinstance(method, Supervised):
        limit = method.supervised.hyperparameters.max_tokens
        numbers = sorted(held_out_numbers(config) or range(len(rows)))[:MAX_ROWS]
        shown = [rows[number] for number in numbers]
        for each in RowReader(tokenizer, config.created_at).demonstrations(shown, limit):
            yield TrainingGroup.of(each.token_ids, each.target_ids)
    elif isinstance(method, Reinforcement):
        reader = RowReader(tokenizer, config.created_at, function_schemas(method.reinforcement.tools))
        prompts = reader.prompts(rows)
        for row, completion in islice(config.held_out_completions.items(), MAX_ROWS):
            yield TrainingGroup.of(prompts[row].token_ids, completion)


def _logprobs(policy: Policy, groups: list[TrainingGroup]) -> Tensor:
    """Log-probabilities [N] of the completions' tokens, in a fixed order."""
    with torch.no_grad():
        found = [policy.logprobs(batch)[0].float() for batch in pack(groups, TOKENS, policy.device)]
    return torch.cat(found)
