"""Write the table of `write-a-job/sizing.md`: what fits where, by the estimate of `…/jobs/validate`.

    python -m docs.generate_sizing

Boundary: shapes are those of the public configurations; no model is loaded.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_engine.config.job import Method, Runtime
from service.jobs.intake.estimate import estimate
from service.jobs.intake.model_size import ModelShape, shape_of
from service.jobs.intake.subject import RowTokens, Subject
from service.jobs.model.methods import parsed_method, quantization_of

PAGE = Path(__file__).parent / "write-a-job" / "sizing.md"
START, END = "<!-- table of docs.generate_sizing -->\n", "<!-- end of the table -->\n"
GB = 10**9
CARDS = (24, 80, 141)
"""Memory of a GPU in GB."""
GPUS = (1, 2, 8)

QWEN3 = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151_936}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": QWEN3
    | {"num_hidden_layers": 28, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16}
    | {"tie_word_embeddings": True},
    "Qwen3-1.7B": QWEN3
    | {"num_hidden_layers": 28, "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16}
    | {"tie_word_embeddings": True},
    "Qwen3-4B": QWEN3
    | {"num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32}
    | {"tie_word_embeddings": True},
    "Qwen3-8B": QWEN3
    | {"num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32},
    "Qwen3-14B": QWEN3
    | {"num_hidden_layers": 40, "hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 40},
    "Qwen3-32B": QWEN3
    | {"num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64},
    "Llama-3.1-70B": QWEN3
    | {"num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64}
    | {"vocab_size": 128_256},
}
"""The parts of the public config.json that memory depends on."""
METHODS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "QLoRA": {"quantization": "nf4"},
    "full": {"lora": "full"},
}
"""Name → hyperparameters."""


def model_shape(config: dict[str, Any]) -> ModelShape:
    """The shape of a Llama-like model, from the tensors that such a configuration has."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    if not config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = (vocabulary, hidden)
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for name, rows in {"q": queries, "k": keys, "v": keys}.items():
            tensors[f"{layer}.self_attn.{name}_proj.weight"] = (rows, hidden)
        tensors[f"{layer}.self_attn.o_proj.weight"] = (hidden, queries)
        for name in ("gate", "up"):
            tensors[f"{layer}.mlp.{name}_proj.weight"] = (config["intermediate_size"], hidden)
        tensors[f"{layer}.mlp.down_proj.weight"] = (hidden, config["intermediate_size"])
    return shape_of(config, tensors)


def job(hyperparameters: dict[str, Any]) -> Method:
    """A job with the default group; the grader costs no memory."""
    settings = {"max_completion_tokens": 1024, "beta": 0.0, **hyperparameters}
    grader = {"type": "format", "pattern": "x"}
    reinforcement = {"grader": grader, "hyperparameters": settings}
    return parsed_method({"type": "reinforcement", "reinforcement": reinforcement})


def needed_gb(shape: ModelShape, method: Method, gpus: int) -> tuple[float, float]:
    """Least and most memory that each GPU needs, in GB."""
    runtime = Runtime(
        ranks=gpus,
        sharding="fsdp" if quantization_of(method) is None else "replicated",
        sampler="torch",
        token_budget=2048,
        sample_budget=8,
        dtype="bfloat16",
    )  # type: ignore[call-arg]
    rows = RowTokens(rows=1, longest=512)
    found = estimate(Subject("", method, 1, rows, shape, on_gpu=True, runtime=runtime), []).peak_memory_bytes
    assert found is not None
    return found.low / GB, found.high / GB


def cell(low: float, high: float) -> str:
    """The estimate as text, and the smallest GPU that is large enough for its upper end."""
    fitting = [card for card in CARDS if high <= card]
    return f"{low:.0f} to {high:.0f}: " + (f"**{fitting[0]}**" if fitting else "none")


def table() -> str:
    head = "| model | trained | " + " | ".join(f"{gpus} GPU{'s'[: gpus > 1]}" for gpus in GPUS) + " |"
    return "\n".join((head, "|---|---|" + "---|" * len(GPUS), *rows())) + "\n"


def rows() -> Iterator[str]:
    for name, config in MODELS.items():
        shape = model_shape(config)
        for trained, hyperparameters in METHODS.items():
            method = job(hyperparameters)
            cells = [cell(*needed_gb(shape, method, gpus)) for gpus in GPUS]
            yield f"| {name} | {trained} | " + " | ".join(cells) + " |"


def page() -> str:
    """The page with the current table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    return before + START + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.exit(0)
