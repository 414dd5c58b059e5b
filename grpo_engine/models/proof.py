"""Proof at load that a faster way to compute a model gives what the model's own forward pass gives.

Two questions, because rounding in bfloat16 would hide a small mistake and large logits would look like one:

* Is the structure right? In float32, on a few layers, the results are equal to 1e-5 of the logits' range.
  More layers can amplify rounding errors beyond that.
* Is the precision kept? On the whole model in the job's number format, the error against float32 is at most
  twice the error of the model's own forward pass, or 1e-4 of the logits' range.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedConfig, PreTrainedModel

Compute = Callable[[PreTrainedModel], Tensor]
"""Runs a model on a few fixed tokens; logits [S, V]."""

STRUCTURE_TOLERANCE = 1e-5
"""Largest difference of a log-probability in float32, as a share of the logits' range."""
LEAST_RANGE = 10.0
"""Range of logits below which the tolerance does not shrink further."""
ERROR_RATIO = 2.0
"""Largest error against float32, as a multiple of the model's own."""
ERROR_TOLERANCE = 1e-4
"""Error that is always accepted, as a share of the logits' range."""
FEW_LAYERS = 4
"""A float32 model with at most this many layers is compared itself; otherwise a small copy is."""
CAUSAL_TOKENS = 8
CAUSAL_TOLERANCE = 1e-3
"""Largest difference of logits in float32 if later tokens differ, as a share of their range."""
TWIN_LAYERS = 2
"""Minimum layers of the copy, which has random weights; it has more if the model has more kinds of layers."""
TWIN_VOCABULARY = 256
TWIN_WINDOW = 3
"""Tokens of an attention window in the copy: shorter than the prompts and completions of a proof."""

FAILURES = (RuntimeError, AttributeError, TypeError, KeyError, ValueError, IndexError)
"""Exceptions that a model raises if it cannot be computed in a faster way."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The way in which a run computes a result, chosen from several."""

    name: str
    slower_because: str = ""
    """Why no faster way is used; empty for the fastest."""
    is_refused: bool = False
    """Whether the proof refused the fastest way for a model for which it is written."""


class Proof:
    """Compares faster computations of one model with `own`, its own computation."""

    def __init__(
        self, model: PreTrainedModel, own: Compute, *, peft_model: PeftModel | None, autocast: bool
    ) -> None:
        self.model = model
        self.own = own
        self.peft_model = peft_model
        self.autocast = autocast

    @property
    def has_nan(self) -> bool:
        """Whether the model's own logits are not numbers; False if they cannot be computed in float32."""
        try:
            with torch.no_grad():
                own = self._twin_logits if self._twin is self.model else self._exact_logprobs
        except FAILURES:
            return False
        return bool(own.isnan().any())

    @property
    def is_causal(self) -> bool:
        """Whether no logits depend on later tokens; True if they cannot be computed in float32."""
        tokens = torch.arange(CAUSAL_TOKENS, device=self.model.device)[None]
        try:
            with torch.no_grad():
                first = self._twin(tokens[:, : CAUSAL_TOKENS // 2]).logits[0]
                again = self._twin(tokens).logits[0, : CAUSAL_TOKENS // 2]
        except FAILURES:
            return True
        return float((again - first).abs().max()) <= CAUSAL_TOLERANCE * _range(first)

    def objection(self, faster: Compute) -> str | None:
        """Why `faster` may not replace the model's own computation; None if it may."""
        try:
            with torch.no_grad():
                return self._wrong_structure(faster) or self._lost_precision(faster)
        except torch.OutOfMemoryError:
            raise  # the model does not fit; a slower way needs more memory
        except FAILURES as error:
            return f"it fails with {type(error).__name__}: {error}"

    def _wrong_structure(self, faster: Compute) -> str | None:
        expected = self._twin_logits
        found = faster(self._twin).float()
        limit = STRUCTURE_TOLERANCE * _range(expected)
        difference = float((found.log_softmax(-1) - expected.log_softmax(-1)).abs().max())
        if difference <= limit:
            return None
        return f"in float32 its log-probabilities differ by {difference:.2g} (at most {limit:.2g})"

    def _lost_precision(self, faster: Compute) -> str | None:
        if not self._is_rounded and self._twin is self.model:
            return None  # the structure was compared on the whole model
        error = _distance(self._in_job_dtype(faster), self._exact_logprobs)
        limit = max(ERROR_RATIO * self._own_error, ERROR_TOLERANCE * _range(self._exact_logprobs))
        if error <= limit:
            return None
        return f"its rounding errors are {error:.2g} on average (at most {limit:.2g})"

    @property
    def _is_rounded(self) -> bool:
        return self.autocast or self.model.dtype != torch.float32

    @cached_property
    def _twin(self) -> PreTrainedModel:
        """A float32 model of the same structure with few layers; the model itself if it is one.

        A model with an attention window is always copied, because its window exceeds a proof's sequences.
        """
        config = self.model.config.get_text_config()
        is_small = self.model.dtype == torch.float32 and config.num_hidden_layers <= FEW_LAYERS
        if is_small and not getattr(config, "sliding_window", None):
            return self.model
        return _twin(self.model, self.peft_model)

    @cached_property
    def _twin_logits(self) -> Tensor:
        return self.own(self._twin).float()

    @cached_property
    def _exact_logprobs(self) -> Tensor:
        """[S, V], computed in float32."""
        with _float32(self.model):
            return self.own(self.model).float().log_softmax(-1)

    @cached_property
    def _own_error(self) -> float:
        if not self._is_rounded:
            return 0.0
        return _distance(self._in_job_dtype(self.own), self._exact_logprobs)

    def _in_job_dtype(self, compute: Compute) -> Tensor:
        """Log-probabilities [S, V]."""
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.autocast):
            return compute(self.model).float().log_softmax(-1)


def _range(values: Tensor) -> float:
    """Range of logits, or of log-probabilities, whose range is the same."""
    return max(LEAST_RANGE, float(values.max() - values.min()))


def _distance(logprobs: Tensor, exact: Tensor) -> float:
    """Root mean square difference; a maximum over a large vocabulary says little about the rest."""
    return float((logprobs - exact).square().mean().sqrt())


def _twin(model: PreTrainedModel, peft_model: PeftModel | None) -> PreTrainedModel:
    """A few layers with random weights, a small vocabulary and, if there is one, a random adapter."""
    config = _small(model.config.get_text_config())
    with torch.random.fork_rng(), torch.device(model.device):
        torch.manual_seed(0)
        twin = type(model)._from_config(config, dtype=torch.float32)
        if peft_model is not None:
            adapter = _on_any_layer(cast(LoraConfig, peft_model.peft_config["default"]))
            twin = get_peft_model(twin, adapter).get_base_model()
        for name, parameter in twin.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.05)
            elif parameter.dim() == 1:  # fresh biases are 0 and fresh norms 1, and would hide a mistake
                parameter.data += 0.1 * torch.randn_like(parameter)
        return cast(PreTrainedModel, twin.eval())


def _on_any_layer(adapter: LoraConfig) -> LoraConfig:
    """The adapter's shape without its base and layer numbers, because the twin has fewer layers."""
    adapter = copy.deepcopy(adapter)
    adapter.base_model_name_or_path = None
    if isinstance(adapter.target_modules, set | list):
        adapter.target_modules = {name.rpartition(".")[2] for name in adapter.target_modules}
    return adapter


def _small(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration with few layers, of each kind at least one."""
    config = copy.deepcopy(config)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        config.num_hidden_layers = TWIN_LAYERS
    else:
        _keep_kinds(config, list(kinds))
    config.vocab_size = min(config.vocab_size, TWIN_VOCABULARY)
    config.pad_token_id = 0  # its own one may be outside of the vocabulary
    if getattr(config, "sliding_window", None):
        config.sliding_window = TWIN_WINDOW
    return config


def _keep_kinds(config: PreTrainedConfig, kinds: list[str]) -> None:
    """Reduce the layers to one of each kind, or two if layers use the keys and values of earlier ones."""
    different = list(dict.fromkeys(kinds))
    shares_keys = bool(getattr(config, "num_kv_shared_layers", 0))
    chosen = different * TWIN_LAYERS if shares_keys or len(different) < TWIN_LAYERS else different
    layers = [config.per_layer_config[kinds.index(kind)] for kind in chosen]
    names = config.per_layer_attributes or ()
    config.per_layer_config = None
    config.layer_types, config.num_hidden_layers = chosen, len(chosen)
    if shares_keys:
        config.num_kv_shared_layers = len(different)
    if names:
        own = ({name: getattr(layer, name) for name in names} for layer in layers)
        config.per_layer_config = dict(enumerate(own))


@contextmanager
def _float32(model: nn.Module) -> Iterator[None]:
    """Inside the block, the model computes in float32; each layer's weights are wide only while it runs."""
    narrow: dict[nn.Parameter, Tensor] = {}

    def widen(module: nn.Module, _: Any) -> None:
        for parameter in module.parameters():
            if parameter.is_floating_point():  # quantised weights stay
                narrow[parameter] = parameter.data
                parameter.data = parameter.data.float()

    def restore(module: nn.Module, *_: Any) -> None:
        for parameter in narrow.keys() & set(module.parameters()):
            parameter.data = narrow.pop(parameter)

    def widen_output(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return output.float()

    hooks: list[RemovableHandle] = []
    try:
        for module in dict.fromkeys(_units(model)):  # layers may be shared
            if isinstance(module, nn.Embedding):  # a wide copy of all rows would be large
                hooks.append(module.register_forward_hook(widen_output))
            else:
                hooks.append(module.register_forward_pre_hook(widen))
                hooks.append(module.register_forward_hook(restore, always_call=True))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _units(module: nn.Module) -> Iterator[nn.Module]:
    """The decoder's layers, and the modules with weights outside of them."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        elif any(True for _ in child.parameters(recurse=False)):
            yield child
        else:
            yield from _units(child)
