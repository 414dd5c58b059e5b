"""Tiny real models in folders, and a trainer on one of them in two lines."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.tiny_model import make_model
from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import ModelSource, RunConfig, SupervisedHyperparameters
from grpo_engine.models.fast import native
from grpo_engine.models.fast.products import has_onednn
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Group
from grpo_engine.run.build import build_loop
from tests.support.capable_model import GRADER, on_endpoint, write_endpoints, zorb_rows
from tests.support.chat_server import ChatServer

FAMILIES = ("qwen3", "llama", "gpt2")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests share two cores with servers; one thread is as fast on tiny models and has none to wait for."""
    torch.set_num_threads(1)


IS_COMPILED = native.library() is not None


def pytest_configure(config: pytest.Config) -> None:
    """The tests of a GPU use no compiled operations, so they run where the project is not installed."""
    if config.getoption("markexpr") != "needs_gpu" and shutil.which("cc") is not None:
        assert IS_COMPILED, "run make setup: it compiles grpo_engine/models/fast/native"


@pytest.fixture(params=["compiled", "by torch"] if IS_COMPILED else ["by torch"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding with the compiled operations, and with torch's where there is no C compiler."""
    if request.param == "by torch":
        monkeypatch.setattr(native, "library", lambda: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of promises that hold only for operations which this machine or parameter lacks."""
    left_out = [item for item in items if _is_left_out(item)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _is_left_out(item: pytest.Item) -> bool:
    if item.get_closest_marker("needs_gpu"):
        return not torch.cuda.is_available()
    if item.get_closest_marker("needs_onednn_bfloat16"):
        return not has_onednn(torch.bfloat16, torch.device("cpu"))
    callspec = getattr(item, "callspec", None)
    is_by_torch = callspec is not None and callspec.params.get("both_ways") == "by torch"
    return bool(item.get_closest_marker("needs_compiled")) and (is_by_torch or not IS_COMPILED)


def assert_most_likely(policy: Policy, group: Group) -> None:
    """Each token is as likely as any other by the model's own forward, within the bound of other kernels."""
    prompt = group.prompt.token_ids
    for completion in group.completions:
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*prompt, *completion.token_ids]])).logits
        logprobs = logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(completion.token_ids)[:, None]).squeeze(1)
        assert float((logprobs.amax(1) - chosen).max()) <= 1e-4


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(family: str = "qwen3") -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            make_model(made[family], family=family, hidden=64, layers=2, seed=3)  # type: ignore[arg-type]
        return made[family]

    return folder


@pytest.fixture
def make_policy(model_folder: Callable[[str], Path]) -> Callable[..., Policy]:
    """A policy whose adapter already does something."""

    def make(
        family: str = "qwen3",
        lora: Any = None,
        adapter: str | None = None,
        dtype: torch.dtype = torch.float32,
        quantization: str | None = None,
        folder: Path | None = None,
    ) -> Policy:
        source = ModelSource(name=family, path=str(folder or model_folder(family)), adapter=adapter)
        given = {"lora": lora or Lora(rank=4), "quantization": quantization}
        hyperparameters = SupervisedHyperparameters.model_validate(given)
        policy = load_policy(source, hyperparameters, torch.device("cpu"), dtype, seed=5)
        waken(policy, 11)
        return policy

    return make


def waken(policy: Policy, seed: int = 1) -> None:
    """Give the adapter's B matrices values other than zero, so that it does something."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in policy.trainable.items():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.05


def add_token_without_embedding(policy: Policy) -> str:
    """A token that the tokenizer has from now on, and the model lacks."""
    added = [f"<added{place}>" for place in range(policy.num_embeddings)]
    policy.tokenizer.add_tokens(added)
    return added[-1]


def sum_rows(count: int) -> list[dict[str, Any]]:
    """`{"messages": [user "3+4="], "answer": "7"}`, in a fixed order."""
    pairs = [(index % 10, (index * 7) % 10) for index in range(count)]
    return [{"messages": [{"role": "user", "content": f"{a}+{b}="}], "answer": str(a + b)} for a, b in pairs]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


DIGITS = {"type": "format", "pattern": r"[0-9]", "match": "search"}
"""A reward that a random model earns sometimes: there is a digit in the completion."""


@pytest.fixture
def make_config(tmp_path: Path, model_folder: Callable[[str], Path]) -> Callable[..., RunConfig]:
    """A reinforcement job of a few cheap steps; keyword arguments are hyperparameters."""

    def make(*, family: str = "qwen3", grader: Any = None, **hyperparameters: Any) -> RunConfig:
        settings = {
            "n_steps": 3,
            "prompts_per_step": 4,
            "group_size": 4,
            "max_completion_tokens": 8,
            "learning_rate": 1e-3,
            "lora": {"rank": 4, "alpha": 8},
            **hyperparameters,
        }
        method = {"grader": grader or DIGITS, "hyperparameters": settings}
        return RunConfig.model_validate(
            {
                "job_id": "ftjob-test",
                "seed": 7,
                "model": {"name": family, "path": str(model_folder(family))},
                "training_file": str(write_rows(tmp_path / "train.jsonl", sum_rows(12))),
                "method": {"type": "reinforcement", "reinforcement": method},
            }
        )

    return make


def trained(config: RunConfig, run_dir: Path) -> Any:
    """The method after its last step."""
    loop = build_loop(config, run_dir)
    list(loop.run(lambda: False))
    return loop.method


def parameters_of(trainer: Any) -> dict[str, torch.Tensor]:
    """Copies of the trained parameters of a `Trainer` or a `SupervisedTrainer`."""
    return {name: parameter.detach().clone() for name, parameter in trainer.policy.trainable.items()}


def largest_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def cut(config: RunConfig, **runtime: Any) -> RunConfig:
    """The same job, run in other pieces."""
    return config.model_copy(update={"runtime": config.runtime.model_copy(update=runtime)})


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., RunConfig]:
    """A training-free job of eight rows in two batches an epoch; keyword arguments are hyperparameters."""

    def make(*, grader: Any = GRADER, num_rows: int = 8, **hyperparameters: Any) -> RunConfig:
        method = {"grader": grader, "hyperparameters": on_endpoint(**hyperparameters)}
        return RunConfig.model_validate(
            {
                "job_id": "ftjob-test",
                "seed": 7,
                "model": {"name": "none", "path": "/no/such/model"},
                "training_file": str(write_rows(tmp_path / "train.jsonl", zorb_rows(num_rows))),
                "validation_file": str(write_rows(tmp_path / "held.jsonl", zorb_rows(12, first=20))),
                "method": {"type": "training_free", "training_free": method},
            }
        )

    return make


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ChatServer]]:
    """Starts the operator's one endpoint."""
    started: list[ChatServer] = []

    def start(answer: Callable[[dict[str, Any]], Any], **more: Any) -> ChatServer:
        server = ChatServer(answer).__enter__()
        started.append(server)
        path = write_endpoints(tmp_path / "endpoints.json", server.url, **more)
        monkeypatch.setenv("GRPO_ENDPOINTS", str(path))
        return server

    yield start
    for server in started:
        server.__exit__(None, None, None)
