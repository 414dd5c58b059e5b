"""Compiled operations for a CPU, between the matrix products.

In torch a norm, a rotation or the attention of one token per row takes five to fifteen operations, whose
overhead is several times the cost of the arithmetic. The C files in this folder are compiled when the package
is installed, if there is a compiler. Callers use them for tensors that the matching `takes…` accepts, and
torch for all others. Boundary: values without gradient; float32 and bfloat16 on a CPU.
"""

import ctypes
from ctypes import c_float, c_int, c_long, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VERSION = 3
"""Version of the arguments; a library compiled for another version is not used."""
LANES = 16
WIDEST_HEAD = 256
LONGEST_PROMPT = 512
"""Longest prompt for which `attend` is faster than one matrix product of a whole group with its prompt."""
HALF = {torch.float32: 0, torch.bfloat16: 1}

States = tuple[Tensor, Tensor, Tensor]
"""A new token's query [B, Hq, D], key and value [B, Hkv, D]."""
Shared = tuple[Tensor, Tensor, Tensor, Tensor]
"""Prompts' keys and values [P, Hkv, W, D], their bias [P, 1, W] and each row's prompt [B]."""


class _Call(ctypes.Structure):
    """`Call` of attention.c."""

    _fields_ = (
        *((name, c_long) for name in ("rows", "heads", "shared", "dim")),
        *((name, c_long) for name in ("query_stride", "key_stride", "value_stride", "bias_stride")),
        *((name, c_long) for name in ("capacity", "length", "before")),
        ("scale", c_float),
        *((name, c_void_p) for name in ("query", "key", "value", "keys", "values", "bias")),
        *((name, c_void_p) for name in ("prompt_keys", "prompt_values", "prompt_bias", "prompt_of_row")),
        ("out", c_void_p),
    )


class _Append(ctypes.Structure):
    """`Append` of adapter.c."""

    _fields_ = (
        *((name, c_long) for name in ("rows", "width", "rank", "stride")),
        *((name, c_void_p) for name in ("x", "down", "out")),
    )


ROWS = (c_void_p, c_long)
"""Address of the first row, and entries from one row to the next."""
ARGUMENTS: dict[str, list[Any]] = {
    "attend": [c_void_p],
    "append_product": [c_void_p],
    "rms_norm": [*ROWS, *ROWS, c_void_p, *(c_long,) * 3, c_float],
    "rms_norm_back": [*ROWS, *ROWS, *ROWS, c_void_p, *(c_long,) * 3, c_float],
    "rotate": [*ROWS, c_void_p, c_void_p, c_void_p, *(c_long,) * 3],
    "swiglu": [c_void_p, *ROWS, c_void_p, *(c_long,) * 2],
    "swiglu_back": [c_void_p, *ROWS, *ROWS, c_void_p, c_void_p, *(c_long,) * 2],
    "draw": [*ROWS, c_void_p, c_float, c_void_p, c_void_p, *(c_long,) * 2],
    "logprobs": [c_void_p, c_void_p, c_float, c_void_p, c_void_p, *(c_long,) * 2],
}

NEED_MEMORY = ("attend", "append_product", "draw", "logprobs")


@cache
def library() -> ctypes.CDLL | None:
    """The compiled library, if there is one. It uses torch's OpenMP, whose symbols are in this process."""
    for suffix in EXTENSION_SUFFIXES:
        try:
            found = ctypes.CDLL(str(Path(__file__).with_name(f"_compiled{suffix}")))
        except OSError:
            continue
        if found.version() == VERSION:
            for name, arguments in ARGUMENTS.items():
                getattr(found, name).argtypes = [*arguments, c_int, c_int]
            return found
    return None


def takes(*states: Tensor) -> bool:
    """Whether these are rows of one supported dtype with contiguous entries."""
    first = states[0]
    return (
        first.dtype in HALF
        and first.device.type == "cpu"
        and all(each.dtype is first.dtype and _is_dense(each) for each in states)
        and library() is not None
    )


def _is_dense(rows: Tensor) -> bool:
    """[T, W], or [T, H, D] with contiguous heads."""
    return rows.stride(-1) == 1 and (rows.dim() == 2 or (rows.dim() == 3 and rows.stride(1) == rows.shape[2]))


def takes_heads(states: States, prompts: Shared) -> bool:
    """Whether `attend` supports heads of this size, and is the faster way for prompts of this length."""
    dim, dtype = states[0].shape[-1], states[0].dtype
    is_whole = dim % (LANES << HALF.get(dtype, 0)) == 0  # bfloat16 is read two parts at a time
    is_short = prompts[0].shape[2] <= LONGEST_PROMPT
    has_one_size = states[2].shape[-1] == dim
    return is_whole and is_short and has_one_size and dim <= WIDEST_HEAD and takes(*states)


def attend(
    states: States, buffers: tuple[Tensor, Tensor, Tensor], length: int, scale: float, prompts: Shared
) -> Tensor:
    """Attention of one new token per row, its own key and value included → [B, Hq · D].

    `buffers`: keys and values [B, Hkv, C, D], the new ones going to column `length - 1`; bias [B, 1, C].
    """
    query, key, value = states
    keys, _, bias = buffers
    batch, heads, dim = query.shape
    out = query.new_empty(batch, heads * dim)
    call = _Call(
        *(batch, key.shape[1], heads // key.shape[1], dim),
        *(query.stride(0), key.stride(0), value.stride(0), bias.stride(0)),
        *(keys.shape[2], length, prompts[0].shape[2]),
        scale,
        *(each.data_ptr() for each in (*states, *buffers, *prompts)),
        out.data_ptr(),
    )
    _run("attend", query.dtype, ctypes.byref(call))
    return out


def append_product(x: Tensor, down: Tensor, rank: int) -> Tensor:
    """x [B, I], down [I, rank rounded up to LANES] in float32 → x and x · down side by side [B, I + rank]."""
    batch, width = x.shape
    out = x.new_empty(batch, width + rank)
    addresses = x.data_ptr(), down.data_ptr(), out.data_ptr()
    call = _Append(batch, width, rank, x.stride(0), *addresses)
    _run("append_product", x.dtype, ctypes.byref(call))
    return out


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x [T, W] with weight [W], or [T, H, D] with weight [D] or [H, D]; the weight in float32."""
    out = torch.empty(x.shape, dtype=x.dtype)
    _run("rms_norm", x.dtype, *_rows(x), *_each_head(weight), out.data_ptr(), *_by_head(x), epsilon)
    return out


def rms_norm_back(x: Tensor, weight: Tensor, grad: Tensor, epsilon: float) -> Tensor:
    """The gradient of x."""
    out = torch.empty(x.shape, dtype=x.dtype)
    given = *_rows(x), *_each_head(weight), *_rows(grad)
    _run("rms_norm_back", x.dtype, *given, out.data_ptr(), *_by_head(x), epsilon)
    return out


def _rows(x: Tensor) -> tuple[int, int]:
    return x.data_ptr(), x.stride(0)


def _each_head(weight: Tensor) -> tuple[int, int]:
    """Address and stride; stride 0 if all heads share one weight."""
    return weight.data_ptr(), weight.shape[-1] if weight.dim() == 2 else 0


def _by_head(x: Tensor) -> tuple[int, int, int]:
    return (len(x), 1, x.shape[1]) if x.dim() == 2 else (len(x), x.shape[1], x.shape[2])


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x [T, H, D], cosine and sine [T, 1, D]."""
    out = torch.empty(x.shape, dtype=x.dtype)
    _run("rotate", x.dtype, *_rows(x), cosine.data_ptr(), sine.data_ptr(), out.data_ptr(), *x.shape)
    return out


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """gate and up [T, W], of equal strides."""
    out = torch.empty(gate.shape, dtype=gate.dtype)
    _run("swiglu", gate.dtype, gate.data_ptr(), *_rows(up), out.data_ptr(), *gate.shape)
    return out


def swiglu_back(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up."""
    of_gate, of_up = (torch.empty(gate.shape, dtype=gate.dtype) for _ in range(2))
    given = gate.data_ptr(), *_rows(up), *_rows(grad)
    _run("swiglu_back", gate.dtype, *given, of_gate.data_ptr(), of_up.data_ptr(), *gate.shape)
    return of_gate, of_up


def draw(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Logits [B, V] and uniform numbers [B] below 1 → tokens [B] and their log-probabilities."""
    tokens = torch.empty(len(logits), dtype=torch.long)
    logprobs = torch.empty(len(logits), dtype=torch.float32)
    made = tokens.data_ptr(), logprobs.data_ptr()
    _run("draw", logits.dtype, *_rows(logits), uniforms.data_ptr(), temperature, *made, *logits.shape)
    return tokens, logprobs


def logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Contiguous logits [N, V] and token ids [N] → their log-probabilities and entropies [N].

    Overwrites the logits with p − 1 at the target and p elsewhere.
    """
    chosen, entropies = (torch.empty(len(logits), dtype=torch.float32) for _ in range(2))
    made = chosen.data_ptr(), entropies.data_ptr()
    _run("logprobs", logits.dtype, logits.data_ptr(), targets.data_ptr(), temperature, *made, *logits.shape)
    return chosen, entropies


def _run(name: str, dtype: torch.dtype, *arguments: object) -> None:
    found = getattr(library(), name)(*arguments, HALF[dtype], torch.get_num_threads())
    if name in NEED_MEMORY and found != 0:
        raise MemoryError(f"not enough memory for {name}")
