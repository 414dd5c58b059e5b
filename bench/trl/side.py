"""Input and output of an engine's run in a comparison: plain data in two small files.

python -m bench.trl.ours SPEC.json ANSWER.json
python -m bench.trl.theirs SPEC.json ANSWER.json
"""

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from grpo_engine.graders import Grader, make_sample

GRADER = {
    "type": "text_similarity",
    "name": "like_target",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.target }}",
    "evaluation_metric": "fuzzy_match",
}
"""The default grader of both engines, whose reward from 0 to 1 differs within nearly every group."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The input of one run, the same for both engines."""

    model: str
    rows: str
    """JSONL file with `prompt` and `target`."""
    prompts: int
    group_size: int
    prompt_tokens: float
    """Mean tokens per prompt."""
    max_completion_tokens: int
    lengths: Literal["fixed", "natural"]
    beta: float
    lora_rank: int
    """Rank of the adapter; 0: all weights are trained."""
    learning_rate: float
    dtype: Literal["float32", "bfloat16"]
    sampler: Literal["torch", "vllm"]
    device: str
    steps: int
    """Number of steps. The first is a warm-up and is excluded."""
    seed: int
    threads: int
    grader: dict[str, Any] = field(default_factory=lambda: GRADER)
    ours: dict[str, Any] = field(default_factory=dict)
    """Hyperparameters with which this engine does what TRL does by default."""
    theirs: dict[str, Any] = field(default_factory=dict)
    """Further settings of TRL."""
    trained: str = ""
    """Folder for the trained weights; if empty, they are not saved."""


@dataclass(slots=True)
class Step:
    """Durations of one optimiser step."""

    seconds: float
    sample_seconds: float
    train_seconds: float
    completions: int
    sampled_tokens: int
    reward: float = 0.0


@dataclass(slots=True)
class Answer:
    steps: list[Step] = field(default_factory=list)
    peak_bytes: int = 0
    gpu_bytes: int = 0
    moved: float = 0.0
    """Largest change of a trained weight."""

    def figures(self) -> dict[str, float]:
        """Medians over the steps after the first."""
        timed = self.steps[1:]

        def median(of: Callable[[Step], float]) -> float:
            return statistics.median(of(step) for step in timed)

        return {
            "seconds_per_step": median(lambda s: s.seconds),
            "sample_seconds": median(lambda s: s.sample_seconds),
            "train_seconds": median(lambda s: s.train_seconds),
            "completions_per_second": median(lambda s: s.completions / s.seconds),
            "sampled_tokens_per_second": median(lambda s: s.sampled_tokens / s.sample_seconds),
            "trained_tokens_per_second": median(lambda s: s.sampled_tokens / s.train_seconds),
            "tokens_per_completion": sum(s.sampled_tokens for s in timed) / sum(s.completions for s in timed),
            "peak_memory_bytes": float(self.peak_bytes),
            "peak_gpu_memory_bytes": float(self.gpu_bytes),
            "first_reward": self.steps[0].reward,
            "last_reward": self.steps[-1].reward,
            "moved": self.moved,
        }


def rewards_of(spec: Spec, targets: Sequence[str], texts: Sequence[str]) -> list[float]:
    """The grader's rewards, for TRL's reward function."""
    rule: Grader = TypeAdapter(Grader).validate_python(spec.grader)
    return [
        rule.grade(make_sample(text), {"target": target}).reward or 0.0
        for target, text in zip(targets, texts, strict=True)
    ]


def answer(run: Callable[[Spec], Answer]) -> None:
    """Main function of the child process: read the spec, run, write the answer with the peak memory."""
    import torch

    from grpo_engine.objective.metrics import peak_memory_bytes

    spec = Spec(**json.loads(Path(sys.argv[1]).read_text()))
    torch.set_num_threads(spec.threads)
    found = run(spec)
    found.peak_bytes = int(peak_memory_bytes(torch.device("cpu")))
    if torch.cuda.is_available():
        found.gpu_bytes = torch.cuda.max_memory_allocated()
    Path(sys.argv[2]).write_text(json.dumps(asdict(found)))


def read_rows(path: str | Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def read_answer(path: Path) -> Answer:
    data = json.loads(path.read_text())
    return Answer(**{**data, "steps": [Step(**step) for step in data["steps"]]})
