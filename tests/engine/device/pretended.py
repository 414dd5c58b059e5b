"""A pretended CUDA device: real numbers on the CPU, but Python sees "cuda", and the engine runs as on a GPU.

What it shows: mixed devices, waits of the host, uploads, what a capture forbids, races between streams. What
it cannot show: the numerics and the speed of a GPU's kernels, and its allocator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.overrides import _pop_mode_temporarily as without_functions
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _pop_mode_temporarily as without_dispatch
from transformers import AutoModelForCausalLM

from grpo_engine.models.fast import fused, varlen
from tests.engine.device import graphs, streams
from tests.engine.device.seen import CUDA, Seen, hold, is_cuda, on_gpu, place, release, tensors_in, written_by
from tests.engine.models.fast.varlen_definition import lengths_of, varlen_by_definition

DEVICE, IS_CUDA, IS_CPU = Tensor.device, Tensor.is_cuda, Tensor.is_cpu  # type: ignore[misc]
READS = {"tolist", "cpu", "numpy", "__array__"}
"""Methods that wait; `item` and its relatives are found by their operation."""
WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
    "equal",
    "is_nonzero",
}
MOVES = {"to", "cuda", "type_as", "_to"}
FROM_HOST = {"tensor", "as_tensor", "from_numpy", "asarray"}
SAMPLING_THREAD = "ahead"
"""The engine's only other thread that works on the device; modes are per thread."""
COPIES = {"copy_", "_to_copy", "set_"}
NO_SCALARS = {"index_copy_", "index_fill_", "index_select", "gather", "cat"}
"""Operations that take no tensor of the CPU, not even one without dimensions."""


class Functions(TorchFunctionMode):
    """Answers questions for a device, and moves tensors."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        owner, name = getattr(func, "__self__", None), getattr(func, "__name__", "")
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if owner in (DEVICE, IS_CUDA, IS_CPU) or name == "get_device":
            return self._answer(func, owner, args)
        if first is not None and name in READS and on_gpu(first):
            return self._read(func, name, first, args[1:], kwargs)
        if first is not None and name in MOVES:
            return self._move(func, name, first, args[1:], kwargs)
        if is_cuda(kwargs.get("device")):
            return self._make(func, name, args, kwargs)
        made = func(*args, **kwargs)
        if first is not None and (name.startswith("new_") or name.endswith("_like")):
            return hold(made, self.seen) if "device" not in kwargs and on_gpu(first) else made
        return made

    def _answer(self, func: Any, owner: Any, args: Any) -> Any:
        held = on_gpu(args[0])
        if owner is DEVICE:
            return CUDA if held else func(*args)
        if owner is IS_CUDA:
            return held
        if owner is IS_CPU:
            return not held
        return 0 if held else -1

    def _read(self, func: Any, name: str, first: Tensor, rest: Any, kwargs: Any) -> Any:
        self.seen.wait(name)
        streams.waited()
        if name in ("numpy", "__array__"):
            self.seen.mixed[f"{place()} {name} of a tensor on the device"] += 1
        found = func(first, *rest, **kwargs)
        return release(found.clone()) if name == "cpu" else found

    def _make(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """A tensor made on the device."""
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != "cuda":
            self.seen.mixed[f"{place()} a generator of the CPU for a tensor on the device"] += 1
        made = func(*args, **{**kwargs, "device": "cpu"})
        if name in FROM_HOST:
            self.seen.upload(name)
            made = made.clone() if name != "tensor" else made
        return hold(made, self.seen)

    def _move(self, func: Any, name: str, first: Tensor, rest: Any, kwargs: Any) -> Any:
        target: torch.device | None = CUDA if name == "cuda" else None
        given = []
        for each in rest:
            if isinstance(each, torch.device | str):
                target, each = torch.device(each), torch.device("cpu")
            elif isinstance(each, Tensor):
                target = CUDA if on_gpu(each) else torch.device("cpu")
            given.append(each)
        if kwargs.get("device") is not None:
            target, kwargs["device"] = torch.device(kwargs["device"]), torch.device("cpu")
        was = on_gpu(first)
        moved = first.clone() if name == "cuda" else func(first, *given, **kwargs)
        if target is None or (target.type == "cuda") == was:
            return hold(moved, self.seen) if was else moved
        if moved.untyped_storage()._cdata == first.untyped_storage()._cdata:
            moved = moved.clone()
        if target.type == "cuda":
            self.seen.upload("to the device")
            return hold(moved, self.seen)
        self.seen.wait("to the host")
        streams.waited()
        return release(moved)


class Operations(TorchDispatchMode):
    """Follows every operation, those of the backward pass too."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # the questions below are not the engine's
            return self._followed(func, args, kwargs or {})

    def _followed(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = tensors_in((args, kwargs))
        held = [each for each in tensors if on_gpu(each)]
        if not held:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        self._check(name, args, kwargs, tensors, held)
        made = func(*args, **kwargs)
        if name == "_local_scalar_dense":
            return made
        if not func.is_view:
            written = written_by(func, args)
            read = [each for each in held if not any(each is own for own in written)]
            streams.used(self.seen, name, read, [*written, *tensors_in(made)])
        return hold(made, self.seen)

    def _check(self, name: str, args: Any, kwargs: Any, tensors: list[Tensor], held: list[Tensor]) -> None:
        seen = self.seen
        seen.working(name)
        others = [each for each in tensors if not on_gpu(each) and each.layout is torch.strided]
        if name not in COPIES and any(
            each.dim() > 0 or name in NO_SCALARS for each in others if has_memory(each)
        ):
            seen.mixed[f"{place()} {name}"] += 1
        if name == "copy_" and on_gpu(args[0]) != on_gpu(args[1]):
            seen.upload(name) if on_gpu(args[0]) else seen.wait(name)
        by_mask = name.startswith("index") and any(
            each.dtype in (torch.bool, torch.uint8) for each in tensors_in(args[1:2])
        )
        by_counts = name == "repeat_interleave" and kwargs.get("output_size") is None
        if name in WAITING or by_mask or by_counts:
            seen.wait(name)
            streams.waited()


def has_memory(tensor: Tensor) -> bool:
    return not tensor._is_zerotensor()


@contextmanager
def pretended_cuda() -> Iterator[Seen]:
    """Inside, `torch.cuda` has one device; yields what happens on it."""
    seen = Seen()
    load, run_thread = AutoModelForCausalLM.from_pretrained, threading.Thread.run
    apply = BackwardCFunction.apply

    def load_on_host(*args: Any, **kwargs: Any) -> Any:
        with without_functions(), without_dispatch():
            return load(*args, **kwargs)

    def run_there(self: threading.Thread) -> None:
        is_sampling = self.name.startswith(SAMPLING_THREAD)
        with (
            Functions(seen) if is_sampling else nullcontext(),
            Operations(seen) if is_sampling else nullcontext(),
        ):
            run_thread(self)

    def apply_back(self: Any, *gradients: Any) -> Any:
        with Functions(seen):  # autograd runs the backward passes of our kernels without it
            return apply(self, *gradients)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BackwardCFunction, "apply", apply_back)
        patch.setattr(AutoModelForCausalLM, "from_pretrained", load_on_host)
        patch.setattr(threading.Thread, "run", run_there)
        patch.setattr(varlen, "varlen_attn", varlen_attn)
        patch.setattr(fused, "has_compiler", lambda: False)
        patch.setattr(torch, "bmm", bmm)
        for name in ("autocast", "is_autocast_enabled", "get_autocast_dtype"):
            patch.setattr(torch, name, on_the_host(getattr(torch, name)))
        # torch's optimizers ask it, and a build for CUDA would look for a real device
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)
        for name, value in _functions_of_cuda(seen).items():
            patch.setattr(torch.cuda, name, value)
        with Functions(seen), Operations(seen):
            yield seen


def on_the_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """With the CPU in place of the device type: the operations are the CPU's."""
    return lambda kind, *rest, **options: function("cpu" if kind == "cuda" else kind, *rest, **options)


def varlen_attn(*arguments: Any, **options: Any) -> Tensor:
    """The kernel by its definition; its lengths stay on the device."""

    def lengths_on_device(ends: Tensor) -> list[int]:
        with without_functions(), without_dispatch():
            return lengths_of(ends)

    return varlen_by_definition(*arguments, **options, read=lengths_on_device)


def bmm(
    left: Tensor, right: Tensor, *, out_dtype: torch.dtype | None = None, product: Any = torch.bmm
) -> Tensor:
    """torch's, with a result in another dtype, which the CPU does not have."""
    made: Tensor = (
        product(left, right) if out_dtype is None else product(left.to(out_dtype), right.to(out_dtype))
    )
    return made


def _functions_of_cuda(seen: Seen) -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "get_device_name": lambda *_: "Pretended",
        "get_device_capability": lambda *_: (9, 0),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "max_memory_allocated": lambda *_: 0,
        "memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "mem_get_info": lambda *_: (seen.free_bytes, 2**37),
        "empty_cache": lambda: None,
        "synchronize": lambda *_: streams.waited(),
        "get_rng_state": lambda *_, **__: torch.zeros(1),
        "set_rng_state": lambda *_, **__: None,
        "is_current_stream_capturing": lambda: seen.capturing == threading.get_ident(),
        "Stream": streams.Stream,
        "Event": streams.Event,
        "stream": streams.on_stream,
        "current_stream": streams.current,
        "CUDAGraph": lambda: graphs.Graph(seen),
        "graph": lambda graph, **options: graphs.capture(seen, graph, **options),
    }
