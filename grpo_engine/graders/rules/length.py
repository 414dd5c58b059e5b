"""`length`: a penalty on long completions, 0 at best and -1 at worst."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from grpo_engine.contract.records import Sample
from grpo_engine.graders.base import Graded, RewardGrader
from grpo_engine.graders.errors import UnscorableError


class Length(RewardGrader):
    """A ramp from 0 to -1 over the length |y|.

    linear:        0 for |y| <= target; (target - |y|) / (maximum - target) up to maximum; then -1.
    soft_overlong: with L_max = maximum and L_cache = buffer, 0 for |y| <= L_max - L_cache;
                   ((L_max - L_cache) - |y|) / L_cache up to L_max; then -1. DAPO, arXiv 2503.14476, eq. 13.
    """

    type: Literal["length"]
    mode: Literal["linear", "soft_overlong"]
    """linear: a ramp from target to maximum; soft_overlong: DAPO's, over the last `buffer` before maximum."""
    unit: Literal["tokens", "characters"] = "tokens"
    """Unit of all lengths."""
    maximum: int = Field(ge=1, le=10_000_000)
    """Length from which the penalty is -1."""
    target: int | None = Field(None, ge=0, le=10_000_000)
    """linear: longest length without a penalty."""
    buffer: int | None = Field(None, ge=1, le=10_000_000)
    """soft_overlong: width of the ramp that ends at maximum."""

    @model_validator(mode="after")
    def _fits_mode(self) -> Self:
        needed, other = ("target", "buffer") if self.mode == "linear" else ("buffer", "target")
        if getattr(self, needed) is None:
            raise ValueError(f"mode {self.mode} requires {needed}")
        if getattr(self, other) is not None:
            raise ValueError(f"mode {self.mode} does not use {other}: remove it")
        if not 0 <= self.free_length < self.maximum:
            raise ValueError(
                "target must be less than maximum" if self.mode == "linear" else "buffer exceeds maximum"
            )
        return self

    @property
    def free_length(self) -> int:
        """Longest length without a penalty."""
        return self.target if self.target is not None else self.maximum - (self.buffer or 0)

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        length = self._length(sample)
        if length <= self.free_length:
            return Graded(0.0)
        return Graded(max(-1.0, (self.free_length - length) / (self.maximum - self.free_length)))

    def _length(self, sample: Sample) -> int:
        if self.unit == "characters":
            return len(sample.output_text)
        if sample.num_tokens == 0 and sample.output_text:
            raise UnscorableError("other_error", "the number of tokens is unknown here")
        return sample.num_tokens
