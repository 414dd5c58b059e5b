"""Two ranks, replicated or with sharded weights, sample, train, evaluate and save the same as one process."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from examples.tiny_model import make_model
from grpo_engine.config.job import RunConfig
from service.jobs.intake.estimate import estimate
from service.jobs.intake.model_size import model_shape
from service.jobs.intake.peak_memory import PROCESS_BYTES
from service.jobs.intake.subject import Subject
from tests.engine.conftest import cut, sum_rows, write_rows
from tests.engine.families.catalogue import FAMILIES
from tests.engine.families.models import make_family
from tests.engine.injection import after_steps, steps_of
from tests.engine.rollout.agents.conftest import serving
from tests.engine.rollout.agents.test_training import letters
from tests.engine.run.distributed.gang import together, write_adapter
from tests.engine.run.distributed.runs import Run, alone, config_of

TOLERANCE = 1e-6
REPLICATED, SHARDED = {"sharding": "replicated"}, {"sharding": "fsdp"}
PIECES = {"token_budget": 24}
"""So small that one rank has more micro-batches than the other."""
FULL = {"lora": "full", "beta": 0.1, "learning_rate": 2e-5}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "replicated": ({"dynamic_sampling": 2, "prompts_per_step": 3}, REPLICATED),
    "sharded": ({"beta": 0.1}, SHARDED),
    "sharded_pieces": (
        {"beta": 0.1, "num_iterations": 2, "prompts_per_step": 3, "top_entropy_quantile": 0.3},
        SHARDED | PIECES,
    ),
    "sharded_one_prompt": ({"prompts_per_step": 1, "kl_placement": "reward", "beta": 0.1}, SHARDED),
    "sharded_full": ({**FULL, "prompts_per_step": 3}, SHARDED | PIECES),
    "sharded_from_adapter": ({"beta": 0.1}, SHARDED),
    "sharded_full_from_adapter": (FULL, SHARDED),
    "agents": ({"prompts_per_step": 3}, REPLICATED),
    "agents_one_prompt": ({"prompts_per_step": 1}, SHARDED),
}
"""Name → hyperparameters and runtime."""
SUPERVISED = {
    "supervised": REPLICATED,
    "supervised_sharded": SHARDED | PIECES,
    "supervised_sharded_experts": SHARDED,
}
CONTINUED = ("replicated", "sharded", "sharded_full")
INJECTED: dict[str, dict[str, Any]] = {
    "grpo": {"beta": 0.1, "kl_placement": "loss_sequence"},
    "dapo": {"top_entropy_quantile": 0.2, "entropy_coef": 0.01},
    "dr_grpo": {},
    "bnpo": {"prompts_per_step": 1},  # one group for two ranks
    "gspo": {"num_iterations": 2, "beta": 0.1},
    "cispo": {},
    "sapo": {},
    "reinforce": {},
}
"""Loss → hyperparameters of a job whose completions are given."""


def largest_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its rows."""
    folder = tmp_path_factory.mktemp("ranks")
    make_model(folder / "model", hidden=64, layers=2, seed=3)
    rows = [{**row, "environment": "letters"} for row in sum_rows(9)]
    write_rows(folder / "reinforcement.jsonl", rows)
    answered = [{"messages": [*r["messages"], {"role": "assistant", "content": r["answer"]}]} for r in rows]
    write_rows(folder / "supervised.jsonl", answered)
    make_model(folder / "larger", hidden=512, layers=12, seed=3)
    make_family(folder / "experts", FAMILIES["gpt-oss"])
    write_adapter(folder / "model", folder / "adapter")
    return folder


def source_of(name: str, folder: Path) -> dict[str, str]:
    """The case's own adapter or model, if it has one."""
    if name.endswith("from_adapter"):
        return {"adapter": str(folder / "adapter")}
    return {"path": str(folder / "experts")} if name.endswith("experts") else {}


@pytest.fixture(scope="module")
def agent() -> Iterator[str]:
    """URL of an agent that asks twice; its second request does not continue the first."""
    with pytest.MonkeyPatch.context() as patch, serving(letters) as url:
        patch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1")
        yield url


def with_agent(config: RunConfig, url: str) -> RunConfig:
    data = cut(config, agent_host="127.0.0.1").model_dump(mode="json")
    data["method"]["reinforcement"]["environments"] = {"letters": {"type": "agent", "url": url}}
    return RunConfig.model_validate(data)


@pytest.fixture(scope="module")
def configs(folder: Path, agent: str) -> dict[str, RunConfig]:
    """The replicated job's held-out rows are a part of its training file."""
    found = {
        **{
            name: config_of(
                folder,
                runtime,
                {"reinforcement": values},
                **source_of(name, folder),
            )
            for name, (values, runtime) in CASES.items()
        },
        **{
            name: config_of(folder, runtime, {"supervised": {"batch_size": 3}}, **source_of(name, folder))
            for name, runtime in SUPERVISED.items()
        },
    }
    split = {"validation_file": None, "validation_split": 3}
    found["replicated"] = found["replicated"].model_copy(update=split)
    return found | {name: with_agent(found[name], agent) for name in CASES if name.startswith("agents")}


@pytest.fixture(scope="module")
def injected(folder: Path) -> dict[str, RunConfig]:
    """Steps of 1e-4. Adam's ε keeps weights still whose gradient is nothing but rounding."""
    return {
        name: config_of(
            folder,
            REPLICATED,
            {"reinforcement": {"loss_type": name, "max_completion_tokens": 12, **values}},
        )
        for name, values in INJECTED.items()
    }


@pytest.fixture(scope="module")
def larger(folder: Path) -> RunConfig:
    """A full job on a model of 150 MB."""
    path = str(folder / "larger")
    return config_of(folder, SHARDED, {"reinforcement": {"lora": "full", "beta": 0.0}}, path=path)


@pytest.fixture(scope="module")
def one(folder: Path, configs: dict[str, RunConfig]) -> Callable[[str], Run]:
    """The run of that name by one process."""
    made: dict[str, Run] = {}

    def run(name: str) -> Run:
        if name not in made:
            made[name] = alone(configs[name], folder / "one" / name)
        return made[name]

    return run


@pytest.fixture(scope="module")
def two(
    folder: Path,
    configs: dict[str, RunConfig],
    injected: dict[str, RunConfig],
    larger: RunConfig,
    one: Callable[[str], Run],
) -> dict[str, Run]:
    """All of them by two ranks, and the third step alone of those that one process began."""
    for name in CONTINUED:
        keep_two_steps(one(name).folder, folder / "together" / f"{name}_continued")
    continued = {f"{name}_continued": configs[name] for name in CONTINUED}
    return together(folder / "together", {**configs, **continued}, injected, {"larger": larger})


def keep_two_steps(run: Path, target: Path) -> None:
    """The run's folder as it was after the second step."""
    step = Path("checkpoints") / "step-00000002"
    shutil.copytree(run / step, target / step)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *SUPERVISED])
def test_two_ranks_end_with_the_weights_and_metrics_of_one_process(
    one: Callable[[str], Run], two: dict[str, Run], name: str
) -> None:
    by_one, by_two = one(name), two[name]
    assert by_two.completions == by_one.completions
    assert largest_difference(by_one.weights, by_two.weights) <= TOLERANCE
    assert largest_difference(by_one.moments, by_two.moments) <= TOLERANCE
    assert len(by_two.metrics) == len(by_one.metrics) > 3
    for mine, other in zip(by_one.metrics, by_two.metrics, strict=True):
        assert other == pytest.approx(mine, abs=1e-5, rel=1e-4)


@pytest.mark.slow
def test_the_memory_of_a_sharded_rank_is_within_its_estimate(
    folder: Path, two: dict[str, Run], larger: RunConfig
) -> None:
    """What loading and an optimiser step leave and need: weights, gradients and moments, divided by two."""
    runtime = larger.runtime.model_copy(update={"ranks": 2})
    shape = model_shape(folder / "larger")
    subject = Subject("larger", larger.method, 1, None, shape, on_gpu=False, runtime=runtime)
    found = estimate(subject, []).peak_memory_bytes
    assert found is not None
    low, high = found.low - PROCESS_BYTES, found.high - PROCESS_BYTES
    for rank in range(2):
        measured = json.loads((folder / "together" / f"larger.{rank}.json").read_text())
        # resident memory includes pages of mapped files, which the kernel may take back during the step
        assert 0.95 * low <= measured["held"] + measured["training"] <= min(high, 1.15 * low)


@pytest.mark.slow
def test_only_the_first_rank_ever_holds_the_whole_model(folder: Path, two: dict[str, Run]) -> None:
    whole = sum(path.stat().st_size for path in (folder / "larger").glob("*.safetensors"))
    assert whole > 100 * 2**20
    by_rank = [json.loads((folder / "together" / f"larger.{rank}.json").read_text()) for rank in range(2)]
    assert [each["held"] for each in by_rank] == [pytest.approx(whole / 2, rel=0.01)] * 2
    # resident memory, with pages of code that differ from run to run
    assert by_rank[0]["loading"] > whole > by_rank[1]["loading"] * 1.05
    assert max(each["saving"] for each in by_rank) < 0.2 * whole  # Adam's moments have twice the bytes


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", INJECTED)
def test_two_ranks_give_the_parameters_and_metrics_of_one_by_every_loss(
    folder: Path, injected: dict[str, RunConfig], two: dict[str, Run], loss_type: str
) -> None:
    config = injected[loss_type]
    alone, metrics = after_steps(config, steps_of(config))
    for rank in range(2):
        shared, other = torch.load(folder / "together" / f"{loss_type}.{rank}.pt")
        assert largest_difference(alone, shared) <= TOLERANCE
        for key in ("loss", "grad_norm", "entropy", "clip_ratio/region_mean"):
            assert other[key] == pytest.approx(metrics[key], abs=2e-6, rel=1e-5), key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sharded", "sharded_full"])
def test_a_sharded_checkpoint_has_the_files_of_a_whole_one_but_for_the_moments(
    one: Callable[[str], Run], two: dict[str, Run], name: str
) -> None:
    def shape(run: Run) -> dict[str, int]:
        """File → bytes of its tensors."""
        files = (run.folder / "checkpoints" / "step-00000003").rglob("*.safetensors")
        return {path.name: sum(each.nbytes for each in load_file(path).values()) for path in files}

    found, expected = shape(two[name]), shape(one(name))
    shards = [found.pop(f"rank-0000{rank}-of-00002.safetensors") for rank in range(2)]
    whole = expected.pop("optimizer.safetensors")
    assert sum(shards) == whole
    assert shards == [pytest.approx(whole / 2, rel=0.05)] * 2
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTINUED)
def test_a_run_continues_with_another_number_of_ranks(
    configs: dict[str, RunConfig], one: Callable[[str], Run], two: dict[str, Run], tmp_path: Path, name: str
) -> None:
    """Steps 1 and 2 with one number of ranks, step 3 with the other: as if all were made alike."""
    continued = two[f"{name}_continued"]
    assert [event["resumed_from_step"] for event in continued.events if event["type"] == "started"] == [2]
    assert largest_difference(one(name).weights, continued.weights) <= TOLERANCE
    keep_two_steps(two[name].folder, tmp_path)
    back = alone(configs[name], tmp_path)
    assert largest_difference(one(name).weights, back.weights) <= TOLERANCE
